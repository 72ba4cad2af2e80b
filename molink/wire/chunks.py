"""Messages in pieces: what a link really carries, and how the far end puts it together again.

A *transfer* is one message on its way over one link: its header frame and its buffer, laid end
to end. It crosses in *chunks*, so that a decode step can go between two pieces of a prompt.
Every chunk has a number of its own, rising by one on each link, by which the receiver
acknowledges it. Chunks of one transfer arrive in order; transfers of different classes
interleave.

Each number is taken once, and in its turn. A chunk that has come before is acknowledged again and
dropped: a sender whose connection died repeats what it has no answer for. A chunk beyond the next
one is dropped too, and the sender told which one is missing: something between has gone down with a
connection. So the numbers alone see to it that nothing is lost or doubled, however many connections
a link uses up.

Whatever does not fit its transfer (an unknown one, more bytes than announced) is dropped with it
and counted, and the link goes on. What is announced is bounded by what the link may carry, and so
are the transfers that are open at a time, or a peer could fill memory with ones that never end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from molink.errors import FrameError
from molink.wire import protocol
from molink.wire.frames import ANYBODY, HEADER_BYTES_MAX, check_protocol

CHUNK, ACK, HELLO, WELCOME, MISSING = 64, 65, 66, 67, 68
"""Kinds on a link, apart from those of whole messages."""

LINK_FRAME_BYTES_MAX = 64
"""Five numbers of nine bytes, and what stands around them."""

OPEN_TRANSFERS_MAX = 128
"""Incomplete transfers at a time. A sender that knows priorities has one open in each class; a
sender that shares its link evenly, as in experiments, has a span and a micro-batch of each that may
be under way, 64 and 64."""

Frame = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """Header of a chunk: where the piece belongs."""

    sequence: int
    """Number of the chunk on its link."""
    transfer_id: int
    offset: int
    transfer_bytes: int
    header_bytes: int
    """How many of the transfer's first bytes are its message's header frame."""

    def encode(self) -> bytes:
        """The chunk's first frame; the piece follows as the second."""
        fields = (
            self.sequence,
            self.transfer_id,
            self.offset,
            self.transfer_bytes,
            self.header_bytes,
        )
        packed: bytes = msgpack.packb((protocol.PROTOCOL_VERSION, CHUNK, fields))
        return packed


@dataclass(frozen=True, slots=True)
class Ack:
    """The receiver has these chunks; sent back on the same connection."""

    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinkHello:
    """Opens a connection: repeated until anything comes back, because a connection may be accepted
    by a proxy before the far end listens."""

    stream: int = 0
    """Number of this sender: another one than before means that its chunks count from 0."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to a hello."""

    first: int
    """The receiver has all chunks before this number."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Answer to a chunk that came too early."""

    first: int
    """The receiver has all chunks before this number, and not this one."""


LinkFrame = ChunkHeader | Ack | LinkHello | Welcome | Missing


def encode_hello(stream: int = 0) -> bytes:
    """One frame that asks whether somebody listens."""
    packed: bytes = msgpack.packb((protocol.PROTOCOL_VERSION, HELLO, (stream,)))
    return packed


def encode_ack(sequences: Sequence[int]) -> bytes:
    """One frame that acknowledges chunks."""
    packed: bytes = msgpack.packb((protocol.PROTOCOL_VERSION, ACK, sequences))
    return packed


def encode_welcome(first: int) -> bytes:
    """One frame that answers a hello."""
    packed: bytes = msgpack.packb((protocol.PROTOCOL_VERSION, WELCOME, (first,)))
    return packed


def encode_missing(first: int) -> bytes:
    """One frame that says which chunk is missing."""
    packed: bytes = msgpack.packb((protocol.PROTOCOL_VERSION, MISSING, (first,)))
    return packed


def decode_link_frame(frame: Frame) -> LinkFrame:
    """Message in the first frame of anything on a link. Raises FrameError when it is none."""
    if len(frame) > LINK_FRAME_BYTES_MAX:
        raise FrameError(f"a link frame of {len(frame)} bytes, {LINK_FRAME_BYTES_MAX} is the most")
    try:
        version, kind, fields = msgpack.unpackb(frame, use_list=False)
        check_protocol(version)
        if kind == ACK:
            return Ack(_integers(fields))
        if kind == HELLO:
            return LinkHello(*_integers(fields))
        if kind == CHUNK:
            return _checked(ChunkHeader(*_integers(fields)))
        if kind in (WELCOME, MISSING):
            (first,) = _integers(fields)
            return Welcome(first) if kind == WELCOME else Missing(first)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise FrameError(f"malformed link frame: {error}") from error
    raise FrameError(f"unknown kind {kind!r} on a link")


