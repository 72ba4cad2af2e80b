"""Protocol by which one node measures the path to another.

    the service: Hello(nonce)
    the node:    Measure(its id, a nonce of its own, proof)
    the service: Ready(proof over the node's nonce), once no other node is being served
    then frames, each answered by the same:     Echo(number)
    or once:     Bulk(), then bytes until the node has enough; the service counts them: Received(n)
    or once, at the coordinator's own service:  Give(), answered by bytes until the node closes

Who may measure whom is decided by the coordinator, when it orders it: the order brings a token for
the pair, an HMAC of the asking node's id under the asked node's probe key, and that key is an HMAC
of its owner's id under a secret of the coordinator. So the service checks a token with nothing but
its own key, no node can make a token for another pair, and the coordinator stores none. Public keys
would do as well (a Diffie-Hellman of the two nodes' keys), but every service would have to know
who is a member now. Tokens never travel (`molink.transport.preamble`); the service proves its own
knowledge as well, because a private address may belong to another PC in another home.
"""

import hashlib
import hmac
from dataclasses import dataclass

from molink.transport.preamble import Frames, Hello, Signed

PEER_PORT_NAME = "peer"
"""Name of the service's port at a relay."""

BULK_BYTES_MAX = 16 * 2**20
"""Bytes of one measurement: a second of 134 Mbps; a faster line is measured in less time."""

GIVE_BYTES_MAX = 8 * 2**20
"""Bytes of one measurement of a download: a second of 67 Mbps, about what a home takes and more
than a coordinator at home has."""


@dataclass(frozen=True, slots=True)
class Measure(Signed):
    """Request to be served."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class Ready(Signed):
    """Go ahead; the proof is over the asking node's nonce, `node_id` is its id again."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Refusal, with a sentence why."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Echo:
    """Frame that is answered by the same."""

    number: int


@dataclass(frozen=True, slots=True)
class Bulk:
    """Announcement of bytes that are no frame."""


@dataclass(frozen=True, slots=True)
class Give:
    """Request for bytes that are no frames."""


@dataclass(frozen=True, slots=True)
class ReceivedBytes:
    """Report that so many bytes have come by now."""

    bytes_total: int


PeerFrame = Hello | Measure | Ready | Reject | Echo | Bulk | Give | ReceivedBytes

PEER_FRAMES: Frames[PeerFrame] = Frames(
    {
        "hello": Hello,
        "measure": Measure,
        "ready": Ready,
        "sorry": Reject,
        "echo": Echo,
        "bulk": Bulk,
        "give": Give,
        "received": ReceivedBytes,
    }
)


def probe_key(secret: bytes, node_id: str) -> str:
    """The key of a node's (or of the coordinator's) own service."""
    return hmac.new(secret, b"molink probe " + node_id.encode(), hashlib.sha256).hexdigest()


def probe_token(key: str, asking: str) -> str:
    """Token with which `asking` signs at the service whose probe key is `key`."""
    return hmac.new(key.encode(), b"asks " + asking.encode(), hashlib.sha256).hexdigest()
