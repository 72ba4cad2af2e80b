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
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from molink.errors import FrameError
from molink.transport.links import set_link_options
from molink.wire.chunks import Ack, ChunkHeader, decode_link_frame, encode_hello
from molink_scheduler.batch import BatchClass
from molink_scheduler.link_pacer import LinkPacer, LinkSnapshot
from molink_scheduler.link_sender import LinkSender
from molink_scheduler.transmission import Chunk, Transfer, TransmissionQueue

__all__ = ["LinkStatistics", "PacedLink"]

TRANSFERS_WAITING_MAX = 4096
"""More than the head ever has under way; reaching it means that the far end is gone."""

FILLER_BYTES = 32 * 1024
"""Of one filler: little enough to end soon after the measurement does."""

Frame = bytes | memoryview


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """What has left, and what the link is like now."""

    name: str
    messages_sent: int
    bytes_sent: int
    waiting: tuple[int, int]
    """Transfers of each class that wait, decode first."""
    queued_bytes: tuple[int, int]
    """Their bytes."""
    chunk_bytes: int
    pacer: LinkSnapshot


@dataclass(slots=True)
class _Outgoing:
    """The bytes of a transfer."""

    header: Frame
    buffer: Frame

    @property
    def size_bytes(self) -> int:
        return len(self.header) + len(self.buffer)

    @property
    def is_filler(self) -> bool:
        """Whether it only measures the link; nobody's traffic, so it is not counted as sent."""
        return not self.header

    def piece(self, start: int, end: int) -> Frame:
        """Bytes [start, end) of header and buffer laid end to end."""
        split = len(self.header)
        if start >= split:
            return memoryview(self.buffer)[start - split : end - split]
        return bytes(self.header[start:end]) + bytes(self.buffer[: max(0, end - split)])


@dataclass(slots=True)
class PacedLink:
    """One directed link, from the side that sends."""

    name: str
    socket: "zmq.Socket[bytes]"
    sender: LinkSender
    is_open: bool = False
    """Whether the far end has answered."""
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _outgoing: dict[int, _Outgoing] = field(default_factory=dict)
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
    ) -> "PacedLink":
        """Connect to `tcp://host:port`; returns at once, `is_open` turns True with the answer."""
        socket = context.socket(zmq.DEALER)
        set_link_options(socket)
        socket.connect(address)
        return cls(name, socket, LinkSender(queue, pacer))

    @property
    def descriptor(self) -> int:
        """Readable when an acknowledgement may have arrived."""
        return int(self.socket.getsockopt(zmq.FD))

    def greet(self) -> None:
        """Ask whether somebody listens."""
        with self._lock:
            self.socket.send(encode_hello())
            self._drain()

    def send(self, frames: Sequence[Frame], batch_class: BatchClass, tokens: int) -> bool:
        """Let a message wait, and send what may go now; False when something is left waiting."""
        outgoing = _Outgoing(frames[0], frames[1] if len(frames) > 1 else b"")
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
            return self.sender.next_wake(self._send_chunks())

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
