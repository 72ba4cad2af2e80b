"""What is said before a relay joins two connections.

    receiver --Register--> relay: "I am B"; stays open, and is pinged
    sender   --Dial------> relay: "I am A, give me port `ring` of B"
    relay    --Called----> receiver, on its registration: "A wants `ring`: come with this ticket"
    receiver --Answer----> relay, on a new connection: "I am B, with this ticket"
    relay    --Joined----> both; from here on every byte is passed on as it is

Both ends only ever dial out, so a home router sees nothing but outgoing connections. The relay
greets each connection with a nonce (`molink.transport.preamble`), and each request is signed with
its node's relay token.

That token is an HMAC of the node's id under the relay's secret: whoever holds the secret (the
coordinator, and a relay on a rented server) can check every node without a database, and a node
can neither make another's nor use its own in another name.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass

from molink.errors import FrameError
from molink.transport.preamble import Frames, Hello, Signed

__all__ = [
    "COORDINATOR",
    "PING_PERIOD_S",
    "RELAY_FRAMES",
    "SILENT_S",
    "Answer",
    "Called",
    "Dial",
    "Joined",
    "Ping",
    "Refused",
    "Register",
    "Registered",
    "RelayFrame",
    "relay_token",
]

COORDINATOR = "coordinator"
"""In the place of a node id; no node id has eleven characters."""

PING_PERIOD_S = 10.0
"""Keeps a home router's entry of the registration alive (two minutes at the earliest), and costs a
node about a kilobyte a minute."""

SILENT_S = 25.0
"""Two pings may be lost; then either end gives the registration up, and the node comes again."""

NODE_ID = re.compile(r"[a-z2-7]{16}|coordinator")
PORT_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")


@dataclass(frozen=True, slots=True)
class Register(Signed):
    """Let others reach me here."""

    def __post_init__(self) -> None:
        _check(self.node_id, NODE_ID)


@dataclass(frozen=True, slots=True)
class Dial(Signed):
    """Join this connection with a port of that node."""

    to: str
    port_name: str

    def __post_init__(self) -> None:
        _check(self.node_id, NODE_ID)
        _check(self.to, NODE_ID)
        _check(self.port_name, PORT_NAME)


@dataclass(frozen=True, slots=True)
class Answer(Signed):
    """This connection is for the dial of that ticket."""

    ticket: bytes

    def __post_init__(self) -> None:
        _check(self.node_id, NODE_ID)


@dataclass(frozen=True, slots=True)
class Registered:
    """Whoever names this node is sent here now."""


@dataclass(frozen=True, slots=True)
class Called:
    """`caller` wants your port `port_name`."""

    caller: str
    port_name: str
    ticket: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The next byte is the other end's."""


@dataclass(frozen=True, slots=True)
class Ping:
    """The relay asks, the node answers with the same."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why not; from the receiver with the ticket of the dial that it means, else without one."""

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


def relay_token(secret: bytes, node_id: str) -> str:
    """What `node_id` signs with at every relay that holds `secret`: 64 hexadecimal digits."""
    return hmac.new(secret, b"molink relay " + node_id.encode(), hashlib.sha256).hexdigest()


def _check(value: str, pattern: re.Pattern[str]) -> None:
    if pattern.fullmatch(value) is None:
        raise FrameError(f"{value[:40]!r} is no name of a node or a port")
