"""Book of nodes and what each reports of itself: the control plane's messages, kept by node.

Nothing here decides: the hub writes, the manager of rings reads, and `changed` wakes it. Times are
arguments, in seconds on a clock that never jumps.
"""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from molink.control.heartbeats import Heartbeats
from molink.control.messages.assignment import Assignment, Command, Follow, GoOn, Hold, Join
from molink.control.messages.base import Unreadable
from molink.control.messages.payloads import (
    NodeHealth,
    NodeState,
    NodeWish,
    PathMeasured,
    PathReport,
    Presence,
    Profile,
    RatesSeen,
    StageFact,
)
from molink.control.versions import own_protocols
from molink.coordinator.nodes.slowdown import AS_REPORTED, Slowdown
from molink.errors import ErrorGuard, FrameError
from molink.stage_protocol.progress import ShadowLag
from molink.tasks import Signal

PATHS_MAX = 256
"""Nodes to which paths of one node are kept, the latest."""

SEEN_MAX = 256
"""Senders whose rates one node may report, the latest."""

NODES_MAX = 4096
"""Nodes beyond which others are ignored: a coordinator that plans for more has never been tried."""


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
            return NodeState.LOST
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


@dataclass(slots=True)
class NodeBook:
    """Book of all nodes that are known since the coordinator started."""

    local: bool = False
    """Whether they are nodes of this process."""
    nodes: dict[str, Node] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set when there is something new to decide about; the reader clears it."""
    drained: set[str] = field(default_factory=set)
    """Ids of the nodes that the operator keeps from serving, here or not."""
    quarantined: dict[str, str] = field(default_factory=dict)
    """Ids of the nodes that were found out by audits, here or not, and the sentences."""
    refusals: ErrorGuard = field(default_factory=lambda: ErrorGuard("Reading a stage's report"))
    """Guard over reports of agents of another version, or of agents that lie."""
    downloading_at: dict[str, float] = field(default_factory=dict)
    """When a download to a PC was last seen to go on: its devices download in turn."""
    made_wait_at: dict[str, float] = field(default_factory=dict)
    """When the coordinator last made a PC's download wait."""
    _heartbeats: Heartbeats = field(default_factory=Heartbeats)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def node(self, node_id: str) -> Node:
        """The entry of a node, made the first time."""
        if node_id not in self.nodes:
            is_drained, found = node_id in self.drained, self.quarantined.get(node_id, "")
            new = Node(node_id, drained=is_drained, quarantined=found, is_local=self.local)
            self.nodes[node_id] = new
        return self.nodes[node_id]

    def wake(self, node: Node) -> None:
        """Whoever waits for news of a node, or of any, shall see what has changed."""
        node.changed.send()
        self.changed.set()

    def hold(self, node: Node, *, is_held: bool) -> None:
        """Keep a node from serving, or let it serve again, as its operator orders."""
        before = node.wants
        node.drained = is_held
        (self.drained.add if is_held else self.drained.discard)(node.node_id)
        node.changes += before != node.wants
        self.wake(node)

    def take(self, node_id: str, message: object, now: float, *, live: bool = True) -> bool:
        """Note what a node reports; False for a message that is not for a coordinator.

        A report that is not `live` was published before we listened: the node may be gone.
        """
        node = self.node(node_id)
        before = (node.is_here, node.wants)
        match message:
            case Presence():
                _take_presence(node, message, live=live)
            case Profile():
                node.profile = message
            case PathReport():
                _take_paths(node, message)
            case RatesSeen():
                _take_seen(node, message)
            case StageFact():
                if _goes_on(node.fact, message):
                    self.downloading_at[node.pc] = now
                _take_fact(node, message)
            case NodeHealth():
                self._take_health(node, message)
                node.heard_at = now
            case NodeWish():
                node.wish = message
            case _:
                return False
        node.changes += before != (node.is_here, node.wants)
        if node.is_here and live:
            self._heartbeats.beat(node_id, now)
        return True

    def _take_health(self, node: Node, message: NodeHealth) -> None:
        """Take a report on a stage; an unreadable one is counted, and the one before stays."""
        if isinstance(message.stage, Unreadable):
            with self.refusals:
                raise FrameError(f"{node.name}: {message.stage.why}")
            before = node.health.stage if node.health is not None else None
            message = message.model_copy(update={"stage": before})
        node.health, node.lost = message, False

    def note_heard(self, node_id: str, at_s: float) -> None:
        """Note that a node was heard then, though its message may still wait to be read."""
        node = self.nodes.get(node_id)
        if node is not None and node.is_here:
            self._heartbeats.beat(node_id, at_s)

    def last_download(self, pc: str) -> float:
        """Time when a download of any of a PC's devices was last seen to go on."""
        return self.downloading_at.get(pc, 0.0)

    def make_wait(self, pc: str, now: float) -> None:
        """Note that a PC's download waits for the coordinator, or shares its line with others."""
        self.made_wait_at[pc] = now

    def last_wait(self, pc: str) -> float:
        """Time when a PC's download last waited for the coordinator."""
        return self.made_wait_at.get(pc, -math.inf)

    def note_rate(self, node_id: str, rate_mbps: float) -> None:
        """Note that the coordinator itself has received bytes of a node at this rate."""
        if node_id in self.nodes:
            self.nodes[node_id].coordinator_seen_mbps = rate_mbps

    def notice_silence(self, now: float) -> list[Node]:
        """The nodes that have missed their heartbeats since the last call; they count as lost."""
        fallen = self._heartbeats.fallen_silent(now)
        silent = [self.nodes[node_id] for node_id in fallen if node_id in self.nodes]
        for node in silent:
            node.lost = True
            node.changes += 1
        return silent

    def excuse_silence(self, now: float) -> None:
        """Count silence from now on: until now no heartbeat could arrive (the broker was away)."""
        for node in self:
            if node.is_here:
                self._heartbeats.beat(node.node_id, now)

    def drop(self, node_id: str) -> None:
        """Forget a node that was removed; its entry, where one is held, is that of a lost node."""
        self._heartbeats.forget(node_id)
        self.drained.discard(node_id)
        self.quarantined.pop(node_id, None)
        node = self.nodes.pop(node_id, None)
        if node is not None:
            node.lost, node.presence = True, None
            self.wake(node)


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


