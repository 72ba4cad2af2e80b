"""Every few seconds: what each node has given since the last time, into the ledger."""

import asyncio
import time
from dataclasses import dataclass, field

from molink.control.messages.payloads import NodeState, Unreadable
from molink.coordinator.members.ledger import Contribution, Ledger
from molink.coordinator.members.node_book import Node, NodeBook
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.ring_client import RingClient
from molink.errors import ErrorGuard

__all__ = ["Accounting"]

PERIOD_S = 10.0
"""What a coordinator that is killed forgets."""


@dataclass(slots=True)
class Accounting:
    """Bookkeeper of what nodes give: time, tokens x layers, bytes."""

    ledger: Ledger
    book: NodeBook
    service: ClusterService
    _tokens_before: dict[int, int] = field(default_factory=dict)
    """Of each ring's epoch, tokens handed to users until the last time."""
    _at: float = field(default_factory=time.monotonic)
    _unwritten: dict[str, tuple[str, Contribution]] = field(default_factory=dict)
    """By node: its name, and what it has given since the ledger could last be written."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Writing down who gave what"))

    async def run(self) -> None:
        """Until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                self.settle(time.monotonic())
        finally:
            self.settle(time.monotonic())

    def settle(self, now: float) -> None:
        """Write down what has come since the last call. What cannot be written, on a full disk
        perhaps, is written the next time."""
        with self.guard:
            self._add_up(now)
            with self.ledger.together():
                for node_id, (name, given) in self._unwritten.items():
                    self.ledger.add(node_id, name, given)
            self._unwritten.clear()

    def _add_up(self, now: float) -> None:
        elapsed_s, self._at = now - self._at, now
        tokens = self._new_token_layers()
        for node in self.book:
            if not node.is_here:
                continue
            serving = node.state is NodeState.SERVING
            given = Contribution(
                elapsed_s if serving else 0.0,
                tokens.get(node.node_id, 0),
                self._bytes(node),
            )
            if given != Contribution():
                _, before = self._unwritten.get(node.node_id, ("", Contribution()))
                self._unwritten[node.node_id] = node.name, before + given

    def _new_token_layers(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for ring in self.service.rings:
            tokens = self._new_tokens(ring.client)
            for stage in ring.client.ring.stages:
                start, end = stage.layers
                found[stage.node.node_id] = tokens * (end - start)
        return found

    def _new_tokens(self, client: RingClient) -> int:
        epoch = client.ring.epoch
        new = client.tokens_sent - self._tokens_before.get(epoch, 0)
        self._tokens_before[epoch] = client.tokens_sent
        return new

    def _bytes(self, node: Node) -> int:
        stage = node.health.stage if node.health is not None else None
        if isinstance(stage, Unreadable):
            return 0
        links = stage.links if stage is not None else ()
        return self.ledger.bytes_since(node.node_id, sum(one.bytes_sent for one in links))
