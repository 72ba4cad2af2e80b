"""Devices that stages compute on: one of their own, or the cores of a PC that several share.

A shared device keeps a time of its own, *compute time*: it passes as fast as real time while one
stage computes, and slower the more compute at once. Steps are planned in it. So a step that others
join or leave ends later or earlier without being planned anew, and all that computes on a PC is one
number that passes at one speed, as it is where cores are shared evenly.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Protocol

from molink_scheduler.batch import PREFILL
from molink_scheduler.events import RunBatch
from molink_sim.clock import Clock
from molink_sim.outcome import BusyTimes

Action = Callable[[Any], None]


class Device(Protocol):
    """Processor on which a stage's steps take their compute time."""

    @property
    def now(self) -> float:
        """Compute time that has passed on the device."""

    def at(self, when: float, action: Action, argument: Any) -> None:
        """Plan `action(argument)` for a moment of compute time at which a stage still computes."""

    def begin(self) -> None:
        """A stage begins to compute."""

    def end(self) -> None:
        """A stage has nothing to compute."""

    def elapsed_s(self, step_s: float, real_s: float) -> float:
        """Time that a stage's clock measures of a step of `step_s` that took `real_s` of real
        time."""


@dataclass(frozen=True, slots=True)
class OwnDevice:
    """Device of one stage alone: compute time is real time."""

    clock: Clock

    @property
    def now(self) -> float:
        """Compute time that has passed on the device."""
        return self.clock.now

    def at(self, when: float, action: Action, argument: Any) -> None:
        """Plan an action for a moment of compute time."""
        self.clock.at(when, action, argument)

    def begin(self) -> None:
        """Nothing changes: no other stage is in the way."""

    def end(self) -> None:
        """Nobody waits for it."""

    def elapsed_s(self, step_s: float, real_s: float) -> float:
        """The step's own time, free of rounding."""
        return step_s


@dataclass(slots=True)
class SharedDevice:
    """The cores of one PC; stages that compute at once slow each other down."""

    clock: Clock
    slowdown: tuple[float, ...]
    """Multiples of the time alone, with 1, 2, ... stages at once; beyond those in proportion: the
    cores are all taken."""
    chunk_s: float = 0.0
    """Seconds of a core for a chunk, both ends of a link together."""
    hop_s: float = 0.0
    """Seconds of compute time in which a hop's processes wake up: each waits for its turn."""
    _computing: int = field(init=False, default=0)
    _compute_s: float = field(init=False, default=0.0)
    """Compute time at `_since`."""
    _since: float = field(init=False, default=0.0)
    _planned: int = field(init=False, default=0)
    _plan: int = field(init=False, default=0)
    """Number of the plan in force: events of one for an earlier speed are void."""
    _events: list[tuple[float, int, Action, Any]] = field(init=False, default_factory=list)

    @property
    def now(self) -> float:
        """Compute time that has passed on the device."""
        return self._compute_s + (self.clock.now - self._since) / self._slow

    def at(self, when: float, action: Action, argument: Any) -> None:
        """Plan an action for a moment of compute time."""
        self._planned += 1
        heappush(self._events, (when, self._planned, action, argument))
        if self._events[0][1] == self._planned:
            self._plan_next()

    def begin(self) -> None:
        """The others slow down."""
        self._change(1)

    def end(self) -> None:
        """The others speed up."""
        self._change(-1)

    def handle_chunk(self) -> None:
        """Handle a chunk at one end of a link: that takes a core as a step does."""
        if self.chunk_s:
            self.begin()
            self.at(self.now + self.chunk_s / 2, self._handled, None)

    def wake(self, action: Action, argument: Any) -> None:
        """Do something once the processes are awake that a message passes. What they compute is
        counted with its chunks; while stages take the cores they wait longer."""
        if self.hop_s:
            self.at(self.now + self.hop_s, action, argument)
        else:
            action(argument)

    def take_in(self, action: Action, argument: Any) -> None:
        """Take in a message of one chunk, at the far end of a link."""
        self.handle_chunk()
        self.wake(action, argument)

    def _handled(self, _: None) -> None:
        self.end()

    def elapsed_s(self, step_s: float, real_s: float) -> float:
        """Real time, the others' share included: so a live stage measures."""
        return real_s

    @property
    def _slow(self) -> float:
        listed, count = len(self.slowdown), max(1, self._computing)
        return self.slowdown[min(count, listed) - 1] * max(1.0, count / listed)

    def _change(self, difference: int) -> None:
        self._compute_s, self._since = self.now, self.clock.now
        self._computing += difference
        self._plan_next()

    def _plan_next(self) -> None:
        """Plan the moment at which the next event is due if the speed stays."""
        self._plan += 1
        if self._events:
            left_s = max(0.0, self._events[0][0] - self.now) * self._slow
            self.clock.at(self.clock.now + left_s, self._due, self._plan)

    def _due(self, plan: int) -> None:
        if plan != self._plan:
            return
        when, _, action, argument = heappop(self._events)
        self._compute_s, self._since = when, self.clock.now
        self._plan_next()
        action(argument)


@dataclass(slots=True)
class PrefillStep:
    """A prefill step under way, or standing still for decode; in its device's compute time."""

    run: RunBatch
    step_s: float
    resumed_at: float
    done_s: float = 0.0
    """Seconds of the step that were done before it was resumed."""
    resumed_real: float = math.inf
    """Moment of the resumption on the clock."""
    real_s: float = 0.0
    """How long it has been computed by the clock."""
    stop_at: float = -math.inf
    """The end of a part at which the stage looks for decode, when that is planned."""
    is_counted: bool = False
    """Whether a part of it was: a step that decode interrupts is still one step."""

    @property
    def ends_at(self) -> float:
        """End of the step unless decode interrupts it; in compute time."""
        return self.resumed_at + self.step_s - self.done_s

    def stop_after_layer(self, now: float, layers: int) -> bool:
        """Plan to stop at the end of the layer that is computed now; False when it does not go on
        there, or when a stop is planned already."""
        if self.resumed_at > now or self.stop_at >= now:
            return False
        part_s = self.step_s / layers
        parts = math.ceil((self.done_s + now - self.resumed_at) / part_s)
        stop_at = max(now, self.resumed_at + parts * part_s - self.done_s)
        if stop_at >= self.ends_at:
            return False
        self.stop_at = stop_at
        return True

    def count(self, now: float, usage: BusyTimes) -> None:
        """Count the time since it was resumed; `now` is the clock's."""
        if now > self.resumed_real:
            self.real_s += now - self.resumed_real
            is_new, self.is_counted = not self.is_counted, True
            rows = self.run.batch.tokens
            usage.add(self.resumed_real, now, PREFILL, rows, is_new=is_new)
