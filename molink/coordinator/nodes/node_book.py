"""Book of nodes and what each reports of itself: the control plane's messages, kept by node.

Nothing here decides: the hub writes, the manager of rings reads, and `changed` wakes it. Times are
arguments, in seconds on a clock that never jumps.
"""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from molink.control.heartbeats import Heartbeats
from molink.control.messages.base import Unreadable
from molink.control.messages.payloads import (
    NodeHealth,
    NodeWish,
    PathReport,
    Presence,
    Profile,
    RatesSeen,
    StageFact,
)
from molink.control.versions import own_protocols
from molink.coordinator.nodes.node import Node
from molink.errors import ErrorGuard, FrameError

PATHS_MAX = 256
"""Nodes to which paths of one node are kept, the latest."""

SEEN_MAX = 256
"""Senders whose rates one node may report, the latest."""

NODES_MAX = 4096
"""Nodes beyond which others are ignored: a coordinator that plans for more has never been tried."""


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

    def set_drained(self, node: Node, *, is_drained: bool) -> None:
        """Keep a node from serving, or let it serve again, as its operator orders."""
        before = node.wants
        node.drained = is_drained
        (self.drained.add if is_drained else self.drained.discard)(node.node_id)
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
