"""One direction of an emulated link, as arithmetic: when does a piece of bytes come out at the
far end?

The wire carries one byte after the other at the schedule's rate, then each is delayed; the
bytes that wait for the wire are the router's queue. Pure, so that its numbers can be tested
without a clock: times are seconds since the emulator started.
"""

from dataclasses import dataclass, field

from molink.config.link_schedule import LinkSchedule

__all__ = ["ShapedPipe"]


@dataclass(slots=True)
class ShapedPipe:
    """Rate, delay and bounded queue of one direction."""

    schedule: LinkSchedule
    _wire_free_at: float = field(init=False, default=0.0)
    _last_delivery_at: float = field(init=False, default=0.0)
    bytes_total: int = field(init=False, default=0)

    def deliver_at(self, size: int, now: float) -> float:
        """When `size` bytes handed over `now` have arrived: behind what waits, at the rate,
        delayed.

        Never before what was handed over earlier, even where the delay shrinks.
        """
        self._wire_free_at = self.schedule.wire_done_at(max(self._wire_free_at, now), size)
        delay_s = self.schedule.step_at(self._wire_free_at).one_way_s
        self._last_delivery_at = max(self._last_delivery_at, self._wire_free_at + delay_s)
        self.bytes_total += size
        return self._last_delivery_at

    def queued_bytes(self, now: float) -> float:
        """Bytes that wait for the wire, at the present rate."""
        return max(0.0, self._wire_free_at - now) * self.schedule.step_at(now).bytes_per_s

    def room_in_s(self, now: float) -> float:
        """How long until the queue is below its limit; 0 when there is room."""
        shape = self.schedule.step_at(now)
        excess_bytes = self.queued_bytes(now) - shape.queue_bytes
        return max(0.0, excess_bytes / shape.bytes_per_s)