def _take_paths(node: Node, message: PathReport) -> None:
    """Add the paths of a report to those measured before: a round is of the paths that are new."""
    for path in message.paths:
        node.paths.pop(path.to, None)
        node.paths[path.to] = path
    while len(node.paths) > PATHS_MAX:
        node.paths.pop(next(iter(node.paths)))
    node.paths_round = message.round


def _take_seen(node: Node, message: RatesSeen) -> None:
    """Add reported rates to those seen before: an agent that starts anew forgets its counts."""
    for rate in message.rates:
        node.seen.pop(rate.sender, None)
        node.seen[rate.sender] = rate.rate_mbps
    while len(node.seen) > SEEN_MAX:
        node.seen.pop(next(iter(node.seen)))


def _take_fact(node: Node, message: StageFact) -> None:
    """Progress that comes late does not undo what it led to."""
    before = node.fact
    is_late = (
        before is not None
        and before.revision == message.revision
        and before.kind in ("loaded", "ready")
        and message.kind in ("downloading", "loading")
    )
    if not is_late:
        node.fact = message


def _goes_on(before: StageFact | None, message: StageFact) -> bool:
    """Whether a fact shows that a download goes on."""
    is_same = before is not None and before.revision == message.revision
    rises = before is not None and message.fraction > before.fraction
    return message.kind == "downloading" and is_same and rises


def _take_presence(node: Node, message: Presence, *, live: bool) -> None:
    """Take a presence; a new incarnation holds nothing of what the one before held."""
    before = node.presence
    if before is not None and not message.online and before.incarnation != message.incarnation:
        return  # The will of an agent that another has replaced.
    if before is None:
        node.lost = not live
    elif message.online and live:
        node.lost = False
    node.presence = message
    node.outdated = own_protocols().trouble(message.protocol)
    if before is not None and before.incarnation != message.incarnation:
        node.fact = node.health = None
