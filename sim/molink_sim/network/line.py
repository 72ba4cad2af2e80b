"""A wire: bytes go in one after the other, at its rate, and come out a delay later, in order.

Everything is known in advance, so nothing is simulated per packet: `carry` answers at once when the
last byte will have arrived. A wire shares its node's upload with the others that leave the node.
Loss is lateness: TCP sends again what was lost, one round trip later, and holds back what came
after it.
"""

import bisect
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from molink_scheduler.batch import BatchClass
from molink_sim.outcome import BusyTimes
from molink_sim.scenario import LinkSpec

BYTES_PER_MEGABIT = 1e6 / 8

INITIAL_WINDOW_BYTES = 10 * 1460
"""RFC 6928: ten segments of an Ethernet frame."""

TIMEOUT_BEYOND_ROUND_TRIP_S = 0.2
"""Linux retransmits at the earliest so long after a round trip (`TCP_RTO_MIN`)."""

HALVINGS_MAX = 64
"""Beyond that any window is at its start."""


class RateSchedule:
    """Rate and delay of a link over time: constant, changing in steps, or cut for a while.

    Given as steps of (from when, bytes per second, one-way delay), the first from the beginning.
    """

    __slots__ = ("_last", "_one_way_s", "_rates", "_starts")

    def __init__(self, steps: Sequence[tuple[float, float, float]]) -> None:
        self._starts = [0.0, *(start for start, _, _ in steps[1:])]
        self._rates = [rate for _, rate, _ in steps]
        self._one_way_s = [one_way_s for _, _, one_way_s in steps]
        self._last = len(steps) - 1

    @classmethod
    def of(cls, spec: LinkSpec) -> "RateSchedule":
        """Schedule of a link as the scenario describes it."""
        steps = [(0.0, spec.mbps, spec.one_way_s)]
        steps += [(change.at_s, change.mbps, change.one_way_s) for change in spec.changes]
        return cls([(at, mbps * BYTES_PER_MEGABIT, delay) for at, mbps, delay in steps])

    def rate_at(self, when: float) -> float:
        """Bytes per second; 0 while the link is cut."""
        return self._rates[self._step(when) if self._last else 0]

    def one_way_at(self, when: float) -> float:
        """Seconds from the end of the wire to the far end."""
        return self._one_way_s[self._step(when) if self._last else 0]

    def finish(self, start: float, size_bytes: float) -> float:
        """Time at which the last of `size_bytes` that go from `start` on has left; never:
        infinity."""
        if not self._last:
            return start + size_bytes / self._rates[0] if self._rates[0] else math.inf
        step, at, left = self._step(start), start, size_bytes
        while step < self._last:
            possible = (self._starts[step + 1] - at) * self._rates[step]
            if left <= possible and self._rates[step]:
                break
            step, at, left = step + 1, self._starts[step + 1], left - possible
        return at + left / self._rates[step] if self._rates[step] else math.inf

    def carried_bytes(self, start: float, end: float) -> float:
        """Bytes that leave between two moments if there is always something to send."""
        if not self._last:
            return (end - start) * self._rates[0]
        total, at, step = 0.0, start, self._step(start)
        while step < self._last and self._starts[step + 1] < end:
            total += (self._starts[step + 1] - at) * self._rates[step]
            step, at = step + 1, self._starts[step + 1]
        return total + (end - at) * self._rates[step]

    def after_cut(self, when: float) -> float:
        """`when`, or for what would arrive during a cut one delay after its end: TCP sends again
        what was lost. Infinity when the cut has no end."""
        if not self._last:
            return when if self._rates[0] else math.inf
        step = self._step(when)
        if self._rates[step]:
            return when
        while step < self._last and not self._rates[step]:
            step += 1
        return self._starts[step] + self._one_way_s[step] if self._rates[step] else math.inf

    def _step(self, when: float) -> int:
        return max(0, bisect.bisect_right(self._starts, when) - 1) if self._last else 0


