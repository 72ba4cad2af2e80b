"""The sending end of a link: messages in, chunks out, as the core decides.

A message becomes a transfer of the core's `LinkSender`, which says when to send what piece of which
transfer. Whoever has news of the link calls: `send` when there is a message, `pump` when an
acknowledgement may have come or time has passed. Both may come from different threads, so a lock
guards the socket and the core's state; it is held for the tens of microseconds that one decision
and one send take, and nothing blocks under it.

ZeroMQ's descriptor signals edges only, and sending may consume the edge of an acknowledgement that
has come in: therefore every call drains acknowledgements.

The clock is read where it matters: after an acknowledgement was received, before a chunk is sent. A
thread may lose its processor for tens of milliseconds anywhere, above all while it waits for the
lock. When one moment, read on entry, stood for all that a call did, acknowledgements seemed to come
25 ms too early, the base round trip fell from 61 to 34 ms, and the window with it: for ten seconds
the link carried a third of what it could.

A link may take another way while it is in use (`move_to`, `path_move`); its sockets are opened and
closed in `pump`, which only the link's thread calls, so that it never polls a closed one.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import zmq

from molink.errors import FrameError
from molink.transport.curve import CurvePeer
from molink.transport.link_statistics import LinkStatistics
from molink.transport.links import set_link_options
from molink.transport.outgoing import Frame, Outgoing
from molink.transport.path_move import MoveOutcome, PathMove, PathMoves
from molink.wire.chunks import Ack, ChunkHeader, decode_link_frame, encode_hello
from molink_scheduler.batch import BatchClass
from molink_scheduler.link_pacer import LinkPacer
from molink_scheduler.link_sender import LinkSender
from molink_scheduler.transmission import Chunk, Transfer, TransmissionQueue

__all__ = ["LinkStatistics", "PacedLink"]

TRANSFERS_WAITING_MAX = 4096
"""More than the head ever has under way; reaching it means that the far end is gone."""

FILLER_BYTES = 32 * 1024
"""Of one filler: little enough to end soon after the measurement does."""


@dataclass(slots=True)
class PacedLink:
    """One directed link, from the side that sends."""

    name: str
    socket: "zmq.Socket[bytes]"
    sender: LinkSender
    is_open: bool = False
    """Whether the far end has answered."""
    clock: Callable[[], float] = time.monotonic
    address: str = ""
    """Where it leads now."""
    descriptors: tuple[int, ...] = ()
    """Readable when an acknowledgement may have arrived; others after a `pump`."""
    _moves: PathMoves = field(default_factory=lambda: PathMoves(_no_socket))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _outgoing: dict[int, Outgoing] = field(default_factory=dict)
    _next_transfer: int = 0
    _messages_sent: int = 0
    _bytes_sent: int = 0

    @classmethod
    def connect(
        cls,
        context: "zmq.Context[zmq.Socket[bytes]]",
        name: str,
        address: str,
        queue: TransmissionQueue,
        pacer: LinkPacer,
        peer: CurvePeer | None = None,
    ) -> "PacedLink":
        """Connect to `tcp://host:port`; returns at once, `is_open` turns True with the answer.

        With a `peer` the link is encrypted and speaks to the owner of its key only.
        """

        def open_socket() -> "zmq.Socket[bytes]":
            socket = context.socket(zmq.DEALER)
            set_link_options(socket)
            if peer is not None:
                peer.protect(socket)
            return socket

        socket, sender = open_socket(), LinkSender(queue, pacer)
        socket.connect(address)
        link = cls(name, socket, sender, address=address, _moves=PathMoves(open_socket))
        link._note_descriptors()
        return link

    def move_to(self, address: str, done: Callable[[MoveOutcome], None]) -> None:
        """Lead to another address of the same far end, once that answers and nothing is in flight.

        Returns at once. Whoever calls it wakes the link's thread, in which `done` is called; a
        move that is still under way is given up for this one.
        """
        with self._lock:
            self._moves.want(address, done)

    def close(self) -> None:
        """Close its connections; the link's thread must have ended."""
        for socket in self._sockets:
            socket.close()

    def greet(self) -> None:
        """Ask whether somebody listens."""
        with self._lock:
            with suppress(zmq.Again):  # A connection that ZeroMQ has given up takes nothing more.
                self.socket.send(encode_hello(), zmq.NOBLOCK)
            self._drain()

    def send(self, frames: Sequence[Frame], batch_class: BatchClass, tokens: int) -> bool:
        """Let a message wait, and send what may go now; False when something is left waiting."""
        outgoing = Outgoing(frames[0], frames[1] if len(frames) > 1 else b"")
        with self._lock:
            assert len(self._outgoing) < TRANSFERS_WAITING_MAX, f"the link {self.name} is stuck"
            transfer_id = self._next_transfer
            self._next_transfer += 1
            self._outgoing[transfer_id] = outgoing
            transfer = Transfer(transfer_id, batch_class, outgoing.size_bytes, tokens)
            self.sender.offer(transfer, self.clock())
            self._messages_sent += not outgoing.is_filler
            self._drain()
            self._send_chunks()
            return not self._outgoing

    def fill(self) -> None:
        """Send bytes that mean nothing, to learn what the link carries; the far end drops them."""
        self.send((b"", bytes(FILLER_BYTES)), BatchClass.PREFILL, 0)

    @property
    def transfers_waiting(self) -> int:
        """Messages of which something has not left."""
        return len(self._outgoing)

    def pump(self) -> float | None:
        """Take acknowledgements, send what may go; when to call again if nothing arrives."""
        with self._lock:
            self._drain()
            ended = self._advance_move()
            wake_at = self.sender.next_wake(self._send_chunks())
            move = self._moves.current
        for one in ended:
            one.tell()
        if move is None or wake_at is None or move.holds:
            return wake_at if move is None else move.wake_at
        return min(wake_at, move.wake_at)

    def statistics(self) -> LinkStatistics:
        """A snapshot."""
        with self._lock:
            classes = (BatchClass.DECODE, BatchClass.PREFILL)
            queue = self.sender.queue
            waiting = [queue.waiting_count(batch_class) for batch_class in classes]
            queued = [queue.queued_bytes(batch_class) for batch_class in classes]
            return LinkStatistics(
                self.name,
                self._messages_sent,
                self._bytes_sent,
                (waiting[0], waiting[1]),
                (queued[0], queued[1]),
                queue.chunk_bytes_now,
                self.pacer.snapshot(),
            )

    @property
    def rate_bytes_per_s(self) -> float:
        """The measured rate."""
        return self.sender.rate_bytes_per_s

    @property
    def pacer(self) -> LinkPacer:
        """What limits the bytes in flight."""
        return self.sender.pacer

    @property
    def decode_due_at(self) -> float | None:
        """When the stage expects to want this link for decode; the just-in-time rule asks."""
        return self.sender.decode_due_at

    @decode_due_at.setter
    def decode_due_at(self, due_at: float | None) -> None:
        self.sender.decode_due_at = due_at

    def expect_decode(self, ready_at: float) -> None:
        """A decode step has begun that will want this link; when its result is expected."""
        self.sender.hold.ready_at = ready_at

    @property
    def _sockets(self) -> list["zmq.Socket[bytes]"]:
        move = self._moves.current
        return [self.socket] if move is None else [self.socket, move.socket]

    def _advance_move(self) -> list[PathMove]:
        """Take the next step of a move; those that have ended are to be told of it."""
        if self._moves.is_idle:
            return []
        now = self.clock()
        ended = self._moves.advance(self.pacer.in_flight_bytes, now)
        for move in ended:
            left = move.socket
            if move.phase == "drained":
                left, self.socket, self.address = self.socket, move.socket, move.address
                self.pacer.path_changed(now)
                self._drain()  # Or the descriptor would never signal again.
            left.close()
        self._note_descriptors()
        return ended

    def _note_descriptors(self) -> None:
        self.descriptors = tuple(int(one.getsockopt(zmq.FD)) for one in self._sockets)

    def _drain(self) -> None:
        while True:
            try:
                frame = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            now = self.clock()
            self.is_open = True
            try:
                answer = decode_link_frame(frame)
            except FrameError:
                self.pacer.acks_refused += 1
                continue
            for sequence in answer.sequences if isinstance(answer, Ack) else ():
                self.sender.acknowledged(sequence, now)

    def _send_chunks(self) -> float:
        """Send what may go; the moment at which nothing more might.

        Whoever asks when to wake must ask of that very moment: by a later one the pace may have
        opened, and nobody would be told.
        """
        now = self.clock()
        if self._moves.holds:
            return now
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
        self.socket.send_multipart([header, piece])
        size_bytes = len(header) + len(piece)
        self._bytes_sent += 0 if outgoing.is_filler else size_bytes
        self.sender.sent(sequence, chunk, size_bytes, now)
        if chunk.last:
            del self._outgoing[chunk.transfer_id]


def _no_socket() -> "zmq.Socket[bytes]":
    raise NotImplementedError("this link was made from a socket and leads nowhere else")
