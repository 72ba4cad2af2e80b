"""The few frames with which two ends agree what a connection is for, before bytes flow freely.

A frame is two bytes of length and a msgpack array `[kind, field, ...]`; the kinds of a protocol are
an explicit table of small frozen dataclasses whose fields are texts, bytes and whole numbers, each
bounded. Lines of JSON would be as good for a person with netcat, but a length lets the reader take
exactly the frame and leave the next byte, which may be the payload's first, in the socket.

The end that opens a connection gets a nonce and signs its request with it, by a key that both ends
know: HMAC over the nonce and the frame. So no key crosses the network, which is not encrypted here
(the payload is, end to end), and what was overheard is of no use on another connection.
"""

import asyncio
import hashlib
import hmac
import secrets
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import msgpack

from molink.errors import FrameError, MolinkError
from molink.transport.sockets import receive_exactly
from molink.wire.kinds import Kinds
from molink.wire.schema import Rules

LENGTH = struct.Struct(">H")

FRAME_BYTES_MAX = 1024
"""The longest kind is under 500."""

FIELD_LENGTH_MAX = 300
"""Length of a text or of bytes: a sentence for a person is the longest."""

RULES = Rules(arrays=True, least=0, most=2**50, text_max=FIELD_LENGTH_MAX)

NONCE_BYTES = 16
"""Bytes of a nonce, so that none is ever drawn twice."""

PREAMBLE_WITHIN_S = 5.0
"""Seconds for each frame of a preamble: a slow round trip with a lost packet in it."""

Kind = TypeVar("Kind")


class PreambleRefusedError(MolinkError):
    """Raised when the far end does not do what a node asks; the message says why not."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of the end that was connected to: a nonce to sign with."""

    nonce: bytes

    @classmethod
    def draw(cls) -> "Hello":
        """A greeting with a new nonce."""
        return cls(secrets.token_bytes(NONCE_BYTES))


@dataclass(frozen=True, slots=True)
class Signed:
    """Request of a node, with the proof that it is this node."""

    node_id: str
    proof: bytes


S = TypeVar("S", bound=Signed)


class Frames(Generic[Kind]):
    """Frames of one protocol, and their exchange over sockets."""

    def __init__(self, kinds: Mapping[str, type[Kind]]) -> None:
        self._kinds = Kinds(kinds, RULES)

    def encode(self, frame: Kind) -> bytes:
        """The bytes of a frame: length and body."""
        name, values = self._kinds.write(frame)
        body: bytes = msgpack.packb([name, *values])
        assert len(body) <= FRAME_BYTES_MAX, f"a frame of {len(body)} bytes"
        return LENGTH.pack(len(body)) + body

    def decode(self, body: bytes) -> Kind:
        """The frame in `body`. Raises FrameError when it does not follow the schema."""
        try:
            name, *values = msgpack.unpackb(body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise FrameError(f"malformed frame: {error}") from error
        return self._kinds.read(name, values)

    async def read(
        self, connection: socket.socket, within_s: float | None = PREAMBLE_WITHIN_S
    ) -> Kind:
        """The next frame, and not a byte more.

        Raises FrameError when it does not follow the schema or is too long, OSError (TimeoutError
        among them) when none comes.
        """
        async with asyncio.timeout(within_s):
            (size,) = LENGTH.unpack(await receive_exactly(connection, LENGTH.size))
            if size > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {size} bytes: at most {FRAME_BYTES_MAX}")
            return self.decode(await receive_exactly(connection, size))

    async def write(self, connection: socket.socket, frame: Kind) -> None:
        """Send a frame. Raises OSError, TimeoutError among them, when it cannot leave."""
        async with asyncio.timeout(PREAMBLE_WITHIN_S):
            await asyncio.get_running_loop().sock_sendall(connection, self.encode(frame))

    async def challenge(self, connection: socket.socket) -> tuple[Kind, bytes]:
        """Send a nonce to the peer that has connected; its request, and the nonce to check it by.

        Raises FrameError and OSError as `read` and `write` do.
        """
        hello = Hello.draw()
        await self.write(connection, hello)  # type: ignore[arg-type]
        return await self.read(connection), hello.nonce

    async def request(
        self, connection: socket.socket, request: Signed, key: str, within_s: float
    ) -> Kind:
        """Sign a request with the far end's nonce, send it; the answer.

        Raises FrameError when the far end does not begin with a nonce, else as `read` and `write`.
        """
        hello = await self.read(connection)
        if not isinstance(hello, Hello):
            raise FrameError("no greeting")
        await self.write(connection, sign(request, key, hello.nonce))  # type: ignore[arg-type]
        return await self.read(connection, within_s)

    def write_now(self, connection: socket.socket, frame: Kind) -> bool:
        """Send a frame if the kernel takes it whole; False when the peer has stopped reading.

        For connections that several tasks write to: nothing can come between two halves.
        """
        encoded = self.encode(frame)
        try:
            return connection.send(encoded) == len(encoded)
        except OSError:
            return False


def sentence(text: str) -> str:
    """Text cut to what a frame may carry."""
    return text if len(text) <= FIELD_LENGTH_MAX else text[: FIELD_LENGTH_MAX - 1] + "…"


def sign(frame: S, key: str, nonce: bytes) -> S:
    """The frame with its proof. `key` is what both ends know; it does not travel."""
    return replace(frame, proof=_proof(frame, key, nonce))


def is_signed(frame: Signed, key: str, nonce: bytes) -> bool:
    """Whether the sender of this frame knows the key and has seen this nonce."""
    return hmac.compare_digest(frame.proof, _proof(frame, key, nonce))


def _proof(frame: Signed, key: str, nonce: bytes) -> bytes:
    """HMAC over the nonce, the kind and every field but the proof itself."""
    values = [getattr(frame, field.name) for field in fields(frame) if field.name != "proof"]
    signed = msgpack.packb([nonce, type(frame).__name__, *values])
    return hmac.digest(key.encode(), signed, hashlib.sha256)
