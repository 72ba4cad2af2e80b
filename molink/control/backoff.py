"""Backoff: the wait before the next attempt. Pure."""

from dataclasses import dataclass
from random import Random


@dataclass(slots=True)
class Backoff:
    """Waits that double from `first_s` to `longest_s`, each drawn from its upper half.

    A thousand agents that lose their broker at one moment should not all come back at another.
    """

    first_s: float
    longest_s: float
    random: Random
    failures: int = 0

    def next_s(self) -> float:
        """The wait after one more failure."""
        full_s = min(self.longest_s, self.first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return full_s * self.random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin again with the shortest wait, after a success."""
        self.failures = 0