@dataclass(slots=True)
class Window:
    """TCP's congestion window where nothing keeps it open: what a burst after a pause waits for.

    A connection may have as many bytes on their way as its window, and the window doubles with
    every round trip in which it was full (slow start). To fill a link it must be rate times round
    trip: 750 KB at 100 Mbps and 60 ms, where it starts from ten segments. Linux takes a window back
    in two ways. After a pause it is halved for each retransmission timeout that the pause lasted
    (`tcp_slow_start_after_idle`). And a sender that did not fill it for one timeout loses half of
    what it did not use (RFC 7661), so a trickle of decode does not keep it open for the prompt that
    follows: 12.5 MB then take some 0.3 s longer than their bytes. MoLink's own links probe their
    rate instead and are simulated chunk by chunk (`paced`).
    """

    _size_bytes: float = field(init=False, default=INITIAL_WINDOW_BYTES)
    _filled_at: float = field(init=False, default=0.0)
    """Time at which it was last in use as a whole, or half of the rest was taken back."""
    _used_bytes: float = field(init=False, default=0.0)
    """Bytes of the longest burst since then."""
    _burst_bytes: float = field(init=False, default=0.0)
    """Bytes sent without a pause."""
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


class Trouble(Protocol):
    """Fault on a wire for a while (`molink_sim.faults`)."""

    def late_s(self, now: float) -> float:
        """Seconds by which bytes that leave now are late, beyond the delay."""

    def again_s(self, now: float) -> float | None:
        """Seconds after which what arrives now arrives once more; None: it does not."""

    def acknowledged_at(self, when: float) -> float:
        """Return of an acknowledgement that without the trouble would be back at `when`."""


@dataclass(slots=True)
class Uplink:
    """Upload of a node: all that leaves the node goes through it in order of sending."""

    rate_bytes_per_s: float
    busy_until: float = field(init=False, default=-math.inf)

    def finish(self, size_bytes: int, now: float) -> float:
        """Time at which bytes sent now have left the node."""
        self.busy_until = max(now, self.busy_until) + size_bytes / self.rate_bytes_per_s
        return self.busy_until


@dataclass(slots=True)
class Line:
    """Directed wire between two nodes."""

    spec: LinkSpec
    usage: BusyTimes
    random: random.Random
    uplink: Uplink | None = None
    delays_per_message: float = 1.0
    """One-way delays of a message, as `SystemSpec.hop_one_way_delays`."""
    software_s: float = 0.0
    trouble: Trouble | None = None
    window: Window | None = None
    """Window of the one connection over it; None: its sender keeps it open."""
    schedule: RateSchedule = field(init=False)
    busy_until: float = field(init=False, default=-math.inf)
    _last_arrival: float = field(init=False, default=-math.inf)
    _is_even: bool = field(init=False)
    """Neither jitter nor loss."""
    _is_plain: bool = field(init=False)
    """Nor any change."""
    _delay_s: float = field(init=False)
    """Delay of a wire that is plain."""
    _rate: float = field(init=False)
    """Bytes per second of a wire that is plain."""

    def __post_init__(self) -> None:
        self.schedule = RateSchedule.of(self.spec)
        self._is_even = not (self.spec.jitter_s or self.spec.loss)
        self._is_plain = self._is_even and not self.spec.changes and self.spec.mbps > 0
        self._delay_s = self.spec.one_way_s * self.delays_per_message
        self._rate = self.schedule.rate_at(0.0)

    def rate_at(self, now: float) -> float:
        """Bytes per second that a sender gets; 0 while the wire is cut."""
        rate = self._rate if self._is_plain else self.schedule.rate_at(now)
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
        """Arrival of bytes that have left the wire's near end."""
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

    def acknowledged_at(self, now: float) -> float:
        """Time at which an acknowledgement given at the far end now is back."""
        back_at = self.schedule.after_cut(now + self.schedule.one_way_at(now))
        return back_at if self.trouble is None else self.trouble.acknowledged_at(back_at)
