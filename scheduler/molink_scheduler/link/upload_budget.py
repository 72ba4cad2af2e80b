"""Upload cap of one node: one budget for all links that leave it, activations included.

A token bucket that fills at the cap and holds 40 ms of it: no second, wherever it begins, carries
more than 1.04 times the cap. Prefill leaves the lower half of the bucket alone, so
that a decode step finds 20 ms of upload waiting for it however hard prefill pushes, and what it
takes there prefill pays back by waiting. Spare bytes, which no user waits for, leave three quarters
alone: prefill finds 10 ms of upload waiting however hard they push.

Rejected: a share of the cap for each link. A node's links are rarely busy at the same time, so that
fixed shares waste most of a small uplink. Rejected: pacing each second's average; it allows two
seconds' worth within one second that begins in the middle.
"""

import math
from dataclasses import dataclass, field

BUCKET_S = 0.040
"""What may go at once, in time at the cap. The promise is 5 % in any second; the rest covers the
frames' headers, which senders do not always count."""

URGENT_RESERVE_SHARE = 0.5
"""Part of the bucket that only urgent bytes may take."""

SPARE_RESERVE_SHARE = 0.75
"""Part of the bucket that spare bytes may not take: the last quarter fills only while nobody else
sends for 30 ms."""

UNLIMITED_BYTES = 1 << 40
"""What may go without a cap: more than anyone sends at once."""


def check_cap(cap_bytes_per_s: float, needed_bytes_per_s: float) -> None:
    """Raise ValueError, with the number that is needed, when one decode stream does not fit."""
    if not (math.isfinite(cap_bytes_per_s) and cap_bytes_per_s >= needed_bytes_per_s):
        raise ValueError(
            f"an upload cap of {cap_bytes_per_s * 8e-6:g} Mbps is too low: one decode stream "
            f"needs {needed_bytes_per_s * 8e-6:.3g} Mbps; raise the cap to at least that"
        )


@dataclass(slots=True)
class UploadBudget:
    """Token bucket that holds a node's links to its upload cap."""

    cap_bytes_per_s: float | None
    """None: no cap."""
    _tokens: float = field(init=False)
    _filled_at: float = field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        self.set_cap(self.cap_bytes_per_s)

    def set_cap(self, cap_bytes_per_s: float | None) -> None:
        """Another cap from now on, with a full bucket. Raises ValueError for one that is none."""
        cap = cap_bytes_per_s
        if cap is not None and not (math.isfinite(cap) and cap > 0):
            raise ValueError(f"an upload cap must be above 0 bytes per second, got {cap}")
        self.cap_bytes_per_s = cap
        self._tokens = self._bucket_bytes

    def sendable_bytes_max(self, *, urgent: bool = False, spare: bool = False) -> int:
        """The most that `sendable_bytes` ever answers; a larger transfer must go in pieces."""
        if self.cap_bytes_per_s is None:
            return UNLIMITED_BYTES
        return max(1, int(self._bucket_bytes - self._reserve_bytes(urgent, spare)))

    def sendable_bytes(self, now: float, *, urgent: bool = False, spare: bool = False) -> int:
        """Bytes that may leave now."""
        if self.cap_bytes_per_s is None:
            return UNLIMITED_BYTES
        return max(0, int(self._tokens_at(now) - self._reserve_bytes(urgent, spare)))

    def on_sent(self, size_bytes: int, now: float) -> None:
        """Take bytes that went out; more than `sendable_bytes` said is waited for afterwards."""
        if self.cap_bytes_per_s is None:
            return
        self._tokens = self._tokens_at(now) - size_bytes
        self._filled_at = max(self._filled_at, now)

    def sendable_at(
        self, size_bytes: int, now: float, *, urgent: bool = False, spare: bool = False
    ) -> float:
        """Time when `size_bytes`, or as much as ever goes at once, may go; `now` when they may."""
        if self.cap_bytes_per_s is None:
            return now
        whole_byte = size_bytes + 1  # rounding must not leave the caller one byte short
        wanted = min(whole_byte, self.sendable_bytes_max(urgent=urgent, spare=spare))
        missing = wanted + self._reserve_bytes(urgent, spare) - self._tokens_at(now)
        return now + max(0.0, missing) / self.cap_bytes_per_s

    @property
    def _bucket_bytes(self) -> float:
        return BUCKET_S * (self.cap_bytes_per_s or 0.0)

    def _reserve_bytes(self, urgent: bool, spare: bool) -> float:
        share = SPARE_RESERVE_SHARE if spare else URGENT_RESERVE_SHARE
        return 0.0 if urgent else share * self._bucket_bytes

    def _tokens_at(self, now: float) -> float:
        """The bucket's content; a clock that steps back fills nothing."""
        if self._filled_at == -math.inf:
            return self._tokens
        gained = max(0.0, now - self._filled_at) * (self.cap_bytes_per_s or 0.0)
        return min(self._bucket_bytes, self._tokens + gained)
