"""An ideal link to a stage that looks ahead (`molink_sim.ring.foresight`).

It delivers nothing. It lists what arrives when, as soon as that is certain, and tells the far end
when to look; and what is known to find nothing ahead of it the far end may take at once. Since one
stage alone offers, it may offer ahead of time: at the end of a step that has just begun.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from molink_scheduler.batch import DECODE, BatchClass
from molink_sim.network.ideal import IdealLink

__all__ = ["FarEnd", "ForeseenLink"]


class FarEnd(Protocol):
    """Who looks ahead."""

    def foresee(self, message: Any, at: float) -> bool:
        """A message will arrive at `at`, and nothing before it; True: it has been dealt with."""

    def expect(self, at: float) -> None:
        """Something may arrive at `at`, and nothing before it: look then."""


@dataclass(slots=True)
class ForeseenLink(IdealLink):
    """One directed link of one delay, on which nothing is lost."""

    far_end: FarEnd = field(init=False)
    rate: float = field(init=False)
    """Bytes per second."""
    arriving: deque[tuple[float, Any]] = field(init=False, default_factory=deque)
    """All that has left the wire, or is certain to, and when it arrives: in that order."""

    def __post_init__(self) -> None:
        self.rate = self.line.schedule.rate_at(0.0)

    def offer_at(
        self, now: float, message: Any, batch_class: BatchClass, size_bytes: int, rows: int
    ) -> None:
        """As `IdealLink` says."""
        if self._prefill and self._prefill_until <= now:
            self._settle(now)
        IdealLink.offer_at(self, now, message, batch_class, size_bytes, rows)

    def send_decode(self, now: float, message: Any, size_bytes: int, rows: int) -> None:
        """`offer_at` of decode; where no prefill waits, in one go."""
        if self._prefill:
            if self._prefill_until <= now:
                self._settle(now)
            self._send_decode(now, message, size_bytes, rows)
            return
        line = self.line
        start = now if now >= self._decode_until else self._decode_until
        self._decode_until = finish = start + size_bytes / self.rate
        line.usage.add(start, finish, DECODE, rows, size_bytes)
        arrives = line.arrival(finish)
        if self.arriving or not self.far_end.foresee(message, arrives):
            self.arriving.append((arrives, message))
            self.far_end.expect(arrives)

    def settle(self, now: float) -> float:
        """List what is certain by now. Until the moment that comes back nothing else arrives."""
        if self._prefill and self._prefill_until <= now:
            self._settle(now)
        return self.line.arrives_from(now)

    def next_arrival(self) -> float:
        """Nothing of what was offered arrives before this moment."""
        if self.arriving:
            return self.arriving[0][0]
        return self.line.arrives_from(self._prefill_until) if self._prefill else math.inf

    def _carried(self, message: Any, arrives: float) -> None:
        if self.arriving or not self.far_end.foresee(message, arrives):
            self.arriving.append((arrives, message))
            self.far_end.expect(arrives)

    def _watch_front(self) -> None:
        self.far_end.expect(self.line.arrives_from(self._prefill_until))
