"""What travels on the control plane. It is checked where it arrives: whoever sends may lie.

Unknown keys are ignored, so that an older coordinator understands a newer agent. What nodes measure
and lend stands in `profile_messages`, and is known by these names too.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from molink.control.messages.base import (
    SENTENCE_CHARACTERS_MAX,
    Address,
    Embedded,
    Key,
    Message,
    ModelSize,
    NodeId,
    Sentence,
    Unreadable,
)
from molink.control.messages.profile import (
    Device,
    PathMeasured,
    PathReport,
    PeerAddress,
    ProbeOrder,
    Profile,
    RateSeen,
    RatesSeen,
    StepCost,
)
from molink.stage_protocol.messages import (
    HEALTH,
    LOADED,
    TERMS,
    StageHealth,
    StageLoaded,
    StageWork,
)
from molink_scheduler.head.settings import RingTerms

__all__ = [
    "SENTENCE_CHARACTERS_MAX",
    "Accepted",
    "AssignedWork",
    "Assignment",
    "CoordinatorPresence",
    "Device",
    "Key",
    "LinkKeys",
    "Message",
    "ModelSize",
    "NodeHealth",
    "NodeId",
    "NodeState",
    "NodeWish",
    "PathMeasured",
    "PathReport",
    "PeerAddress",
    "Presence",
    "ProbeOrder",
    "Profile",
    "RateSeen",
    "RatesSeen",
    "Services",
    "StageFact",
    "StageLink",
    "StepCost",
    "Unreadable",
    "WeightsSource",
]


class NodeState(StrEnum):
    """What a node is doing, as GET /cluster shows it."""

    JOINING = "joining"
    LOADING = "loading"
    SERVING = "serving"
    STANDBY = "standby"
    PAUSED = "paused"
    DRAINING = "draining"
    LOST = "lost"


class Presence(Message):
    """A node is there (or, as its last will, is not)."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """For people: the PC's host name unless its owner chose another."""
    incarnation: Annotated[str, Field(min_length=8, max_length=40)]
    """Drawn at each start of the agent: two of them under one id are a copied data directory."""
    started_unix_s: float
    """Coordinator's clock as the agent knows it: of two incarnations the later one stays."""
    version: Annotated[str, Field(max_length=40)]
    online: bool
    reason: Sentence = ""


class Accepted(Message):
    """Which start of the agent counts; an agent of an earlier one, with the same keys, ends."""

    incarnation: Annotated[str, Field(max_length=40)]
    started_unix_s: float


class Services(Message):
    """What the coordinator runs for its nodes, with this node's own keys to it."""

    relay: Annotated[str, Field(max_length=300)] = ""
    """host:port; empty: there is none."""
    relay_token: Annotated[str, Field(max_length=64)] = Field(default="", repr=False)
    probe_key: Annotated[str, Field(max_length=64)] = Field(default="", repr=False)
    """By which its peer service knows who may measure."""
    stun_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """UDP, at the coordinator's host; 0: it answers none."""
    model: ModelSize | None = None
    """What it serves; None: of an older coordinator."""


class WeightsSource(Message):
    """Where the weights come from, and how to know them."""

    model: Annotated[str, Field(max_length=300)]
    """Public name; a hub id where `url` is empty."""
    url: Annotated[str, Field(max_length=500)] = ""
    """The coordinator's `GET URL/manifest`, `GET URL/files/NAME` (ranges); empty: from the hub."""


@dataclass(frozen=True, slots=True)
class AssignedWork(StageWork):
    """What a stage shall hold, and where its weights come from."""

    weights: WeightsSource = field(kw_only=True)


class StageLink(Message):
    """Where one outgoing link leads."""

    to: str
    """A node id, or "coordinator"."""
    public_key: Key
    addresses: Annotated[tuple[Address, ...], Field(max_length=16)]
    """Tried in this order; the link's own port at the receiver."""
    port_name: Annotated[str, Field(max_length=20)]
    """"ring" or "requests": which of the receiver's ports, when the way is a relay."""
    relay: Annotated[str, Field(max_length=300)] = ""
    """host:port of the relay that leads there too; empty: none."""


class Assignment(Message):
    """All that a node shall do now. Two steps: load (without `join`), then join."""

    revision: int
    """Counts up over everything that this coordinator's database has ever told the node."""
    ring: Annotated[int, Field(ge=0)] = 0
    epoch: Annotated[int, Field(ge=0)] = 0
    stage: int = 0
    stages: int = 0
    work: AssignedWork | None = None
    """None: standby."""
    join: Annotated[RingTerms | Unreadable, Embedded(TERMS)] | None = None
    """None: load and wait."""
    next_link: StageLink | None = None
    coordinator_link: StageLink | None = None
    """Of the tail."""
    reason: Sentence = ""
    """Why this node does what it does, for its owner."""


class StageFact(Message):
    """How far a node is with an assignment."""

    revision: int
    """Of the assignment."""
    kind: Literal["downloading", "loading", "loaded", "ready", "failed", "stopped"]
    fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    line: Annotated[StageLoaded | Unreadable | None, Embedded(LOADED, none={})] = Field(
        default_factory=lambda: None
    )
    """Of "loaded"."""
    message: Sentence = ""
    user_fault: bool = False
    """Of "failed": whether what was asked for cannot be, as opposed to this node."""


class NodeHealth(Message):
    """Heartbeat, with the stage's own report when it has one."""

    incarnation: Annotated[str, Field(max_length=40)]
    state: NodeState
    uptime_s: Annotated[float, Field(ge=0)]
    stage: Annotated[StageHealth | Unreadable, Embedded(HEALTH)] | None = None
    paths: dict[str, str] = Field(default_factory=dict)
    """Outgoing link's name to "direct" or "relay"."""


class NodeWish(Message):
    """What the owner wants."""

    wish: Literal["serve", "pause", "leave"]
    reason: Sentence = ""


class LinkKeys(Message):
    """Who may connect to this node's links."""

    revision: int
    allowed: Annotated[tuple[Key, ...], Field(max_length=64)]


class CoordinatorPresence(Message):
    """The coordinator is there."""

    online: bool
    session: Annotated[str, Field(max_length=40)]
    """Drawn at each start: stages of an older one end."""
    model: Annotated[str, Field(max_length=300)] = ""
