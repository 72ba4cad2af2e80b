"""Probing of the paths between nodes: each measures those to neighbours that may form a ring.

All pairs of a small cluster, of a large one so many for each node, spread evenly, so that one
round costs a node some seconds of its line and no more. Of a change only the paths are measured
anew that end at a node which has come or moved; who moves all the time is not followed. A newcomer
gets the model's config at once, and times a layer while the others are waited for.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from molink.control.client import ControlClient
from molink.control.messages.payloads import PeerAddress, ProbeOrder
from molink.control.messages.topics import PROBE
from molink.coordinator.nodes.node import Node
from molink.token_bucket import TokenBucket
from molink.transport.peer.protocol import probe_key, probe_token
from molink.transport.relay.protocol import COORDINATOR

PEERS_MAX = 12
"""Most neighbours that one node measures in a round: each takes a second of sending."""

QUIET_S = 1.0
"""Seconds after a change among the nodes: those that start together are measured together."""

QUIET_MAX_S = 3.0
"""Seconds after the first change: a node that changes all the time holds nobody up."""

MOVES_FREE, MOVE_PERIOD_S = 5, 600.0
"""How often a node may move before it is measured anew only so often: a router restarts, an agent
is set up; beyond that its neighbours' seconds of sending are not its to spend."""

AGAIN_S = 6 * 3600.0
"""Home lines change by the hour; a round costs each node a dozen seconds of upload."""

ORDERS_AT_ONCE = 50
"""Orders sent at once: each waits for the broker; a thousand one after the other took seconds."""

Addresses = tuple[str, ...]

Locations = frozenset[tuple[str, Addresses]]
"""Nodes and their addresses."""


