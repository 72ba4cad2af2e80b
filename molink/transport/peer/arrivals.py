"""How fast did bytes come? By one clock, without the start of the connection.

Both ends of a measurement count: who sends by the reports that it hears, who receives by what it
reads. TCP begins slowly, so the first third of the time says nothing about a line.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["REPORTS_MIN", "START_SHARE", "Arrivals"]

START_SHARE = 0.3
"""Of the time of sending: what is counted before is the start and does not count."""

REPORTS_MIN = 3
"""Fewer say nothing about a rate."""


@dataclass(slots=True)
class Arrivals:
    """Bytes in total, and when they had come."""

    clock: Callable[[], float]
    began_s: float
    counted: list[tuple[float, int]] = field(default_factory=list)

    @property
    def bytes_total(self) -> int:
        """So far."""
        return self.counted[-1][1] if self.counted else 0

    def note(self, bytes_total: int) -> None:
        """So many have come by now."""
        self.counted.append((self.clock(), bytes_total))

    @property
    def rate_bytes_per_s(self) -> float:
        """Between the end of the start and the last count; 0 where too little came."""
        if len(self.counted) < REPORTS_MIN:
            return 0.0
        last_s, last_bytes = self.counted[-1]
        start_s = self.began_s + START_SHARE * (last_s - self.began_s)
        first_s, first_bytes = next((at, n) for at, n in self.counted if at >= start_s)
        return (last_bytes - first_bytes) / (last_s - first_s) if last_s > first_s else 0.0
