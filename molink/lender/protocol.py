"""Frames between a stage and its lender: a header of one size, then bytes.

They pass over a unix stream socket of one PC, in order and without loss. A raw socket, because an
answer is waited for in every layer of every step: ZeroMQ takes 66 microseconds for what a socket
takes 15 (a row of 32 heads of 128 out, its part back).

Each frame from a lender carries its incarnation, a number drawn when it starts, and the number of
the ask that it answers: a late answer, or one of a lender that was there before, is told apart
from the one that is waited for.

| kind | from | says |
|---|---|---|
| HELLO | both | JSON: the layers' shapes and the places wanted; how many places there are |
| PUT | stage | blocks [B, W] as `engine.memory.packed_blocks` packs them, and their places |
| DROP | stage | places that nobody needs any more |
| PLAN | stage | the spans of a step, and the places of the keys that each of them sees |
| ASK | stage | query rows [R, H, A] of one layer, attended to as the last plan says |
| ANSWER | lender | their attention [R, H, V], and its log-sum-exp [R, H] in fp32 |
| TAKE | stage | places whose rows of one layer the stage attends to itself |
| ROWS | lender | these rows, packed |
"""

import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from molink.errors import FrameError

HEADER = struct.Struct("<BxHIQQffI")
"""Kind, layer, number, incarnation, bytes behind the header, scale, softcap, window."""

FRAME_BYTES_MAX = 256 * 2**20
"""Bytes behind a header, at most: 4,096 rows of 128 heads of 128 in fp32."""

Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """Kinds of frames between a stage and its lender, as the table above explains them."""

    HELLO = 1
    PUT = 2
    DROP = 3
    PLAN = 4
    ASK = 5
    ANSWER = 6
    TAKE = 7
    ROWS = 8


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


def send(link: socket.socket, frame: Frame, parts: Sequence[Buffer] = ()) -> None:
    """Send a frame, and these bytes behind its header. Raises OSError, of which TimeoutError is
    one, where the other end takes no more."""
    kind, layer, number, incarnation, *attended = frame
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    size = sum(map(len, views))
    head = HEADER.pack(kind, layer, number, incarnation, size, *attended)
    sent = link.sendmsg([head, *views])
    if sent < HEADER.size + size:
        _send_rest(link, [memoryview(head), *views], sent)


def _send_rest(link: socket.socket, views: Sequence[memoryview], sent: int) -> None:
    for view in views:
        link.sendall(view[sent:])
        sent = max(0, sent - len(view))


class Receiver:
    """Reader of one link's frames, into memory that is used again for the next."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._head = bytearray(HEADER.size)
        self._bytes = bytearray(2**16)

    def receive(self) -> tuple[Frame, memoryview]:
        """The next frame and the bytes behind its header, valid until the next one. Raises
        FrameError for what is no frame, OSError where the link ends or is silent too long."""
        self._fill(memoryview(self._head))
        kind, layer, number, incarnation, size, *attended = HEADER.unpack(self._head)
        if kind not in Kind.__members__.values() or size > FRAME_BYTES_MAX:
            raise FrameError(f"no frame of a lender begins with {bytes(self._head[:8]).hex()}")
        if size > len(self._bytes):
            self._bytes = bytearray(size)
        view = memoryview(self._bytes)[:size]
        self._fill(view)
        return Frame(Kind(kind), layer, number, incarnation, *attended), view

    def _fill(self, view: memoryview) -> None:
        while len(view):
            count = self._link.recv_into(view)
            if not count:
                raise ConnectionResetError("the other end has closed the link")
            view = view[count:]