@dataclass(slots=True)
class Probing:
    """Orderer of measurements: a round when a node has come, and every few hours."""

    model: str
    config: Mapping[str, Any]
    """The model's config.json."""
    secret: bytes
    """Secret from which tokens between nodes are made."""
    round: int = 0
    _known: Locations = frozenset()
    _changed_at: float = 0.0
    _unsettled_since: float | None = None
    """When the first of the changes came since all was quiet."""
    _ordered: Locations = frozenset()
    _ordered_at: float = 0.0
    """When all nodes were."""
    _located: dict[str, Addresses] = field(default_factory=dict)
    """Addresses of each node that count; it may have changed them too often since."""
    _moves: dict[str, TokenBucket] = field(default_factory=dict)
    _measured: dict[tuple[str, str], tuple[Addresses, Addresses]] = field(default_factory=dict)
    """Node and peer to the addresses of both when their path was last ordered; with "" for a peer,
    the path to the coordinator."""
    _latest: dict[str, tuple[int, frozenset[str]]] = field(default_factory=dict)
    """Round and peers of each node's latest order."""
    _asked: dict[str, frozenset[str]] = field(default_factory=dict)
    """Peers that each node was last ordered to measure."""
    _asked_about: Sequence[Node] = ()
    _to_be_asked: dict[str, Sequence[Node]] = field(default_factory=dict)
    """Peers that each node of one list would be ordered to measure."""
    _timing: dict[str, str] = field(default_factory=dict)
    """Nodes that were sent the model's config, and the incarnations of their agents then."""

    def key_of(self, node_id: str) -> str:
        """Key with which a node's own peer service checks its askers."""
        return probe_key(self.secret, node_id)

    def asked_of(self, node: Node, nodes: Sequence[Node]) -> frozenset[str]:
        """Peers that `node` measures, or will once it is ordered to."""
        if node.node_id in self._asked:
            return self._asked[node.node_id]
        if nodes is not self._asked_about:
            here = [one for one in nodes if one.may_measure]
            self._asked_about, self._to_be_asked = nodes, peers_of(here)
        return _ids(self._to_be_asked.get(node.node_id, ()))

    async def order_if_due(self, client: ControlClient, nodes: Sequence[Node], now: float) -> None:
        """Order a round if it is time."""
        here = [node for node in nodes if node.may_measure]
        await self.order_timing(client, here)
        known = self._locations(here, now)
        is_news = self._is_quiet(known, now) and bool(known - self._ordered)
        again = now - self._ordered_at >= AGAIN_S
        if not is_news and not again:
            return
        self._ordered, self._ordered_at = known, now if again else self._ordered_at
        self.round += 1
        await self._order_paths(client, here, again=again)

    async def _order_paths(
        self, client: ControlClient, here: Sequence[Node], *, again: bool
    ) -> None:
        """Have nodes measure the paths to their peers: all, or those of which an end is new."""
        if again:
            self._measured.clear()
        orders, by_id = [], {node.node_id: node for node in here}
        for node_id, peers in peers_of(here).items():
            self._asked[node_id] = _ids(peers)
            new = self._unmeasured(node_id, ["", *self._asked[node_id]])
            if new:
                node = by_id[node_id]
                new |= self._unanswered(node)
                self._latest[node_id] = self.round, frozenset(new)
                orders.append((node, [peer for peer in peers if peer.node_id in new]))
        for start in range(0, len(orders), ORDERS_AT_ONCE):
            some = [
                (node.node_id, self._order(node, peers, self._own_token(node)))
                for node, peers in orders[start : start + ORDERS_AT_ONCE]
            ]
            await asyncio.gather(*(client.publish(PROBE, *order) for order in some))

    def _locations(self, here: Sequence[Node], now: float) -> Locations:
        """Addresses of the nodes; a node that has moved too often keeps its old ones."""
        for node in here:
            assert node.profile is not None, "only nodes with a profile are measured"
            node_id, addresses = node.node_id, node.profile.addresses
            if self._located.get(node_id) == addresses:
                continue
            moves = self._moves.setdefault(node_id, TokenBucket(1 / MOVE_PERIOD_S, MOVES_FREE))
            if moves.level(now) >= 1:
                moves.spend(1, now)
                self._located[node_id] = addresses
        return frozenset((node.node_id, self._located[node.node_id]) for node in here)

    def _is_quiet(self, known: Locations, now: float) -> bool:
        """Whether nothing has changed for a moment, or something has for too long."""
        if known != self._known:
            self._known, self._changed_at = known, now
            if self._unsettled_since is None:
                self._unsettled_since = now
        since = self._unsettled_since
        is_quiet = now - self._changed_at >= QUIET_S
        if is_quiet:
            self._unsettled_since = None
        return is_quiet or (since is not None and now - since >= QUIET_MAX_S)

    def _unmeasured(self, node_id: str, peer_ids: Sequence[str]) -> set[str]:
        """Peers to which a node's path was not ordered yet, from its present place to theirs; they
        count as ordered now."""
        own, found = self._located[node_id], set()
        for peer_id in peer_ids:
            ends = own, self._located.get(peer_id, ())
            if self._measured.get((node_id, peer_id)) != ends:
                self._measured[node_id, peer_id] = ends
                found.add(peer_id)
        return found

    def _unanswered(self, node: Node) -> frozenset[str]:
        """Peers of a node's latest order that it has not answered: they are in the next order."""
        ordered, peers = self._latest.get(node.node_id, (-1, frozenset()))
        return peers if node.paths_round < ordered else frozenset()

    async def order_timing(self, client: ControlClient, here: Sequence[Node]) -> None:
        """Have agents that have just started time a layer: that takes longest."""
        for node in here:
            incarnation = node.presence.incarnation if node.presence is not None else ""
            if self._timing.get(node.node_id) == incarnation:
                continue
            self._timing[node.node_id] = incarnation
            if not node.has_timed(self.model):
                await client.publish(PROBE, node.node_id, self._order(node))

    def _order(self, node: Node, peers: Sequence[Node] = (), own_token: str = "") -> ProbeOrder:
        """Order to a node to measure its peers; with neither peers nor a token, only a layer."""
        return ProbeOrder(
            round=self.round,
            model=self.model,
            config=dict(self.config),
            coordinator_token=own_token,
            peers=tuple(self._address(peer, node) for peer in peers),
        )

    def _own_token(self, node: Node) -> str:
        """Lets it measure the path to the coordinator."""
        return probe_token(self.key_of(COORDINATOR), node.node_id)

    def _address(self, peer: Node, asking: Node) -> PeerAddress:
        assert peer.profile is not None, "only nodes with a profile are measured"
        return PeerAddress(
            node_id=peer.node_id,
            public_key=peer.public_key,
            addresses=peer.profile.addresses,
            token=probe_token(self.key_of(peer.node_id), asking.node_id),
        )


def peers_of(here: Sequence[Node]) -> dict[str, Sequence[Node]]:
    """Peers that each node measures: its PC's other devices, then the next others in the order of
    ids, round about, PEERS_MAX in all."""
    ordered = sorted(here, key=lambda one: one.node_id)
    count = min(PEERS_MAX, len(ordered) - 1)
    twice = ordered + ordered
    pcs: dict[str, list[Node]] = {}
    for node in ordered:
        pcs.setdefault(node.pc, []).append(node)
    peers: dict[str, Sequence[Node]] = {}
    for at, node in enumerate(ordered):
        own = [one for one in pcs[node.pc] if one is not node]
        following = twice[at + 1 : at + 1 + count + len(own)]
        others = [one for one in following if one.pc != node.pc] if own else following
        peers[node.node_id] = [*own, *others][:count]
    return peers


def _ids(nodes: Sequence[Node]) -> frozenset[str]:
    return frozenset(node.node_id for node in nodes)