def _integers(values: Any) -> tuple[int, ...]:
    for value in values:  # Of every chunk and every acknowledgement: twice as quick as `all`.
        if type(value) is not int or value < 0:
            raise FrameError("expected integers")
    return tuple(values)


def _checked(header: ChunkHeader) -> ChunkHeader:
    too_large = header.transfer_bytes > ANYBODY.message_bytes_max
    if too_large or header.header_bytes > HEADER_BYTES_MAX:
        raise FrameError(f"a transfer of {header.transfer_bytes} bytes is over the limit")
    if header.header_bytes > header.transfer_bytes:
        raise FrameError("a header longer than its transfer")
    return header


@dataclass(slots=True)
class _Open:
    """A transfer that is still arriving."""

    header_bytes: int
    buffer: bytearray
    received: int = 0


@dataclass(slots=True)
class Reassembly:
    """Transfers of one link on their way in."""

    transfer_bytes_max: int = ANYBODY.message_bytes_max
    """Most bytes of a transfer: as many as a message of this link may have."""
    chunks_refused: int = 0
    """Chunks that did not fit their transfer."""
    chunks_out_of_turn: int = 0
    """Chunks that had come before, or came too early."""
    next_sequence: int = 0
    """Number of the chunk that is taken next."""
    _open: dict[int, _Open] = field(default_factory=dict)
    _open_bytes: int = 0
    """Announced bytes of open transfers; the largest of each class may be open at a time."""
    _stream: int = 0
    """Number of the sender whose chunks are counted."""

    def greeted(self, stream: int) -> None:
        """A connection begins; with another sender's number, what the last one had begun is void
        and chunks are counted anew."""
        if stream != self._stream:
            self._stream, self.next_sequence, self._open_bytes = stream, 0, 0
            self._open.clear()

    def take(self, header: ChunkHeader, piece: Frame) -> list[memoryview] | None:
        """The message's frames when this piece completes it."""
        if header.sequence != self.next_sequence:
            self.chunks_out_of_turn += 1
            return None
        self.next_sequence += 1
        if not piece or header.transfer_bytes > self.transfer_bytes_max:
            self._refuse(header.transfer_id)
            return None
        if header.offset == 0 and len(piece) == header.transfer_bytes:
            return _frames(memoryview(piece), header.header_bytes)
        transfer = self._begin(header) if header.offset == 0 else self._open.get(header.transfer_id)
        if transfer is None:
            self._refuse(header.transfer_id)
            return None
        end = header.offset + len(piece)
        if header.offset != transfer.received or end > len(transfer.buffer):
            self._refuse(header.transfer_id)
            return None
        transfer.buffer[header.offset : end] = piece
        transfer.received = end
        if end < len(transfer.buffer):
            return None
        self._close(header.transfer_id)
        return _frames(memoryview(transfer.buffer), transfer.header_bytes)

    def _begin(self, header: ChunkHeader) -> _Open | None:
        if header.transfer_id in self._open:
            self._close(header.transfer_id)
        if len(self._open) >= OPEN_TRANSFERS_MAX:
            return None
        if self._open_bytes + header.transfer_bytes > 2 * self.transfer_bytes_max:
            return None
        transfer = _Open(header.header_bytes, bytearray(header.transfer_bytes))
        self._open[header.transfer_id] = transfer
        self._open_bytes += header.transfer_bytes
        return transfer

    def _refuse(self, transfer_id: int) -> None:
        self.chunks_refused += 1
        if transfer_id in self._open:
            self._close(transfer_id)

    def _close(self, transfer_id: int) -> None:
        self._open_bytes -= len(self._open.pop(transfer_id).buffer)


def _frames(transfer: memoryview, header_bytes: int) -> list[memoryview]:
    """A message's header frame, and its buffer where it has one."""
    header, buffer = transfer[:header_bytes], transfer[header_bytes:]
    return [header, buffer] if len(buffer) else [header]
