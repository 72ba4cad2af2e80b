"""A link as it ships: the core's `LinkSender` over a wire, with acknowledgements that travel back.

The part of `molink.transport` (`PacedLink`, `LinkThread`) that has no bytes to move: chunks leave
when the core says so, the far end acknowledges each, and the sender wakes when the core asks for
it. A connection that is reset loses what is under way; the next one repeats it.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import CAUTIOUS, LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.sender import LinkSender
from molink_scheduler.link.transmission import Chunk, Transfer, TransmissionQueue
from molink_sim.clock import Clock
from molink_sim.network.line import Line
from molink_sim.network.link import Deliver

CHUNK_HEADER_BYTES = 23
"""Bytes of `molink.wire.chunks.ChunkHeader` once its numbers are large."""

POLL_S = 0.001
"""A link thread sleeps in poll(), which counts whole milliseconds and rounds up. Where the core
asks to be woken at once, time passes all the same, as it does while the live thread looks again."""

ROUND_TRIP_S_MIN = 1e-4
"""Least round trip: `LinkMemory` wants one above 0."""


class _Piece(NamedTuple):
    """A chunk that has left."""

    size_bytes: int
    batch_class: BatchClass
    rows: int
    message: Any
    """Message whose last chunk it is; None: there are more."""


@dataclass(slots=True)
class PacedLink:
    """Both ends of a directed link as it ships, over a simulated wire."""

    clock: Clock
    line: Line
    sender: LinkSender
    deliver: Deliver
    handled: Callable[[], None] | None = None
    """Called at each end for every chunk: the hosts of a link have work with it."""
    wake: Callable[[Callable[[Any], None], Any], None] | None = None
    """Takes in what has arrived, or was acknowledged, once the processes there are awake; None: at
    once."""
    _messages: dict[int, tuple[Any, int]] = field(init=False, default_factory=dict)
    """Message and rows of each transfer that has not left."""
    _under_way: dict[int, "_Piece"] = field(init=False, default_factory=dict)
    """Chunks that have left and are not acknowledged, by sequence number."""
    _expected: int = field(init=False, default=0)
    """The next sequence number that the far end takes."""
    _connection: int = field(init=False, default=0)
    """Number of the connection: what was under way on an earlier one is lost."""
    _held_until: float = field(init=False, default=-math.inf)
    """Time until which nothing leaves."""
    _deaf_until: float = field(init=False, default=-math.inf)
    """Time until which nothing is taken at the far end."""
    _unheard: deque[tuple[int, int, Any]] = field(init=False, default_factory=deque)
    """Chunks that have come to a far end that sleeps, in the order in which its socket has them."""
    _next_transfer: int = field(init=False, default=0)
    _wake_at: float = field(init=False, default=math.inf)

    @classmethod
    def over(
        cls, clock: Clock, line: Line, queue: TransmissionQueue, deliver: Deliver
    ) -> "PacedLink":
        """A link whose rate was measured before, as `LinkThread.open` does with fillers."""
        return cls(clock, line, LinkSender(queue, LinkPacer(_measured(line, clock.now))), deliver)

    def set_next_decode_due(self, due_at: float | None) -> None:
        """Pass the forecast on to the sender."""
        self.sender.set_next_decode_due(due_at)

    def set_decode_result_due(self, due_at: float) -> None:
        """Pass the forecast on to the sender."""
        self.sender.set_decode_result_due(due_at)

    @property
    def rate_bytes_per_s(self) -> float:
        """The rate as the core measures it."""
        return self.sender.rate_bytes_per_s

    def offer(self, message: Any, batch_class: BatchClass, size_bytes: int, rows: int) -> None:
        """Offer a message to the sender, and send what it lets leave."""
        transfer = Transfer(self._next_transfer, batch_class, size_bytes)
        self._messages[self._next_transfer] = (message, rows)
        self._next_transfer += 1
        self.sender.offer(transfer, self.clock.now)
        self._pump()

    def cut(self) -> None:
        """End it: nothing leaves any more, and nothing is acknowledged."""
        self._held_until = math.inf

    def hold(self, until: float) -> None:
        """The near end's host sleeps."""
        self._held_until = max(self._held_until, until)
        self.clock.at(until, self._go_on)

    def deafen(self, until: float) -> None:
        """The far end's host sleeps."""
        self._deaf_until = max(self._deaf_until, until)

    def reset(self, until: float) -> None:
        """Lose what is under way; from `until` on there is another connection."""
        self._connection += 1
        self._held_until = max(self._held_until, until)
        self.clock.at(self._held_until, self._reconnected, self._connection)

    def _reconnected(self, connection: int) -> None:
        if connection == self._connection and self._held_until < math.inf:
            self.sender.connection_changed(self._expected, self.clock.now, path_changed=False)
            self._forget_before(self._expected)
            self._pump()

    def _go_on(self, _: None) -> None:
        self._pump()

    def _pump(self) -> None:
        now = self.clock.now
        if now < self._held_until:
            return
        while (repeat := self.sender.next_repeat(now)) is not None:
            self._carry(repeat.sequence, self._under_way[repeat.sequence], now)
            self.sender.on_repeated(repeat, now)
        while (leaving := self.sender.next_chunk(now)) is not None:
            self._send(*leaving, now)
        wake_at = self.sender.next_wake(now)
        if wake_at is not None:
            self._sleep_until(wake_at)

    def _send(self, sequence: int, chunk: Chunk, now: float) -> None:
        size_bytes = chunk.size_bytes + CHUNK_HEADER_BYTES
        self.sender.on_sent(sequence, chunk, size_bytes, now)
        message, rows = self._messages[chunk.transfer_id]
        if chunk.last:
            del self._messages[chunk.transfer_id]
        piece = _Piece(size_bytes, chunk.batch_class, rows, message if chunk.last else None)
        self._under_way[sequence] = piece
        self._carry(sequence, piece, now)

    def _carry(self, sequence: int, piece: "_Piece", now: float) -> None:
        arrival = self.line.carry(piece.size_bytes, now, piece.batch_class, piece.rows)
        self.clock.at(arrival, self._arrived, (self._connection, sequence, piece.message))
        if self.handled is not None:
            self.handled()
        if (trouble := self.line.trouble) is not None:
            self._carry_again(sequence, arrival, trouble.again_s(now))

    def _carry_again(self, sequence: int, arrival: float, again_s: float | None) -> None:
        """A duplicate: the far end acknowledges and drops it (`molink.wire.chunks`)."""
        if again_s is not None:
            self.clock.at(arrival + again_s, self._arrived, (self._connection, sequence, None))

    def _arrived(self, what: tuple[int, int, Any]) -> None:
        if self.wake is None:
            self._taken_in(what)
        else:
            self.wake(self._taken_in, what)

    def _taken_in(self, what: tuple[int, int, Any]) -> None:
        if what[0] != self._connection:
            return
        if self._unheard or self.clock.now < self._deaf_until:
            self._unheard.append(what)
            if len(self._unheard) == 1:
                self.clock.at(self._deaf_until, self._awake, None)
            return
        self._hear(what)

    def _awake(self, _: None) -> None:
        """The far end's host may sleep on by now."""
        if self.clock.now < self._deaf_until:
            self.clock.at(self._deaf_until, self._awake, None)
            return
        waiting, self._unheard = self._unheard, deque()
        for what in waiting:
            if what[0] == self._connection:
                self._hear(what)

    def _hear(self, what: tuple[int, int, Any]) -> None:
        connection, sequence, message = what
        now = self.clock.now
        acknowledged_at = self.line.acknowledged_at(now)
        self.clock.at(acknowledged_at, self._ack_came, (connection, sequence))
        if self.handled is not None:
            self.handled()
        if sequence >= self._expected:
            self._expected = sequence + 1
            if message is not None:
                self.deliver(message)

    def _ack_came(self, what: tuple[int, int]) -> None:
        if self.wake is None:
            self._acknowledged(what)
        else:
            self.wake(self._acknowledged, what)

    def _acknowledged(self, what: tuple[int, int]) -> None:
        connection, sequence = what
        if connection != self._connection:
            return
        if self.clock.now < self._held_until:
            self.clock.at(self._held_until, self._acknowledged, what)
        else:
            self._forget_before(sequence + 1)
            self.sender.on_ack(sequence, self.clock.now)
            self._pump()

    def _forget_before(self, first: int) -> None:
        while self._under_way and (oldest := next(iter(self._under_way))) < first:
            del self._under_way[oldest]

    def _sleep_until(self, wake_at: float) -> None:
        now = self.clock.now
        wake_at = now + POLL_S * max(1, math.ceil((wake_at - now) / POLL_S))
        if wake_at < self._wake_at:
            self._wake_at = wake_at
            self.clock.at(wake_at, self._woken, wake_at)

    def _woken(self, wake_at: float) -> None:
        if wake_at == self._wake_at:
            self._wake_at = math.inf
            self._pump()


def _measured(line: Line, now: float) -> LinkMemory:
    """Rate and round trip that a second of fillers would have learned of the wire."""
    rate = line.rate_at(now)
    if rate <= 0.0:
        return CAUTIOUS
    return LinkMemory(rate, max(ROUND_TRIP_S_MIN, 2 * line.schedule.one_way_at(now)))
