"""Whom each node shall measure, and when: neighbours that may become each other's ring.

All pairs of a small cluster, of a large one so many for each node, spread evenly, so that one
round costs a node some seconds of its line and no more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from molink.control.client import ControlClient
from molink.control.messages import PeerAddress, ProbeOrder
from molink.control.topics import PROBE
from molink.runtime.cluster.node_book import Node
from molink.transport.peer.protocol import probe_key, probe_token
from molink.transport.relay.protocol import COORDINATOR

__all__ = ["PEERS_MAX", "Probing", "peers_of"]

PEERS_MAX = 12
"""That one node measures in a round: each takes a second of sending."""

QUIET_S = 1.0
"""After a change among the nodes: who starts together is measured together."""

AGAIN_S = 6 * 3600.0
"""Home lines change by the hour; a round costs each node a dozen seconds of upload."""


@dataclass(slots=True)
class Probing:
    """Orders a round when somebody has come, and every few hours."""

    model: str
    config: Mapping[str, Any]
    """The model's config.json."""
    secret: bytes
    """Of which tokens between nodes are made."""
    round: int = 0
    _known: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
    _changed_at: float = 0.0
    _ordered: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
    _ordered_at: float = field(default=0.0)

    def key_of(self, node_id: str) -> str:
        """With which a node's own peer service checks who asks."""
        return probe_key(self.secret, node_id)

    async def look(self, client: ControlClient, nodes: Sequence[Node], now: float) -> None:
        """Order a round if it is time."""
        here = [node for node in nodes if node.is_here and node.profile is not None]
        known = frozenset((node.node_id, node.profile.addresses) for node in here if node.profile)
        if known != self._known:
            self._known, self._changed_at = known, now
        is_news = bool(known - self._ordered) and now - self._changed_at >= QUIET_S
        if not is_news and now - self._ordered_at < AGAIN_S:
            return
        self._ordered, self._ordered_at = known, now
        self.round += 1
        for node in here:
            await client.publish(PROBE, node.node_id, self._order(node, here))

    def _order(self, node: Node, here: Sequence[Node]) -> ProbeOrder:
        return ProbeOrder(
            round=self.round,
            model=self.model,
            config=dict(self.config),
            coordinator_token=probe_token(self.key_of(COORDINATOR), node.node_id),
            peers=tuple(self._address(peer, node) for peer in peers_of(node, here)),
        )

    def _address(self, peer: Node, asking: Node) -> PeerAddress:
        assert peer.profile is not None, "only nodes with a profile are measured"
        return PeerAddress(
            node_id=peer.node_id,
            public_key=peer.public_key,
            addresses=peer.profile.addresses,
            token=probe_token(self.key_of(peer.node_id), asking.node_id),
        )


def peers_of(node: Node, here: Sequence[Node]) -> list[Node]:
    """Whom `node` measures: its PC's other devices, then the next others in the order of ids, round
    about, PEERS_MAX in all."""
    ordered = sorted(here, key=lambda one: one.node_id)
    at = ordered.index(node)
    others = [*ordered[at + 1 :], *ordered[:at]]
    return sorted(others, key=lambda one: one.pc != node.pc)[:PEERS_MAX]
