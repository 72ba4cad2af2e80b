"""Every topic of the control plane, with what it carries, and what arrives on them as values.

All topics of a node lie under `molink/v1/node/ID/`, so that a broker's rule for a node is two
patterns of whole levels: it writes its own `said/#`, it reads its own `told/#`. A test of prefixes
would let `n1` read what is meant for `n10`.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from molink.control.messages.assignment import Assignment
from molink.control.messages.base import is_bare
from molink.control.messages.cell import CellOrder, PairOrder
from molink.control.messages.payloads import (
    Accepted,
    CoordinatorPresence,
    LinkKeys,
    NodeHealth,
    NodeWish,
    PathReport,
    Presence,
    ProbeOrder,
    Profile,
    RatesSeen,
    Services,
    ShadowOrder,
    StageFact,
    StageLease,
)
from molink.printable import printable_line

ROOT = "molink/v1"

Message = TypeVar("Message", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Topic(Generic[Message]):
    """Topic of one kind of message, about a node or about the coordinator."""

    path: str
    """`{node}` stands for the node's id."""
    message: type[Message]
    qos: int
    """1 for what must arrive (a receiver takes the same message twice without harm), 0 for what the
    next one replaces."""
    retained: bool
    """Whether who comes later must find the last one: states, not events."""

    def of(self, node_id: str) -> str:
        """The topic of one node."""
        return self.path.format(node=node_id)

    @property
    def of_all(self) -> str:
        """Filter for the topics of all nodes."""
        return self.path.format(node="+")


_BY_PATH: dict[str, Topic[Any]] = {}


def _topic(
    path: str, message: type[Message], *, qos: int = 1, retained: bool = True
) -> Topic[Message]:
    topic = Topic(f"{ROOT}/{path}", message, qos, retained)
    _BY_PATH[topic.path] = topic
    return topic


PRESENCE = _topic("node/{node}/said/presence", Presence)
"""Joined; the last will says lost."""
PROFILE = _topic("node/{node}/said/profile", Profile)
"""The PC, and what its owner lends of it."""
PATHS = _topic("node/{node}/said/paths", PathReport)
"""Paths to its neighbours, as it has measured them."""
SEEN = _topic("node/{node}/said/seen", RatesSeen)
"""Rates at which neighbours have sent to it, by its own count."""
HEALTH = _topic("node/{node}/said/health", NodeHealth, qos=0, retained=False)
"""Report of its stage, about once a second; also the heartbeat."""
FACT = _topic("node/{node}/said/fact", StageFact)
"""Progress with its assignment."""
WISH = _topic("node/{node}/said/wish", NodeWish)
"""Drain: the owner wants to pause or leave; or to be used again."""
ASSIGNMENT = _topic("node/{node}/told/assignment", Assignment)
"""Layers to hold, and the ring; the whole state, not a change of it."""
ACCEPTED = _topic("node/{node}/told/accepted", Accepted)
"""The one of two agents with one id that stays."""
LINK_KEYS = _topic("node/{node}/told/link-keys", LinkKeys)
"""Public keys whose links it accepts: the coordinator vouches for them."""
SHADOW = _topic("node/{node}/told/shadow", ShadowOrder)
"""Where the shadow of the next stage is."""
LEASE = _topic("node/{node}/told/lease", StageLease, retained=False)
"""Room at a lender that its stage has from now on; it holds a key, and none but that stage may
come for it later."""
PAIR = _topic("node/{node}/told/pair", PairOrder, retained=False)
"""End of a hand-over of KV that its stage has from now on, with the pair's key."""
SERVICES = _topic("node/{node}/told/services", Services)
"""Relay, measurements, STUN: where they are, and the keys to them."""
PROBE = _topic("node/{node}/told/probe", ProbeOrder)
"""Neighbours to measure, and where they are."""
CELL = _topic("node/{node}/told/cell", CellOrder)
"""Leases that a PC is to allow to others of its LAN, with their keys."""
COORDINATOR = _topic("coordinator/said/presence", CoordinatorPresence)
"""Every node may read it."""

ALL_TOPICS: tuple[Topic[Any], ...] = tuple(_BY_PATH.values())


def node_of(topic: str) -> str | None:
    """The node id in a topic; None when it is of no node."""
    levels = topic.split("/")
    return levels[3] if len(levels) > 4 and levels[2] == "node" else None


class UnreadableError(ValueError):
    """Raised when something arrived that is no message of ours."""


@dataclass(frozen=True, slots=True)
class Received:
    """Message that has arrived; `received.topic is PRESENCE` tells its kind."""

    topic: Topic[Any]
    node_id: str
    """The node that it is about, which sent it where nodes write; empty for the coordinator's."""
    message: BaseModel
    """The payload, an instance of `topic.message`."""
    retained: bool = False
    """Sent earlier, perhaps long ago: it is no heartbeat."""
    arrived_s: float = 0.0
    """When it came off the socket, on a clock that never jumps."""


def topic_of(path: str) -> Topic[Any] | None:
    """The topic of a path; None when it is none of ours."""
    return _BY_PATH.get(path if node_of(path) is None else _template(path))


def read_message(path: str, payload: bytes, retained: bool, arrived_s: float = 0.0) -> Received:
    """The message of a payload: a text is no number there, and a number no truth.

    Raises UnreadableError for an unknown topic or a payload that does not fit it.
    """
    topic = topic_of(path)
    if topic is None:
        raise UnreadableError(f"unknown topic {path[:200]!r}")
    try:
        bare = is_bare(payload)
        message = topic.message.model_validate_json(payload, strict=True, context=bare)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableError(printable_line(f"{path}: {where} {first['msg']}")) from None
    return Received(topic, node_of(path) or "", message, retained, arrived_s)


def _template(path: str) -> str:
    levels = path.split("/")
    levels[3] = "{node}"
    return "/".join(levels)
