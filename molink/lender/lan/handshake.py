"""How a stage reaches a lender of its LAN, and both draw the keys of their link.

The stage says in clear which lease it means, with a random number and a proof that it has the
lease's key: so nobody else is let in, or can keep a lease from its stage. The lender answers with
its incarnation and a random number of its own, or with why not. Both numbers and the lease's key
give the link's two keys (HKDF-SHA256): a lease is used for one link after another, and no two links
may seal under one key with the same counts; nor can a link that was recorded be played again.
"""

import hmac
import secrets
import socket
import struct
from typing import NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from molink.errors import FrameError, LenderLostError
from molink.lender.lan.sealed_link import SealedLink
from molink.lender.protocol import Incoming
from molink.printable import plain_line
from molink.wire.protocol import PROTOCOL_VERSION

MAGIC = b"MoLK"

KEY_BYTES = 32
"""Bytes of a lease's key, and of each key of a link."""

RANDOM_BYTES = 32
"""Bytes of a random number that either end draws for a link."""

REFUSAL_BYTES = 200
"""Bytes of a clause that says why somebody is not let in."""

OPENING = struct.Struct(f"<4sHxxQ{RANDOM_BYTES}s32s")
"""Magic, protocol, lease, random number and proof (HMAC-SHA256 of all before it)."""

GREETING = struct.Struct(f"<?7xQ{RANDOM_BYTES}s{REFUSAL_BYTES}s")
"""Whether one is let in, the lender's incarnation, its random number, or why not."""

ANSWER_S = 3.0
"""Wait for a link to stand, and for the greeting; on a LAN both take a millisecond."""

GONE_S = 11
"""Seconds until a PC is given up from which nothing comes at all, as when it has lost power."""


class Opening(NamedTuple):
    """What a stage says first."""

    protocol: int
    lease: int
    random: bytes
    proof: bytes

    @classmethod
    def of(cls, lease: int, key: bytes) -> "Opening":
        """An opening of this build, with a random number of its own."""
        random = secrets.token_bytes(RANDOM_BYTES)
        return cls(PROTOCOL_VERSION, lease, random, _proof(PROTOCOL_VERSION, lease, random, key))

    @classmethod
    def read(cls, packed: bytes) -> "Opening":
        """Raises FrameError for what is none."""
        if len(packed) != OPENING.size or not packed.startswith(MAGIC):
            raise FrameError("what came opens no link to a lender")
        return cls(*OPENING.unpack(packed)[1:])

    def packed(self) -> bytes:
        """Bytes by which a stage says it."""
        return OPENING.pack(MAGIC, *self)

    def is_by(self, key: bytes) -> bool:
        """Whether somebody said it who has this key."""
        wanted = _proof(self.protocol, self.lease, self.random, key)
        return hmac.compare_digest(wanted, self.proof)


def connected(host: str, port: int, lease: int, key: str, incarnation: int = 0) -> SealedLink:
    """Link to the lender of a lease, whose key is in hex. `incarnation`: that of the process that
    has given the lease; 0: any. Raises LenderLostError with a sentence."""
    where = f"a lender of KV at {host}:{port}"
    try:
        link = socket.create_connection((host, port), ANSWER_S)
    except OSError as error:
        raise LenderLostError(f"{where} is not to be reached: {error}") from error
    try:
        return _let_in(link, Opening.of(lease, bytes.fromhex(key)), bytes.fromhex(key), incarnation)
    except (OSError, FrameError, ValueError) as error:
        link.close()
        raise LenderLostError(f"{where} lets nobody in: {error}") from error


def let_in(link: socket.socket, opening: Opening, key: bytes, incarnation: int) -> SealedLink:
    """The lender's end of a link whose opening is right. Raises OSError where it has ended."""
    stay_awake(link)
    random = secrets.token_bytes(RANDOM_BYTES)
    link.sendall(GREETING.pack(True, incarnation, random, b""))
    own_key, their_key = _keys(key, opening, random, incarnation)
    return SealedLink(link, own_key, their_key)


def refusal(why: str, incarnation: int) -> bytes:
    """Greeting for somebody who is not let in."""
    clause = why.encode()[:REFUSAL_BYTES]
    return GREETING.pack(False, incarnation, bytes(RANDOM_BYTES), clause)


def stay_awake(link: socket.socket) -> None:
    """Have a link send at once, and end when nothing comes from the other end any more."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 1000 * GONE_S),
    ):
        if (option := getattr(socket, name, None)) is not None:
            link.setsockopt(socket.IPPROTO_TCP, option, value)


def _let_in(link: socket.socket, opening: Opening, key: bytes, incarnation: int) -> SealedLink:
    stay_awake(link)
    link.sendall(opening.packed())
    incoming = Incoming(link.recv_into)
    start = incoming.taken(GREETING.size)
    is_in, theirs, random, clause = GREETING.unpack_from(incoming.view, start)
    if not is_in:
        raise FrameError(plain_line(clause.rstrip(b"\0").decode(errors="replace")))
    if incarnation not in (0, theirs):
        raise FrameError("it has started anew since the lease was given")
    their_key, own_key = _keys(key, opening, random, theirs)
    return SealedLink(link, own_key, their_key)


def _keys(key: bytes, opening: Opening, random: bytes, incarnation: int) -> tuple[bytes, bytes]:
    """Keys of what the lender sends, and of what the stage does."""
    info = b"molink lender" + struct.pack("<HQQ", opening.protocol, opening.lease, incarnation)
    drawn = HKDF(SHA256(), 2 * KEY_BYTES, opening.random + random, info).derive(key)
    return drawn[:KEY_BYTES], drawn[KEY_BYTES:]


def _proof(protocol: int, lease: int, random: bytes, key: bytes) -> bytes:
    said = MAGIC + struct.pack("<HxxQ", protocol, lease) + random
    return hmac.digest(key, said, "sha256")
