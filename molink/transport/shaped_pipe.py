"""One direction of an emulated link, as arithmetic: when does a piece of bytes come out at the
far end?

A token bucket of the link's rate, then a fixed delay; the bytes that wait for the bucket are
the router's queue. Pure, so that its numbers can be tested without a clock.
"""

from dataclasses import dataclass, field

from molink.config.link_shape import LinkShape

__all__ = ["ShapedPipe"]


@dataclass(slots=True)
class ShapedPipe:
    """Rate, delay and bounded queue of one direction."""

    shape: LinkShape
    _wire_free_at: float = field(init=False, default=0.0)
    bytes_total: int = field(init=False, default=0)

    def deliver_at(self, size: int, now: float) -> float:
        """When `size` bytes handed over `now` have arrived: behind what waits, at the rate,
        delayed."""
        self._wire_free_at = max(self._wire_free_at, now) + size / self.shape.bytes_per_s
        self.bytes_total += size
        return self._wire_free_at + self.shape.one_way_s

    def queued_bytes(self, now: float) -> float:
        """Bytes that wait for the wire."""
        return max(0.0, self._wire_free_at - now) * self.shape.bytes_per_s

    def room_in_s(self, now: float) -> float:
        """How long until the queue is below its limit; 0 when there is room."""
        excess = self.queued_bytes(now) - self.shape.queue_bytes
        return max(0.0, excess / self.shape.bytes_per_s)
