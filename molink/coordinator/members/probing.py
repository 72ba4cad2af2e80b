"""Which nodes each node measures the paths to, and when: neighbours that may form a ring.

All pairs of a small cluster, of a large one so many for each node, spread evenly, so that one
round costs a node some seconds of its line and no more; a node that has the same neighbours as
before measures nothing. A newcomer gets the model's config at once, and times a layer while the
others are waited for.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from molink.control.client import ControlClient
from molink.control.messages.payloads import PeerAddress, ProbeOrder
from molink.control.messages.topics import PROBE
from molink.coordinator.members.node_book import Node
from molink.transport.peer.protocol import probe_key, probe_token
from molink.transport.relay.protocol import COORDINATOR

__all__ = ["PEERS_MAX", "Probing", "peers_of"]

PEERS_MAX = 12
"""That one node measures in a round: each takes a second of sending."""

QUIET_S = 1.0
"""After a change among the nodes: those that start together are measured together."""

AGAIN_S = 6 * 3600.0
"""Home lines change by the hour; a round costs each node a dozen seconds of upload."""

ORDERS_AT_ONCE = 50
"""Each waits for the broker's acknowledgement; a thousand one after the other took seconds."""

Locations = frozenset[tuple[str, tuple[str, ...]]]
"""Nodes and their addresses."""


@dataclass(slots=True)
class Probing:
    """Orderer of measurements: a round when a node has come, and every few hours."""

    model: str
    config: Mapping[str, Any]
    """The model's config.json."""
    secret: bytes
    """Of which tokens between nodes are made."""
    round: int = 0
    _known: Locations = frozenset()
    _changed_at: float = 0.0
    _ordered: Locations = frozenset()
    _ordered_at: float = 0.0
    """When all nodes were."""
    _locations: dict[str, Locations] = field(default_factory=dict)
    """Of each node with the peers that it was last ordered to measure."""
    _asked: dict[str, frozenset[str]] = field(default_factory=dict)
    """Peers that each node was last ordered to measure."""
    _asked_about: Sequence[Node] = ()
    _to_be_asked: dict[str, Sequence[Node]] = field(default_factory=dict)
    """Peers that each of those would be ordered to measure: kept for one list of nodes."""
    _timing: dict[str, str] = field(default_factory=dict)
    """Nodes that were sent the model's config, and the incarnations of their agents then."""

    def key_of(self, node_id: str) -> str:
        """Key with which a node's own peer service checks who asks."""
        return probe_key(self.secret, node_id)

    def asked_of(self, node: Node, nodes: Sequence[Node]) -> frozenset[str]:
        """Peers that `node` measures, or will once it is ordered to."""
        if node.node_id in self._asked:
            return self._asked[node.node_id]
        if nodes is not self._asked_about:
            here = [one for one in nodes if one.is_here and one.profile is not None]
            self._asked_about, self._to_be_asked = nodes, peers_of(here)
        return _ids(self._to_be_asked.get(node.node_id, ()))

    async def order_if_due(self, client: ControlClient, nodes: Sequence[Node], now: float) -> None:
        """Order a round if it is time."""
        here = [node for node in nodes if node.is_here and node.profile is not None]
        await self.order_timing(client, here)
        known = _locations(here)
        if known != self._known:
            self._known, self._changed_at = known, now
        is_news = bool(known - self._ordered) and now - self._changed_at >= QUIET_S
        again = now - self._ordered_at >= AGAIN_S
        if not is_news and not again:
            return
        self._ordered, self._ordered_at = known, now if again else self._ordered_at
        self.round += 1
        await self._order_paths(client, here, again=again)

    async def _order_paths(
        self, client: ControlClient, here: Sequence[Node], *, again: bool
    ) -> None:
        """Have nodes measure the paths to their peers: all, or those that have other peers now."""
        peers_by_node = peers_of(here)
        before, self._locations = self._locations, {}
        orders = []
        for node in here:
            peers = peers_by_node[node.node_id]
            self._locations[node.node_id] = locations = _locations([node, *peers])
            self._asked[node.node_id] = _ids(peers)
            if again or locations != before.get(node.node_id):
                orders.append((node, peers))
        for start in range(0, len(orders), ORDERS_AT_ONCE):
            some = [
                (node.node_id, self._order(node, peers, self._own_token(node)))
                for node, peers in orders[start : start + ORDERS_AT_ONCE]
            ]
            await asyncio.gather(*(client.publish(PROBE, *order) for order in some))

    async def order_timing(self, client: ControlClient, here: Sequence[Node]) -> None:
        """Have agents that have just started time a layer: that takes longest."""
        for node in here:
            incarnation = node.presence.incarnation if node.presence is not None else ""
            if self._timing.get(node.node_id) == incarnation:
                continue
            self._timing[node.node_id] = incarnation
            if not node.is_measured:
                await client.publish(PROBE, node.node_id, self._order(node))

    def _order(self, node: Node, peers: Sequence[Node] = (), own_token: str = "") -> ProbeOrder:
        """With neither peers nor a token only a layer is timed."""
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


def _locations(nodes: Sequence[Node]) -> Locations:
    return frozenset((node.node_id, node.profile.addresses) for node in nodes if node.profile)


def _ids(nodes: Sequence[Node]) -> frozenset[str]:
    return frozenset(node.node_id for node in nodes)
