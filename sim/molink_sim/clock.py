"""Virtual time: a heap of what will happen, and nobody waits for it.

An event is a method and its one argument. Two events of the same moment happen in the order in
which they were planned, so that a run depends on nothing but its scenario. Events are never taken
back: whoever plans one that may become void looks, when it comes, whether it still matters. That
keeps an event at one tuple, and a simulated hour at minutes.
"""

import gc
import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """The present moment, and the events to come."""

    __slots__ = ("_events", "_planned", "events", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """How many have happened."""
        self._planned = 0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []

    def at(self, when: float, action: Callable[[Any], None], argument: Any = None) -> None:
        """Plan `action(argument)`; never, when `when` is infinite."""
        assert when >= self.now, "nothing can be planned for the past"
        if when < math.inf:
            self._planned += 1
            heappush(self._events, (when, self._planned, action, argument))

    def run(self, until: float) -> None:
        """Let everything happen that is planned up to and at `until`.

        Events leave no cycles behind; looking for some took a tenth of the time.
        """
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._run(until)
        finally:
            if collecting:
                gc.enable()

    def _run(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, action, argument = heappop(events)
            self.events += 1
            action(argument)
