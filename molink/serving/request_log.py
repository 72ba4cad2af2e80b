"""Requests that are live, and the last that have ended, with what became of each (`timeline`)."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from molink.errors import ErrorGuard, MolinkError, OverloadedError
from molink.report.requests import RequestsReport
from molink.serving.endings import Endings
from molink.serving.goodput import Goodput
from molink.serving.timeline import OVERLOADED, RequestTimeline

ENDED_MAX = 200
"""Ended requests that are kept: what an operator scrolls through; a minute of a busy ring."""

LIVE_MAX = 16_384
"""Requests that are followed at a time: four rings full. One beyond it is served, and not shown."""

Watcher = Callable[[RequestTimeline], None]


@dataclass(slots=True)
class RequestLog:
    """Timelines of the requests that are live, and of the last that have ended."""

    clock: Callable[[], float] = time.monotonic
    _live: dict[int, RequestTimeline] = field(default_factory=dict)
    """Live timelines by identity, in the order in which they came."""
    _ended: deque[RequestTimeline] = field(default_factory=lambda: deque(maxlen=ENDED_MAX))
    goodput: Goodput = field(default_factory=Goodput)
    """Outcomes of all that had targets."""
    endings: Endings = field(default_factory=Endings)
    """Endings of the last minute."""
    _watchers: list[Watcher] = field(init=False)
    _guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Telling of a request's end"))

    def __post_init__(self) -> None:
        self._watchers = [self.goodput.ended, self.endings.ended]

    @property
    def live(self) -> list[RequestTimeline]:
        """Timelines of requests that wait or run, oldest first."""
        return list(self._live.values())

    @property
    def ended(self) -> list[RequestTimeline]:
        """The last that have ended, newest first."""
        return list(reversed(self._ended))

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` called with each timeline that has ended; it must be quick."""
        self._watchers.append(watcher)

    @contextmanager
    def following(self, timeline: RequestTimeline) -> Iterator[None]:
        """Keep a timeline as live during the block, whose end is its end."""
        if len(self._live) < LIVE_MAX:
            self._live[id(timeline)] = timeline
        try:
            yield
            timeline.finished("error", self.clock(), "It ended without its last token.")
        except (GeneratorExit, asyncio.CancelledError):
            timeline.finished("cancelled", self.clock())
            raise
        except Exception as error:  # Whatever it was: it is noted here, and raised again.
            reason = OVERLOADED if isinstance(error, OverloadedError) else "error"
            timeline.finished(reason, self.clock(), str(error) or type(error).__name__)
            raise
        finally:
            self._live.pop(id(timeline), None)
            self._ended.append(timeline)
            for watcher in self._watchers:
                with self._guard:
                    watcher(timeline)

    def refused(self, timeline: RequestTimeline, error: MolinkError) -> None:
        """Note a request as ended that was refused before anybody followed it."""
        with suppress(type(error)), self.following(timeline):
            raise error

    def report(self) -> RequestsReport:
        """Report on all requests: live ones first, then ended ones, the newest first."""
        now, timelines = self.clock(), (*self.live, *self.ended)
        return RequestsReport(tuple(timeline.report(now) for timeline in timelines))
