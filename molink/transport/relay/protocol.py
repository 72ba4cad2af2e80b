"""Frames that pass before a relay joins two connections, and the tokens that sign them.

    receiver --Register--> relay: "I am B"; stays open, and is pinged
    sender   --Dial------> relay: "I am A, give me port `ring` of B"
    relay    --Called----> receiver, on its registration: "A wants `ring`: come with this ticket"
    receiver --Answer----> relay, on a new connection: "I am B, with this ticket"
    relay    --Joined----> both; from here on every byte is passed on as it is

Both ends only ever dial out, so a home router sees nothing but outgoing connections. The relay
greets each connection with a nonce (`molink.transport.preamble`), and each request is signed with
its node's relay token.

That token is an HMAC of the node's id under the relay's secret: with the secret, which the
coordinator and a relay on a rented server have, every node is checked without a database, and a
node can neither make another's nor use its own in another name.
"""

import hashlib
import hmac
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from molink.errors import FrameError, UserError
from molink.transport.preamble import Frames, Hello, Signed

COORDINATOR = "coordinator"
"""Name in the place of a node id; no node id has eleven characters."""

PING_PERIOD_S = 10.0
"""Keeps a home router's entry of the registration alive (two minutes at the earliest), and costs a
node about a kilobyte a minute."""

SILENT_S = 25.0
"""Two pings may be lost; then either end gives the registration up, and the node comes again."""

SECRET_CHARACTERS_MIN = 32
"""128 bits in hexadecimal: too many to try."""

SECRET_BYTES_MAX = 4096
"""Whatever is longer is some other file."""

SECRET_HINT = "make one with `openssl rand -hex 32 > FILE`"

NODE_ID = re.compile(r"[a-z2-7]{16}|coordinator")
PORT_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")


@dataclass(frozen=True, slots=True)
class Register(Signed):
    """Request to let others reach this node on this connection."""

    def __post_init__(self) -> None:
        _check(self.node_id, NODE_ID)


@dataclass(frozen=True, slots=True)
class Dial(Signed):
    """Request to join this connection with a port of another node."""

    to: str
    port_name: str

    def __post_init__(self) -> None:
        _check(self.node_id, NODE_ID)
        _check(self.to, NODE_ID)
        _check(self.port_name, PORT_NAME)


@dataclass(frozen=True, slots=True)
class Answer(Signed):
    """Request to join this connection with the dial of a ticket."""

    ticket: bytes

    def __post_init__(self) -> None:
        _check(self.node_id, NODE_ID)


@dataclass(frozen=True, slots=True)
class Registered:
    """Answer to `Register`: dials for this node are announced here from now on."""


@dataclass(frozen=True, slots=True)
class Called:
    """Call: `caller` wants the port `port_name` of this node."""

    caller: str
    port_name: str
    ticket: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """Answer to `Dial` and `Answer`: the next byte is the other end's."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Heartbeat of a registration: the relay sends it, the node answers with the same."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusal with a sentence; from the receiver with the ticket of the dial that it means, else
    without one."""

    sentence: str
    ticket: bytes = b""


RelayFrame = Hello | Register | Dial | Answer | Registered | Called | Joined | Ping | Refused

RELAY_FRAMES: Frames[RelayFrame] = Frames(
    {
        "hello": Hello,
        "register": Register,
        "dial": Dial,
        "answer": Answer,
        "registered": Registered,
        "called": Called,
        "joined": Joined,
        "ping": Ping,
        "refused": Refused,
    }
)


def read_secret(file: str) -> bytes:
    """The secret in `file`, without white space around it. Raises UserError when it is none, or
    when every user may read it; a group may, as Kubernetes mounts files for one."""
    try:
        with Path(file).open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(
            f"Cannot read the secret in {file} ({error.strerror}): {SECRET_HINT}."
        ) from None
    if mode & stat.S_IRWXO:
        raise UserError(
            f"Every user of this machine may read the secret in {file}: make a new one after "
            "`umask 077`, or run `chmod 600` on it if nobody has."
        )
    secret = text.strip()
    if not SECRET_CHARACTERS_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise UserError(
            f"{file} holds no secret of {SECRET_CHARACTERS_MIN} to {SECRET_BYTES_MAX} characters: "
            f"{SECRET_HINT}."
        )
    return secret


def relay_token(secret: bytes, node_id: str) -> str:
    """Token of `node_id` at every relay that holds `secret`: 64 hexadecimal digits."""
    return hmac.new(secret, b"molink relay " + node_id.encode(), hashlib.sha256).hexdigest()


def _check(value: str, pattern: re.Pattern[str]) -> None:
    if pattern.fullmatch(value) is None:
        raise FrameError(f"{value[:40]!r} is no name of a node or a port")
