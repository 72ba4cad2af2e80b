"""Every topic of the control plane, with what it carries, and what arrives on them as values.

All topics of a node lie under `molink/v1/node/ID/`, so that a broker's rule for a node is two
patterns of whole levels: it writes its own `said/#`, it reads its own `told/#`. A test of prefixes
would let `n1` read what is meant for `n10`.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from molink.control.messages.payloads import (
    Accepted,
    Assignment,
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
    StageFact,
)

__all__ = [
    "ACCEPTED",
    "ALL_TOPICS",
    "ASSIGNMENT",
    "COORDINATOR",
    "FACT",
    "HEALTH",
    "LINK_KEYS",
    "PATHS",
    "PRESENCE",
    "PROBE",
    "PROFILE",
    "ROOT",
    "SEEN",
    "SERVICES",
    "WISH",
    "Received",
    "Topic",
    "UnreadableError",
    "node_of",
    "read_message",
]

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


PRESENCE = Topic(f"{ROOT}/node/{{node}}/said/presence", Presence, qos=1, retained=True)
"""Joined; the last will says lost."""
PROFILE = Topic(f"{ROOT}/node/{{node}}/said/profile", Profile, qos=1, retained=True)
"""The PC, and what its owner lends of it."""
PATHS = Topic(f"{ROOT}/node/{{node}}/said/paths", PathReport, qos=1, retained=True)
"""Paths to its neighbours, as it has measured them."""
SEEN = Topic(f"{ROOT}/node/{{node}}/said/seen", RatesSeen, qos=1, retained=True)
"""Rates at which neighbours have sent to it, by its own count."""
HEALTH = Topic(f"{ROOT}/node/{{node}}/said/health", NodeHealth, qos=0, retained=False)
"""Report of its stage, about once a second; also the heartbeat."""
FACT = Topic(f"{ROOT}/node/{{node}}/said/fact", StageFact, qos=1, retained=True)
"""Progress with its assignment."""
WISH = Topic(f"{ROOT}/node/{{node}}/said/wish", NodeWish, qos=1, retained=True)
"""Drain: the owner wants to pause or leave; or to be used again."""
ASSIGNMENT = Topic(f"{ROOT}/node/{{node}}/told/assignment", Assignment, qos=1, retained=True)
"""Layers to hold, and the ring; the whole state, not a change of it."""
ACCEPTED = Topic(f"{ROOT}/node/{{node}}/told/accepted", Accepted, qos=1, retained=True)
"""The one of two agents with one id that stays."""
LINK_KEYS = Topic(f"{ROOT}/node/{{node}}/told/link-keys", LinkKeys, qos=1, retained=True)
"""Public keys whose links it accepts: the coordinator vouches for them."""
SERVICES = Topic(f"{ROOT}/node/{{node}}/told/services", Services, qos=1, retained=True)
"""Relay, measurements, STUN: where they are, and the keys to them."""
PROBE = Topic(f"{ROOT}/node/{{node}}/told/probe", ProbeOrder, qos=1, retained=True)
"""Neighbours to measure, and where they are."""
COORDINATOR = Topic(f"{ROOT}/coordinator/said/presence", CoordinatorPresence, qos=1, retained=True)
"""Every node may read it."""

ALL_TOPICS: tuple[Topic[BaseModel], ...] = (  # type: ignore[assignment]
    PRESENCE,
    PROFILE,
    PATHS,
    SEEN,
    HEALTH,
    FACT,
    WISH,
    ASSIGNMENT,
    ACCEPTED,
    LINK_KEYS,
    SERVICES,
    PROBE,
    COORDINATOR,
)


def node_of(topic: str) -> str | None:
    """The node id in a topic; None when it is of no node."""
    levels = topic.split("/")
    return levels[3] if len(levels) > 4 and levels[2] == "node" else None


_BY_PATH: dict[str, Topic[Any]] = {topic.path: topic for topic in ALL_TOPICS}


class UnreadableError(ValueError):
    """Raised when something arrived that is no message of ours."""


@dataclass(frozen=True, slots=True)
class Received:
    """Message that has arrived; `received.topic is PRESENCE` tells its kind."""

    topic: Topic[Any]
    node_id: str
    """The node that it is about, which sent it where nodes write; empty for the coordinator's."""
    message: BaseModel
    """Of the class `topic.message`."""
    retained: bool = False
    """Sent earlier, perhaps long ago: it is no heartbeat."""


def read_message(path: str, payload: bytes, retained: bool) -> Received:
    """The message of a payload. Raises UnreadableError for an unknown topic or one that does not
    fit it."""
    node_id = node_of(path)
    topic = _BY_PATH.get(path if node_id is None else _template(path))
    if topic is None:
        raise UnreadableError(f"unknown topic {path[:200]!r}")
    try:
        message = topic.message.model_validate_json(payload)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableError(f"{path}: {where} {first['msg']}") from None
    return Received(topic, node_id or "", message, retained)


def _template(path: str) -> str:
    levels = path.split("/")
    levels[3] = "{node}"
    return "/".join(levels)
