"""Links of other systems: messages go to the connection as they come, and nothing acknowledges.

`FifoLink`: one connection, in order (the paper's Helix). `FairLink`: each message has a connection
of its own and TCP shares the wire among them (its vLLM), as processor sharing. `SerialLink`: the
sender keeps the order itself and hands over the next piece when the last has left (the paper's own
Algorithm 1, or any of our queues without the pacer).
"""

import math
from dataclasses import dataclass, field
from typing import Any

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import chunk_bytes_at
from molink_scheduler.link.transmission import LinkView, Transfer, TransmissionQueue
from molink_sim.clock import Clock
from molink_sim.network.line import Line
from molink_sim.network.link import Deliver, ForecastIgnored, Sent

RATE_MIN_BYTES_PER_S = 1.0
"""Rate of a link that is cut, for the chunk rules: theirs are above 0."""


@dataclass(slots=True)
class FifoLink(ForecastIgnored):
    """Link that carries whole messages in order of offer."""

    clock: Clock
    line: Line
    deliver: Deliver

    @property
    def rate_bytes_per_s(self) -> float:
        """The true rate of its wire."""
        return self.line.rate_at(self.clock.now)

    def offer(self, message: Any, batch_class: BatchClass, size_bytes: int, rows: int) -> None:
        """Send a message as soon as the order of this link lets it."""
        arrival = self.line.carry(size_bytes, self.clock.now, batch_class, rows)
        self.clock.at(arrival, self.deliver, message)


@dataclass(slots=True, eq=False)
class _Sharing:
    """Message that takes part of the wire."""

    number: int
    """Number that rises with every offer."""
    message: Any
    batch_class: BatchClass
    rows: int
    left_bytes: float
    stream: tuple[BatchClass, int] | None
    """Stream whose earlier messages it must not overtake; None: it may overtake all."""


@dataclass(slots=True)
class FairLink(ForecastIgnored):
    """Link on which every message that waits gets the same share of the wire.

    What belongs to one stream (the spans of prompts, or one micro-batch) is delivered in order of
    offer: a message that is done early waits for those of its stream that were offered before.
    """

    clock: Clock
    line: Line
    deliver: Deliver
    _sharing: list[_Sharing] = field(init=False, default_factory=list)
    _done: list[_Sharing] = field(init=False, default_factory=list)
    """Off the wire, behind one of their stream that is not."""
    _offers: int = field(init=False, default=0)
    _advanced_at: float = field(init=False, default=0.0)
    _due_at: float = field(init=False, default=math.inf)

    @property
    def rate_bytes_per_s(self) -> float:
        """The true rate of its wire."""
        return self.line.rate_at(self.clock.now)

    def offer(self, message: Any, batch_class: BatchClass, size_bytes: int, rows: int) -> None:
        """Send a message as soon as the order of this link lets it."""
        self._offers += 1
        joining = _Sharing(self._offers, message, batch_class, rows, size_bytes, _stream(message))
        now = self.clock.now
        opening_s = self.line.opening_s(size_bytes, now)
        if opening_s:
            self.clock.at(now + opening_s, self._join, joining)
        else:
            self._join(joining)

    def _join(self, joining: _Sharing) -> None:
        self._advance()
        self._sharing.append(joining)
        self._plan()

    def _advance(self) -> None:
        now = self.clock.now
        if self._sharing and now > self._advanced_at:
            carried = self.line.schedule.carried_bytes(self._advanced_at, now)
            for sharing in self._sharing:
                sharing.left_bytes -= carried / len(self._sharing)
            first = self._sharing[0]
            self.line.usage.add(
                self._advanced_at, now, first.batch_class, first.rows, round(carried)
            )
        self._advanced_at = now

    def _plan(self) -> None:
        """Wake when the smallest remainder has left, if nothing joins before."""
        if self._sharing:
            least = min(sharing.left_bytes for sharing in self._sharing)
            total = max(0.0, least) * len(self._sharing)
            self._due_at = self.line.schedule.finish(self.clock.now, total)
            self.clock.at(self._due_at, self._ended, self._due_at)

    def _ended(self, due_at: float) -> None:
        if due_at != self._due_at:
            return  # Another message joined, and a later moment was planned.
        now = self.clock.now
        self._advance()
        least = min(sharing.left_bytes for sharing in self._sharing)
        for sharing in [waiting for waiting in self._sharing if waiting.left_bytes <= least]:
            self._sharing.remove(sharing)
            self._done.append(sharing)
        self._due_at = math.inf
        self._hand_over(now)
        self._plan()

    def _hand_over(self, now: float) -> None:
        """Deliver what is done, unless one of its stream that was offered before is not."""
        under_way = {sharing.stream: sharing.number for sharing in reversed(self._sharing)}
        self._done.sort(key=lambda sharing: sharing.number)
        for sharing in list(self._done):
            if sharing.stream is None or under_way.get(sharing.stream, math.inf) > sharing.number:
                self._done.remove(sharing)
                self.clock.at(self.line.arrival(now), self.deliver, sharing.message)


def _stream(message: Any) -> tuple[BatchClass, int] | None:
    what = message.what if isinstance(message, Sent) else message
    batch = getattr(what, "batch", what)
    micro_batch = getattr(batch, "micro_batch", None)
    return None if micro_batch is None else (batch.batch_class, micro_batch)


@dataclass(slots=True)
class SerialLink:
    """Link that asks a queue of the core for the next piece whenever the last one has left."""

    clock: Clock
    line: Line
    queue: TransmissionQueue
    deliver: Deliver
    _next_decode_due_at: float | None = field(init=False, default=None)
    _messages: dict[int, tuple[Any, int]] = field(init=False, default_factory=dict)
    _next_transfer: int = field(init=False, default=0)
    _is_busy: bool = field(init=False, default=False)

    @property
    def rate_bytes_per_s(self) -> float:
        """The true rate of its wire."""
        return self.line.rate_at(self.clock.now)

    def set_next_decode_due(self, due_at: float | None) -> None:
        """Remember when decode is expected, for the just-in-time rule."""
        self._next_decode_due_at = due_at

    def set_decode_result_due(self, due_at: float) -> None:
        """The same, by the step that is under way; a piece on its way is not called back."""
        self._next_decode_due_at = due_at

    def offer(self, message: Any, batch_class: BatchClass, size_bytes: int, rows: int) -> None:
        """Send a message as soon as the order of this link lets it."""
        transfer = Transfer(self._next_transfer, batch_class, size_bytes)
        self._messages[self._next_transfer] = (message, rows)
        self._next_transfer += 1
        self.queue.offer(transfer)
        if not self._is_busy:
            self._send_next()

    def _send_next(self, _: None = None) -> None:
        now = self.clock.now
        rate = max(RATE_MIN_BYTES_PER_S, self.rate_bytes_per_s)
        due_at = self._next_decode_due_at
        chunk = self.queue.next_chunk(
            now, LinkView(rate, chunk_bytes_at(rate), next_decode_due_at=due_at)
        )
        self._is_busy = chunk is not None
        if chunk is None:
            return
        message, rows = self._messages[chunk.transfer_id]
        arrival = self.line.carry(chunk.size_bytes, now, chunk.batch_class, rows)
        self.clock.at(self.line.busy_until, self._send_next)
        if chunk.last:
            del self._messages[chunk.transfer_id]
            self.clock.at(arrival, self.deliver, message)
