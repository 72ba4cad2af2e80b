"""Endings of requests within the last minute, counted by the second.

Cheap however many end: a minute is sixty counts, and no request is kept for it.
"""

from collections import deque
from dataclasses import dataclass, field

from molink.report.requests import EndedReport
from molink.serving.timeline import OVERLOADED, RequestTimeline

MINUTE_S = 60
"""Seconds over which endings are counted."""


@dataclass(slots=True)
class _Second:
    """Endings within one second."""

    number: int
    """The second, by the timelines' clock."""
    ended: int = 0
    refused: int = 0
    failed: int = 0


@dataclass(slots=True)
class Endings:
    """Count of the requests that ended within the last minute."""

    _seconds: deque[_Second] = field(default_factory=lambda: deque(maxlen=MINUTE_S))
    """Seconds within which requests ended, oldest first."""

    def ended(self, timeline: RequestTimeline) -> None:
        """Take a request into account that has ended."""
        number = int(timeline.finished_at or 0.0)
        if not self._seconds or self._seconds[-1].number < number:
            self._seconds.append(_Second(number))
        last = self._seconds[-1]
        last.ended += 1
        last.refused += timeline.finish_reason == OVERLOADED
        last.failed += timeline.finish_reason == "error"

    def report(self, now: float) -> EndedReport | None:
        """The counts; None while no request has ended at all."""
        if not self._seconds:
            return None
        recent = [one for one in self._seconds if one.number > now - MINUTE_S]
        return EndedReport(
            sum(one.ended for one in recent),
            sum(one.refused for one in recent),
            sum(one.failed for one in recent),
        )
