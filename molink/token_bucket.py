"""Token bucket, a rate limit. Pure: time is an argument, in seconds that only go forward."""

from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """Token bucket: `rate_per_s` on average and `burst` at once, of messages, bytes, anything.

    What has come anyway is spent too, and the level falls below zero: how far shows by how much
    somebody exceeds the rate.
    """

    rate_per_s: float
    burst: float
    _level: float = 0.0
    _at_s: float = float("-inf")
    """Time of the level; infinitely long ago at first, so that the bucket is full."""

    def level(self, now_s: float) -> float:
        """What may be spent now; below zero, what was spent too much."""
        if now_s > self._at_s:
            grown = self._level + (now_s - self._at_s) * self.rate_per_s
            self._level, self._at_s = min(self.burst, grown), now_s
        return self._level

    def spend(self, amount: float, now_s: float) -> None:
        """Take so much, whether it is there or not."""
        self._level = self.level(now_s) - amount

    def wait_s(self, now_s: float) -> float:
        """Seconds until nothing is spent too much; 0: now."""
        return max(0.0, -self.level(now_s)) / self.rate_per_s
