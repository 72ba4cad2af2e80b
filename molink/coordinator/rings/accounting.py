"""Once in a while: who has given what since the last time, into the ledger."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.control.messages.payloads import NodeState
from molink.coordinator.members.ledger import Contribution, Ledger
from molink.coordinator.members.node_book import Node, NodeBook
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.rings.ring_supervisor import RingSupervisor
from molink.errors import ErrorGuard

__all__ = ["Accounting"]

PERIOD_S = 10.0
"""What a coordinator that is killed forgets."""


@dataclass(slots=True)
class Accounting:
    """Adds up what nodes do."""

    ledger: Ledger
    book: NodeBook
    service: ClusterService
    _tokens_before: dict[int, int] = field(default_factory=dict)
    """Of each ring's epoch, tokens handed to users until the last time."""
    _at: float = field(default_factory=time.monotonic)
    _unwritten: dict[str, tuple[str, Contribution]] = field(default_factory=dict)
    """By node: its name, and what it has given since the ledger could last be written."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Writing down who gave what"))

    async def run(self, lives: Sequence[RingSupervisor]) -> None:
        """Until cancelled, and once more then. `lives` is the manager's own list."""
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                self.settle(lives, time.monotonic())
        finally:
            self.settle(lives, time.monotonic())

    def settle(self, lives: Sequence[RingSupervisor], now: float) -> None:
        """Write down what has come since the last call. What cannot be written, on a full disk
        perhaps, is written the next time."""
        with self.guard:
            self._add_up(lives, now)
            with self.ledger.together():
                for node_id, (name, given) in self._unwritten.items():
                    self.ledger.add(node_id, name, given)
            self._unwritten.clear()

    def _add_up(self, lives: Sequence[RingSupervisor], now: float) -> None:
        elapsed_s, self._at = now - self._at, now
        tokens = self._new_token_layers(lives)
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

    def _new_token_layers(self, lives: Sequence[RingSupervisor]) -> dict[str, int]:
        found: dict[str, int] = {}
        for life in lives:
            tokens = self._new_tokens(life)
            for stage in life.stages:
                start, end = stage.layers
                found[stage.node.node_id] = tokens * (end - start)
        return found

    def _new_tokens(self, life: RingSupervisor) -> int:
        ring = next((ring for ring in self.service.rings if ring.number == life.number), None)
        if ring is None:
            return 0
        total = ring.coordinator.tokens_told
        new = total - self._tokens_before.get(life.epoch, 0)
        self._tokens_before[life.epoch] = total
        return new

    def _bytes(self, node: Node) -> int:
        stage = node.health.stage if node.health is not None else None
        links = stage.get("links", ()) if stage is not None else ()
        try:
            return self.ledger.bytes_since(
                node.node_id, sum(int(one["bytes_sent"]) for one in links)
            )
        except (TypeError, KeyError, ValueError, OverflowError):
            return 0  # Of another version: not counted.
