"""When the tokens of one answer came, as users count: from the request's arrival."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Stopwatch"]

DIGITS = 6
"""Microseconds; more digits would be noise in every event."""


@dataclass(slots=True)
class Stopwatch:
    """Arrival, first and last token of one sequence."""

    now_s: Callable[[], float]
    arrived_s: float
    tokens: int = 0
    first_s: float | None = None
    last_s: float = 0.0

    def tokens_came(self, count: int) -> None:
        """Take note of `count` tokens that came now."""
        self.tokens += count
        self.last_s = self.now_s()
        if self.first_s is None:
            self.first_s = self.last_s

    def timing(self) -> dict[str, float | None]:
        """`tpot_s` is the mean time between tokens after the first one, null for a single token."""
        if self.first_s is None:
            return {"ttft_s": None, "tpot_s": None, "total_s": None}
        between = (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None
        return {
            "ttft_s": round(self.first_s - self.arrived_s, DIGITS),
            "tpot_s": None if between is None else round(between, DIGITS),
            "total_s": round(self.last_s - self.arrived_s, DIGITS),
        }
