"""Frames between a stage and its lender: a header of one size, then bytes.

They pass over a stream socket, in order and without loss: a unix one of one PC, or a sealed one of
a LAN (`lan.sealed_link`). A raw socket, because an answer is waited for in every layer of every
step: ZeroMQ takes 66 microseconds for what a socket takes 15 (a row of 32 heads of 128 out, its
part back).

Each frame from a lender carries its incarnation, a number drawn when it starts, and the number of
the ask that it answers: a late answer, or one of a lender that was there before, is told apart
from the one that is waited for.

| kind | from | says |
|---|---|---|
| HELLO | both | JSON: the layers' shapes and the places wanted; the same, once there is room |
| PUT | stage | blocks [B, W] as `engine.memory.packed_blocks` packs them, and their places |
| DROP | stage | places that nobody needs any more |
| PLAN | stage | the spans of a step, and the places of the keys that each of them sees |
| ASK | stage | query rows [R, H, A] of one layer, attended to as the last plan says |
| ANSWER | lender | their attention [R, H, V], and its log-sum-exp [R, H] in fp32 |
| TAKE | stage | places whose rows of one layer the stage attends to itself |
| ROWS | lender | these rows, packed |
| KEEP | stage | how many places it keeps, the first ones; which blocks beyond go where in these |
| ECHO | both | bytes, sent back at once, by which a LAN's link is measured |
| REFUSED | lender | why it does not begin: a clause for a person |

The other kinds pass between a stage and the process with its weights (`molink.compute.frames`).
"""

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from molink.errors import FrameError

HEADER = struct.Struct("<BxHIQffIQ")
"""A frame's fields in their order, and the bytes behind the header."""

FORK_REQUEST = struct.Struct("<II")
"""Number that a stage gives a lender, and its threads: what `fork_server` is told."""

FRAME_BYTES_MAX = 256 * 2**20
"""Bytes behind a header, at most: 4,096 rows of 128 heads of 128 in fp32."""

Buffer = bytes | bytearray | memoryview


class LenderLink(Protocol):
    """Stream that frames pass over, as a `socket.socket` is one."""

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        """Send bytes that stand in several places; how many of them."""

    def sendall(self, data: Buffer, /) -> None:
        """Send all of these bytes."""

    def recv(self, bufsize: int, flags: int, /) -> bytes:
        """Bytes that have come, at most so many; none where the other end has closed the link."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Take bytes that have come; how many, 0 where the other end has closed the link."""

    def settimeout(self, value: float | None, /) -> None:
        """Wait so many seconds from now on; None: for ever."""

    def fileno(self) -> int:
        """The descriptor; -1 where it is closed."""

    def close(self) -> None:
        """Close this end; the other one finds the link ended."""


class Kind(IntEnum):
    """Kinds of frames, as the table above explains them."""

    HELLO = 1
    PUT = 2
    DROP = 3
    PLAN = 4
    ASK = 5
    ANSWER = 6
    TAKE = 7
    ROWS = 8
    ECHO = 9
    REFUSED = 10
    RUN = 11
    CALL = 12
    ATTENDED = 13
    COMPUTED = 14
    KEEP = 15


KINDS = {int(kind): kind for kind in Kind}


class Frame(NamedTuple):
    """Frame without the bytes behind its header."""

    kind: Kind
    layer: int = 0
    number: int = 0
    """Number of an ask, the same in its answer."""
    incarnation: int = 0
    """Incarnation of the lender; 0 from a stage."""
    scale: float = 0.0
    softcap: float = 0.0
    """Cap on the scores; 0: none."""
    window: int = 0
    """Keys that a row sees, its own with them; 0: all."""


def send(link: LenderLink, frame: Frame, parts: Sequence[Buffer] = ()) -> None:
    """Send a frame, and these bytes behind its header. Raises OSError, of which TimeoutError is
    one, where the other end takes no more."""
    views = [memoryview(part) for part in parts]
    size = sum([view.nbytes for view in views])
    views.insert(0, memoryview(HEADER.pack(*frame, size)))
    sent = link.sendmsg(views)
    if sent < HEADER.size + size:
        _send_rest(link, [view.cast("B") for view in views if view.nbytes], sent)


def _send_rest(link: LenderLink, views: Sequence[memoryview], sent: int) -> None:
    for view in views:
        link.sendall(view[sent:])
        sent = max(0, sent - len(view))


class Incoming:
    """What has come over a link, in memory that is used again for the next. A call of the system
    brings whatever has come: mostly a frame with its header, which would take two, and what belongs
    to the next one stays where it is."""

    def __init__(self, take: Callable[[memoryview], int]) -> None:
        self._take = take
        self.view = memoryview(bytearray(2**16))
        """Memory that `taken` speaks of, until the next call."""
        self._first = self._end = 0
        """Where bytes begin and end that have come and are not taken yet."""

    def taken(self, count: int) -> int:
        """Take so many bytes, once they have come; where they begin. Raises OSError where the link
        ends or is silent too long."""
        if self._end - self._first < count:
            self._await(count)
        start = self._first
        self._first += count
        return start

    def _await(self, count: int) -> None:
        here = self._end - self._first
        if self._first + count > len(self.view) or not here:
            room = self.view if count <= len(self.view) else memoryview(bytearray(count))
            room[:here] = self.view[self._first : self._end]
            self.view, self._first, self._end = room, 0, here
        while self._end - self._first < count:
            came = self._take(self.view[self._end :])
            if not came:
                raise ConnectionResetError("the other end has closed the link")
            self._end += came


class Receiver:
    """Reader of one link's frames. Headers, and what follows them but for JSON, are multiples of
    four bytes, so numbers lie as processors want them."""

    def __init__(self, link: LenderLink) -> None:
        self._incoming = Incoming(link.recv_into)

    def receive(self) -> tuple[Frame, memoryview]:
        """The next frame and the bytes behind its header, valid until the next one. Raises
        FrameError for what is no frame, OSError where the link ends or is silent too long."""
        incoming = self._incoming
        start = incoming.taken(HEADER.size)
        kind, *fields, size = HEADER.unpack_from(incoming.view, start)
        if kind not in KINDS or size > FRAME_BYTES_MAX:
            begin = bytes(incoming.view[start : start + 8])
            raise FrameError(f"no frame of a lender begins with {begin.hex()}")
        start = incoming.taken(size)
        return Frame(KINDS[kind], *fields), incoming.view[start : start + size]
