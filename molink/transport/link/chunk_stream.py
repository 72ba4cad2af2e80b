"""The messages of a link as chunks on its connection: sent as the core decides, kept until they are
acknowledged, and repeated where a connection died with them.

A message becomes a transfer of the core's `LinkSender`, which says when to send what piece of which
transfer. The clock is read where it matters: after an acknowledgement was received, before a chunk
is sent. A thread may lose its processor for tens of milliseconds anywhere, above all while it waits
for the link's lock. When one moment, read on entry, stood for all that a call did, acknowledgements
seemed to come 25 ms too early, the base round trip fell from 61 to 34 ms, and the window with it:
for ten seconds the link carried a third of what it could.

ZeroMQ's descriptor signals edges only, and sending may consume the edge of an acknowledgement that
has come in; so `exchange` ends only when none has come since the last chunk left. It asks for
EVENTS, which costs a third of a `recv` that finds nothing.

To be used by one thread at a time: `PacedLink` has the lock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from molink.errors import FrameError, LinkFullError
from molink.transport.link.connections import Connections
from molink.wire.chunks import Ack, ChunkHeader, Missing, decode_link_frame, encode_hello
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.peer_watch import BEAT_PERIOD_S, PeerWatch
from molink_scheduler.link.sender import LinkSender
from molink_scheduler.link.transmission import Chunk, Transfer

TRANSFERS_WAITING_MAX = 4096
"""Transfers that may wait, more than a ring ever has under way. A far end that acknowledges nothing
is given up after half a minute; what users cancel meanwhile may come to more, and then its link
counts as lost at once."""

Frame = bytes | memoryview


@dataclass(slots=True)
class Outgoing:
    """Bytes of a message that waits for its link, and the pieces in which they leave."""

    header: Frame
    buffer: Frame

    @property
    def size_bytes(self) -> int:
        """Bytes of header and buffer together."""
        return len(self.header) + len(self.buffer)

    @property
    def is_filler(self) -> bool:
        """Whether it only measures the link; it is no traffic, so it is not counted as sent."""
        return not self.header

    def piece(self, start: int, end: int) -> Frame:
        """Bytes [start, end) of header and buffer laid end to end."""
        split = len(self.header)
        if start >= split:
            return memoryview(self.buffer)[start - split : end - split]
        return bytes(self.header[start:end]) + bytes(self.buffer[: max(0, end - split)])


@dataclass(slots=True)
class ChunkStream:
    """Chunks of one directed link on its connection, and the answers to them."""

    connections: Connections
    sender: LinkSender
    clock: Callable[[], float]
    is_answered: bool = False
    """Whether the far end has answered."""
    peer: PeerWatch = field(default_factory=PeerWatch)
    hello_at: float | None = None
    """Time at which the first hello left that is not answered; None: there is none."""
    messages_sent: int = 0
    bytes_sent: int = 0
    _outgoing: dict[int, Outgoing] = field(default_factory=dict)
    _sent: "deque[tuple[int, list[Frame]]]" = field(default_factory=deque)
    """Pairs (number, frames) of chunks that are not acknowledged, in order: views of messages,
    which do not change. No more bytes than the pacer lets be in flight."""
    _next_transfer: int = 0
    _left_at: float = 0.0
    """Time at which anything left last."""

    @property
    def beat_at(self) -> float:
        """Time at which a hello is due unless something else leaves before."""
        return self._left_at + BEAT_PERIOD_S

    @property
    def transfers_waiting(self) -> int:
        """Messages of which something has not left."""
        return len(self._outgoing)

    def offer(self, frames: Sequence[Frame], batch_class: BatchClass) -> None:
        """Let a message wait. Raises LinkFullError when too many do."""
        if len(self._outgoing) >= TRANSFERS_WAITING_MAX:
            raise LinkFullError(f"{TRANSFERS_WAITING_MAX} messages wait for it to be acknowledged")
        outgoing = Outgoing(frames[0], frames[1] if len(frames) > 1 else b"")
        transfer_id = self._next_transfer
        self._next_transfer += 1
        self._outgoing[transfer_id] = outgoing
        transfer = Transfer(transfer_id, batch_class, outgoing.size_bytes)
        self.sender.offer(transfer, self.clock())
        self.messages_sent += not outgoing.is_filler

    def drain(self) -> None:
        """Take all acknowledgements that have come."""
        while self._is_readable():
            try:
                frame = self.connections.socket.recv(zmq.NOBLOCK)
            except zmq.Again:  # Its connection has closed meanwhile.
                return
            now = self.clock()
            self.is_answered, self.hello_at = True, None
            self.peer.arrived(now)
            try:
                answer = decode_link_frame(frame)
            except FrameError:
                self.sender.pacer.acks_refused += 1
                continue
            if isinstance(answer, Ack):
                for sequence in answer.sequences:
                    if self.sender.on_ack(sequence, now):
                        self._forget_sent(sequence)
            elif isinstance(answer, Missing) and self.sender.missing(answer.first, now):
                self._forget_sent(answer.first - 1)

    def greet(self) -> None:
        """Say hello: does the far end listen, and is it still there?"""
        now = self.clock()
        self.hello_at = now if self.hello_at is None else self.hello_at
        self._hand_over([encode_hello(self.connections.stream)])

    def exchange(self) -> float:
        """Send what may go, and take what comes; the moment at which nothing more might.

        When to wake must be asked of that very moment: by a later one the pace may have opened, and
        the thread would sleep on.
        """
        asked_at = self._send()
        while self._is_readable():
            self.drain()
            asked_at = self._send()
        return asked_at

    def connection_changed(self, first: int, now: float, *, path_changed: bool) -> None:
        """The link has another connection, whose far end has all chunks before number `first`;
        `path_changed`: it does not lead where the one before did."""
        self.sender.connection_changed(first, now, path_changed=path_changed)
        self._forget_sent(first - 1)
        self.drain()  # Or its descriptor would never signal again.

    def _is_readable(self) -> bool:
        return bool(int(self.connections.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def _send(self) -> float:
        now = self.clock()
        if self.connections.is_draining:
            return now
        while (repeat := self.sender.next_repeat(now)) is not None:
            self._hand_over(next(sent for number, sent in self._sent if number == repeat.sequence))
            self.sender.on_repeated(repeat, now)
            now = self.clock()
        while (leaving := self.sender.next_chunk(now)) is not None:
            self._send_chunk(*leaving, now)
            now = self.clock()
        return now

    def _send_chunk(self, sequence: int, chunk: Chunk, now: float) -> None:
        outgoing = self._outgoing[chunk.transfer_id]
        header = ChunkHeader(
            sequence,
            chunk.transfer_id,
            chunk.offset,
            outgoing.size_bytes,
            len(outgoing.header),
        ).encode()
        piece = outgoing.piece(chunk.offset, chunk.offset + chunk.size_bytes)
        frames = [header, piece]
        self._sent.append((sequence, frames))
        self._hand_over(frames)
        size_bytes = len(header) + len(piece)
        self.bytes_sent += 0 if outgoing.is_filler else size_bytes
        self.sender.on_sent(sequence, chunk, size_bytes, now)
        if chunk.last:
            del self._outgoing[chunk.transfer_id]

    def _hand_over(self, frames: list[Frame]) -> None:
        """Hand frames to ZeroMQ. A connection that it has given up takes nothing more; the chunk
        counts as sent all the same, and the link's silence will be noticed."""
        self._left_at = self.clock()
        try:
            self.connections.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return

    def _forget_sent(self, sequence: int) -> None:
        """The far end has this chunk and all before it."""
        sent = self._sent
        while sent and sent[0][0] <= sequence:
            sent.popleft()
