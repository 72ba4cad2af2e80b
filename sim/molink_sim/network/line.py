"""A wire: bytes go in one after the other, at its rate, and come out a delay later, in order.

Everything is known in advance, so nothing is simulated per packet: whoever sends is told at once
when the last byte will have left and when it will have arrived. A wire shares its node's upload
with the others that leave the node. Loss is lateness: TCP sends again what was lost, one round trip
later, and holds back what came after it.
"""

import math
import random
from dataclasses import dataclass, field
from typing import Protocol

from molink_scheduler.batch import BatchClass
from molink_sim.network.rates import RateSchedule
from molink_sim.network.window import Window
from molink_sim.scenario import LinkSpec
from molink_sim.usage import Usage

__all__ = ["Line", "Trouble", "Uplink"]


class Trouble(Protocol):
    """What goes wrong on a wire for a while: `molink_sim.faults`."""

    def late_s(self, now: float) -> float:
        """By how much more than the delay those bytes are late that leave now."""

    def again_s(self, now: float) -> float | None:
        """After which time what arrives now arrives once more; None: it does not."""


@dataclass(slots=True)
class Uplink:
    """A node's upload: all that leaves the node goes through it in order of sending."""

    rate_bytes_per_s: float
    busy_until: float = field(init=False, default=-math.inf)

    def finish(self, size_bytes: int, now: float) -> float:
        """When bytes sent now have left the node."""
        self.busy_until = max(now, self.busy_until) + size_bytes / self.rate_bytes_per_s
        return self.busy_until


@dataclass(slots=True)
class Line:
    """One directed wire."""

    spec: LinkSpec
    usage: Usage
    random: random.Random
    uplink: Uplink | None = None
    delays_per_message: float = 1.0
    """`SystemSpec.hop_one_way_delays`."""
    software_s: float = 0.0
    trouble: Trouble | None = None
    window: Window | None = None
    """Of the one connection over it; None: whoever sends keeps it open."""
    schedule: RateSchedule = field(init=False)
    busy_until: float = field(init=False, default=-math.inf)
    _last_arrival: float = field(init=False, default=-math.inf)
    _is_even: bool = field(init=False)
    """Neither jitter nor loss."""
    _is_plain: bool = field(init=False)
    """Nor any change."""
    _delay_s: float = field(init=False)
    """Of a wire that is plain."""

    def __post_init__(self) -> None:
        self.schedule = RateSchedule.of(self.spec)
        self._is_even = not (self.spec.jitter_s or self.spec.loss)
        self._is_plain = self._is_even and not self.spec.changes and self.spec.mbps > 0
        self._delay_s = self.spec.one_way_s * self.delays_per_message

    def rate_at(self, now: float) -> float:
        """Bytes per second that a sender gets; 0 while the wire is cut."""
        rate = self.schedule.rate_at(now)
        return rate if self.uplink is None else min(rate, self.uplink.rate_bytes_per_s)

    def carry(self, size_bytes: int, now: float, batch_class: BatchClass, rows: int) -> float:
        """Append bytes to what goes over the wire; when the last of them arrives."""
        start = max(now, self.busy_until)
        start += self.opening_s(size_bytes, start)
        finish = self.schedule.finish(start, size_bytes)
        if self.uplink is not None:
            finish = max(finish, self.uplink.finish(size_bytes, now))
        self.busy_until = finish
        if finish == math.inf:
            return finish
        self.usage.add(start, finish, batch_class, rows, size_bytes)
        return self.arrival(finish)

    def opening_s(self, size_bytes: float, start: float) -> float:
        """How long bytes that go from `start` on wait until the connection's window is open."""
        rate = self.rate_at(start)
        if self.window is None or rate <= 0.0:
            return 0.0
        return self.window.opening_s(size_bytes, start, rate, 2 * self.schedule.one_way_at(start))

    def arrival(self, left_at: float) -> float:
        """When bytes arrive that have left the wire's near end."""
        if self._is_plain and self.trouble is None:
            at = left_at + self._delay_s + self.software_s
            if at > self._last_arrival:
                self._last_arrival = at
            return self._last_arrival
        one_way_s = self.schedule.one_way_at(left_at)
        at = left_at + one_way_s * self.delays_per_message + self.software_s
        if not self._is_even:
            at += self.random.uniform(0.0, self.spec.jitter_s)
            at += 2 * one_way_s if self.random.random() < self.spec.loss else 0.0
        if self.trouble is not None:
            at += self.trouble.late_s(left_at)
        self._last_arrival = max(self._last_arrival, self.schedule.after_cut(at))
        return self._last_arrival

    def arrives_from(self, left_at: float) -> float:
        """The earliest moment at which bytes can arrive that leave a plain wire then or later."""
        return left_at + self._delay_s + self.software_s

    def acknowledged_at(self, now: float) -> float:
        """When an acknowledgement given at the far end now is back."""
        return self.schedule.after_cut(now + self.schedule.one_way_at(now))
