"""TCP's congestion window where nobody keeps it open: what a burst after a quiet time has to wait.

A connection may have as many bytes on their way as its window, and the window doubles with every
round trip in which it was full (slow start). To fill a link it must be rate times round trip: 750
KB at 100 Mbps and 60 ms, where it starts from ten segments. Linux takes a window back in two ways.
After a pause it is halved for each retransmission timeout that the pause lasted
(`tcp_slow_start_after_idle`). And a sender that did not fill it for one timeout loses half of what
it did not use (RFC 7661), so a trickle of decode does not keep it open for the prompt that follows:
12.5 MB then take some 0.3 s longer than their bytes. MoLink's own links probe their rate instead
and are simulated chunk by chunk (`paced`).
"""

import math
from dataclasses import dataclass, field

__all__ = ["INITIAL_WINDOW_BYTES", "Window"]

INITIAL_WINDOW_BYTES = 10 * 1460
"""RFC 6928: ten segments of an Ethernet frame."""

TIMEOUT_BEYOND_ROUND_TRIP_S = 0.2
"""Linux retransmits at the earliest so long after a round trip (`TCP_RTO_MIN`)."""

HALVINGS_MAX = 64
"""Beyond that any window is at its start."""


@dataclass(slots=True)
class Window:
    """Of one connection."""

    _size_bytes: float = field(init=False, default=INITIAL_WINDOW_BYTES)
    _filled_at: float = field(init=False, default=0.0)
    """When it was last in use as a whole, or half of the rest was taken back."""
    _used_bytes: float = field(init=False, default=0.0)
    """The longest burst since."""
    _burst_bytes: float = field(init=False, default=0.0)
    """Sent without a pause."""
    _burst_until: float = field(init=False, default=0.0)

    def opening_s(
        self, size_bytes: float, now: float, rate_bytes_per_s: float, round_trip_s: float
    ) -> float:
        """How much longer than their time on the wire `size_bytes` take that are sent now."""
        if now > self._burst_until:
            self._burst_bytes = 0.0
            self._take_back(now, round_trip_s + TIMEOUT_BEYOND_ROUND_TRIP_S)
        self._burst_bytes += size_bytes
        waited_s = self._grow(rate_bytes_per_s, round_trip_s)
        self._burst_until = now + waited_s + size_bytes / rate_bytes_per_s
        self._used_bytes = max(self._used_bytes, self._burst_bytes)
        if self._burst_bytes >= self._size_bytes:
            self._filled_at, self._used_bytes = self._burst_until, 0.0
        return waited_s

    def _grow(self, rate_bytes_per_s: float, round_trip_s: float) -> float:
        """Round trips of the burst in which the wire waits for the window."""
        full_bytes = rate_bytes_per_s * round_trip_s
        left, waited_s = self._burst_bytes, 0.0
        while self._size_bytes < min(left, full_bytes):
            waited_s += round_trip_s - self._size_bytes / rate_bytes_per_s
            left -= self._size_bytes
            self._size_bytes *= 2
        return waited_s

    def _take_back(self, now: float, timeout_s: float) -> None:
        halvings = min(HALVINGS_MAX, math.floor((now - self._burst_until) / timeout_s))
        self._size_bytes = max(INITIAL_WINDOW_BYTES, self._size_bytes / 2**halvings)
        if now - self._filled_at >= timeout_s:
            used_bytes = max(INITIAL_WINDOW_BYTES, self._used_bytes)
            self._size_bytes = min(self._size_bytes, (self._size_bytes + used_bytes) / 2)
            self._filled_at, self._used_bytes = now, 0.0
