"""One node as far as it is known, by what it reports of itself and what it was told to do."""

from dataclasses import dataclass, field

from molink.control.messages.assignment import Assignment, Command, Follow, GoOn, Hold, Join
from molink.control.messages.base import Unreadable
from molink.control.messages.payloads import (
    NodeHealth,
    NodeState,
    NodeWish,
    PathMeasured,
    Presence,
    Profile,
    StageFact,
)
from molink.coordinator.nodes.slowdown import AS_REPORTED, Slowdown
from molink.stage_protocol.progress import ShadowLag
from molink.tasks import Signal


@dataclass(frozen=True, slots=True)
class Contribution:
    """Contribution of one node since it first joined."""

    uptime_s: float = 0.0
    token_layers: int = 0
    """Generated tokens times the layers that the node held for them."""
    bytes_sent: int = 0

    def __add__(self, other: "Contribution") -> "Contribution":
        return Contribution(
            self.uptime_s + other.uptime_s,
            self.token_layers + other.token_layers,
            self.bytes_sent + other.bytes_sent,
        )


@dataclass(slots=True)
class Node:
    """One node as far as it is known: a PC, or a further device of one."""

    node_id: str
    public_key: str = ""
    """CURVE, Z85; empty: not registered, and in no ring."""
    presence: Presence | None = None
    profile: Profile | None = None
    paths: dict[str, PathMeasured] = field(default_factory=dict)
    """Path to each neighbour."""
    paths_round: int = -1
    """Round of the latest report on paths."""
    seen: dict[str, float] = field(default_factory=dict)
    """Sender to the Mbps that this node has received from it, by its own count."""
    coordinator_seen_mbps: float = 0.0
    """Rate at which the coordinator has received from this node, by its own count; 0: none yet."""
    slowdown: Slowdown = AS_REPORTED
    """Slowdown of its steps and its link, as they were measured while it served."""
    fact: StageFact | None = None
    health: NodeHealth | None = None
    heard_at: float = 0.0
    """When the latest health report came."""
    wish: NodeWish | None = None
    changes: int = 0
    """How often it has come, gone or changed its wish."""
    assignment: Assignment | None = None
    """The last that was sent."""
    covers: str = ""
    """Name of the node whose layers it holds, to take its place; empty: of none."""
    behind: ShadowLag | None = None
    """How far its KV is behind; None: it holds none."""
    lost: bool = False
    drained: bool = False
    """Whether the operator keeps it from serving."""
    quarantined: str = ""
    """Fault that audits have found, for which it serves no more; empty: none."""
    outdated: str = ""
    """Why its build can be in no ring of ours, and who is to update what; empty: it can."""
    suspended: str = ""
    """Why the coordinator does not listen to it for a while; empty: it does."""
    pc: str = ""
    """Id of the PC's first device: its own, unless it is a further device of that PC."""
    is_local: bool = False
    """Whether it runs in this process (`molink serve`): it is lost with us, and not measured."""
    changed: Signal = field(default_factory=Signal, repr=False, compare=False)
    """Signal that it has reported something, has gone or was removed."""

    def __post_init__(self) -> None:
        self.pc = self.pc or self.node_id

    @property
    def name(self) -> str:
        """Name of the node, for people."""
        return self.presence.name if self.presence is not None else self.node_id

    @property
    def is_here(self) -> bool:
        """Whether it is connected and alive."""
        is_online = self.presence is not None and self.presence.online
        return is_online and not self.lost and not self.suspended

    @property
    def latest_identity(self) -> tuple[Presence | None, Profile | None]:
        """Presence and profile of the node, as it has reported last."""
        return self.presence, self.profile

    @property
    def may_serve(self) -> bool:
        """Whether its owner lends it now and it is measured."""
        return self.is_here and self.wants == "serve" and self.is_measured

    @property
    def wants(self) -> str:
        """Wish of its owner: serve, pause or leave; drained, quarantined or outdated it pauses at
        least. Whatever plans a node, or lets it hold anything, asks here."""
        wish = self.wish.wish if self.wish is not None else "serve"
        is_kept_out = self.drained or self.quarantined or self.outdated
        return "pause" if is_kept_out and wish == "serve" else wish

    @property
    def kept_out_reason(self) -> str:
        """Why it holds nothing now, by its operator's, its owner's or its own word; empty: only
        because no ring needs it."""
        if self.drained:
            return "The operator has asked this PC to pause."
        if self.quarantined:
            return f"It is quarantined: {self.quarantined}"
        if self.outdated:
            return self.outdated
        return self.wish.reason if self.wish is not None and self.wish.wish != "serve" else ""

    @property
    def is_measured(self) -> bool:
        """Whether a plan can count on it."""
        profile = self.profile
        if profile is None:
            return False
        is_timed = profile.steps is not None or _tells_plain(profile)
        return self.is_local or (is_timed and bool(profile.devices))

    @property
    def may_measure(self) -> bool:
        """Whether it is asked how fast it is, and its paths are."""
        return self.is_here and self.profile is not None and not self.outdated

    def has_timed(self, model: str) -> bool:
        """Whether it has timed a layer of this very model."""
        steps = self.profile.steps if self.profile is not None else None
        return self.is_local or (steps is not None and steps.model == model)

    @property
    def is_assigned(self) -> bool:
        """Whether it is to hold layers."""
        return self.assignment is not None and self.assignment.work is not None

    @property
    def current_fact(self) -> StageFact | None:
        """How far it is with its assignment."""
        fact, assignment = self.fact, self.assignment
        if fact is None or assignment is None or fact.revision != assignment.revision:
            return None
        return fact

    @property
    def state(self) -> NodeState:
        """State of the node as GET /cluster shows it."""
        if not self.is_here:
            has_left = self.wish is not None and self.wish.wish == "leave"
            return NodeState.LEFT if has_left else NodeState.LOST
        if self.outdated:
            return NodeState.OUTDATED
        if self.is_assigned:
            return self._assigned_state()
        if self.wants != "serve":
            return NodeState.PAUSED
        return NodeState.STANDBY if self.is_measured else NodeState.JOINING

    def _assigned_state(self) -> NodeState:
        if self.wants != "serve":
            return NodeState.DRAINING
        command = self.assignment.command if self.assignment is not None else None
        has_place, fact = isinstance(command, Join | GoOn), self.current_fact
        is_ready = fact.kind == "ready" if fact is not None else _stays(command)
        is_loaded = is_ready or (fact is not None and fact.kind == "loaded")
        if self.covers and not has_place and is_loaded:
            return NodeState.STANDBY
        return NodeState.SERVING if is_ready else NodeState.LOADING


def _stays(command: Command | Unreadable | None) -> bool:
    """Whether a stage stays as it is while its ring goes on without another one."""
    is_survivor = isinstance(command, GoOn) and not command.resume.fresh
    return is_survivor or isinstance(command, Hold | Follow)


def _tells_plain(profile: Profile) -> bool:
    """Whether it tells how fast a device multiplies with plain weights, against which all else is
    counted."""
    return any(
        one.format == "plain" and one.read_s > 0 and one.row_s > 0 for one in profile.formats
    )
