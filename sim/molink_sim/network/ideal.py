"""A link whose order is perfect: strict priority in pieces of one quantum, at the true rate.

What `PacedLink` approaches, without chunks, windows and acknowledgements: a prompt's bytes cost an
event or two instead of a hundred. Decode that comes while prefill leaves waits for one piece, which
is what the pacer's window keeps standing in the queue, pushes the rest back by its own time on the
wire, and that is all. Prefill is never held back for long enough to need a turn of its own
(`StarvationGuard`), which is right where decode leaves the wire idle most of the time. Against the
paced link, at 20 to 400 Mbps: time per token 0.4 to 1.5 % less, time to first token 1.4 to 4.3 %
less, because probing and draining leave some of the wire unused.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from molink_scheduler.batch import DECODE, PREFILL, BatchClass
from molink_scheduler.link.facts import chunk_bytes_at
from molink_sim.clock import Clock
from molink_sim.network.line import Line
from molink_sim.network.link import Deliver, ForecastIgnored


@dataclass(slots=True)
class WaitingPrefill:
    """Message of a prompt that waits; the first one is on the wire whenever no decode is."""

    message: Any
    rows: int
    left_bytes: float


@dataclass(slots=True)
class IdealLink(ForecastIgnored):
    """Directed link that sends decode before prefill, at the true rate, in closed form."""

    clock: Clock
    line: Line
    deliver: Deliver
    _prefill: deque[WaitingPrefill] = field(init=False, default_factory=deque)
    _prefill_from: float = field(init=False, default=0.0)
    """Time since which, or from which on, the front of the line is on the wire."""
    _prefill_until: float = field(init=False, default=-math.inf)
    """Time at which the prefill's last byte leaves if no decode comes."""
    _decode_until: float = field(init=False, default=-math.inf)
    _quantum: tuple[float, float] = field(init=False, default=(0.0, 0.0))
    """The rate that was last asked for, and the seconds of a piece."""

    @property
    def rate_bytes_per_s(self) -> float:
        """The true rate of its wire."""
        return self.line.rate_at(self.clock.now)

    def offer(self, message: Any, batch_class: BatchClass, size_bytes: int, rows: int) -> None:
        """Send a message as soon as the order of this link lets it."""
        if batch_class is DECODE:
            self._send_decode(self.clock.now, message, size_bytes, rows)
        else:
            self._send_prefill(self.clock.now, WaitingPrefill(message, rows, size_bytes))

    def _send_decode(self, now: float, message: Any, size_bytes: int, rows: int) -> None:
        line = self.line
        start = self._decode_starts(now)
        finish = line.schedule.finish(start, size_bytes)
        self._decode_until = finish
        if finish == math.inf:
            return
        line.usage.add(start, finish, DECODE, rows, size_bytes)
        self.clock.at(line.arrival(finish), self.deliver, message)
        if self._prefill:
            self._push_back(start, finish)

    def _send_prefill(self, now: float, prefill: WaitingPrefill) -> None:
        self._prefill.append(prefill)
        if len(self._prefill) == 1:
            self._begin_front(max(now, self._decode_until))
            self._watch_front()

    def _decode_starts(self, now: float) -> float:
        """Start of a decode: after the one on the wire, else after a piece of prefill, else now."""
        if now < self._decode_until:
            return self._decode_until
        if not self._prefill or now <= self._prefill_from:
            return now
        return min(now + self._quantum_s(now), self._prefill_until)

    def _quantum_s(self, now: float) -> float:
        rate = max(1.0, self.line.rate_at(now))
        if rate != self._quantum[0]:
            self._quantum = rate, chunk_bytes_at(rate) / rate
        return self._quantum[1]

    def _push_back(self, start: float, finish: float) -> None:
        """Prefill stops at `start` and goes on at `finish`."""
        front = self._prefill[0]
        if start > self._prefill_from:
            self._count(front, self._prefill_from, start)
        front_done = start >= self._prefill_until
        self._prefill_from = max(finish, self._prefill_from)
        if not front_done:
            self._prefill_until = self.line.schedule.finish(finish, front.left_bytes)

    def _count(self, front: WaitingPrefill, start: float, end: float) -> None:
        carried = min(front.left_bytes, self.line.schedule.carried_bytes(start, end))
        front.left_bytes -= carried
        self.line.usage.add(start, end, PREFILL, front.rows, int(carried))

    def _begin_front(self, start: float) -> None:
        """The front of the line goes on the wire."""
        self._prefill_from = start
        self._prefill_until = self.line.schedule.finish(start, self._prefill[0].left_bytes)

    def _watch_front(self) -> None:
        """Plan the moment at which the front of the line leaves if no decode comes."""
        self.clock.at(self._prefill_until, self._front_left)

    def _front_left(self, _: None) -> None:
        """The front has left, unless decode pushed it back in the meantime."""
        self._settle(self.clock.now)
        if self._prefill:
            self._watch_front()

    def _settle(self, now: float) -> None:
        """Deliver what has left the wire by now, one after the other."""
        while self._prefill and (left_at := self._prefill_until) <= now:
            front = self._prefill.popleft()
            if front.left_bytes > 0 and self._prefill_from < left_at:
                self._count(front, self._prefill_from, left_at)
            self.clock.at(self.line.arrival(left_at), self.deliver, front.message)
            if self._prefill:
                self._begin_front(max(left_at, self._decode_until))
