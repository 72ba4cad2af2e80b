"""Lending in a cluster: the driver of cells with its clock, its keys and its orders, and stages
that borrow as they load.

A stage whose device holds fewer tokens than the longest request that the API lets in looks for a
lender before it loads: a lease is part of its work. It waits for seconds at most, and only where a
pair of its PC is confirmed. What its own PC's memory lends as much of is not borrowed.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from molink.control.messages.assignment import Load
from molink.control.messages.cell import CellOrder
from molink.control.messages.payloads import AssignedWork
from molink.control.messages.topics import CELL, PAIR
from molink.coordinator.cell.cards import LendingCards, orders_to_pcs
from molink.coordinator.cell.driver import CellDriver
from molink.coordinator.cell.pairs import ConfirmedPairs, Pair, is_card, pc_of
from molink.coordinator.cell.ring_pairs import RingPairs
from molink.coordinator.cell.standing import StandingLeases
from molink.coordinator.cell.values import (
    DEBTOR_INCARNATION,
    LENDS,
    Grant,
    PcSeen,
    RoomWanted,
    pcs_seen,
)
from molink.coordinator.nodes.hub import ControlHub
from molink.coordinator.nodes.node import Node
from molink.coordinator.planning.model_planner import KvFigures
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.lent_room import own_tokens
from molink.errors import ErrorGuard
from molink.stage_protocol.lan_lease import LanLease
from molink.tasks import Signal
from molink_scheduler.cell.leases import Lease
from molink_scheduler.kv.blocks import BLOCK_TOKENS

TICK_S = 0.5

BORROW_WITHIN_S = 20.0
"""Seconds that a ring waits for leases: a lender starts to listen, echoes, an answer. Its weights
take longer to load, and without room it takes shorter requests for as long as it stands."""


TOO_LATE = "No lender answered before it had to load."


class Lenders(Protocol):
    """Lenders of the stages of rings."""

    async def borrow(self, stages: Sequence[AgentStage]) -> None:
        """Give stages that are to load, and lack room, leases as part of their work."""

    def adopt(self, stages: Sequence[AgentStage]) -> None:
        """Count leases that stages of a ring have which is taken over."""

    async def serve(self, ring: int, stages: Sequence[AgentStage]) -> None:
        """Give stages of a ring that stands, and lack room, leases as lenders come; until
        cancelled."""

    def may_lend(self, stages: Sequence[AgentStage]) -> bool:
        """Whether a ring's stages may be lent what they lack, within minutes."""

    def give_back(self, node_ids: Iterable[str]) -> None:
        """End the leases of nodes whose stages have ended."""


class NoLenders:
    """No PC lends anything: all stages are here."""

    async def borrow(self, stages: Sequence[AgentStage]) -> None:
        """Leave them as they are."""

    def adopt(self, stages: Sequence[AgentStage]) -> None:
        """There is nothing to count: no stage here has a lease."""

    async def serve(self, ring: int, stages: Sequence[AgentStage]) -> None:
        """There is nothing to give."""

    def may_lend(self, stages: Sequence[AgentStage]) -> bool:
        """A lender in a stage's own PC is started anew."""
        return True

    def give_back(self, node_ids: Iterable[str]) -> None:
        """There is nothing to end: no stage here has a lease."""


@dataclass(slots=True)
class CellLending:
    """Lending among the PCs of one cluster; `run` serves it."""

    hub: ControlHub
    pairs: ConfirmedPairs
    figures: Callable[[Node, AssignedWork], KvFigures | None]
    """What a stage's KV takes on a node; None: its model's lies at no lender."""
    is_encrypted: bool = True
    """Whether control links are, on which keys travel; else nothing is lent."""
    rings: RingPairs = field(default_factory=RingPairs)
    """Roles of rings, of which one may fill another's cache."""
    driver: CellDriver = field(init=False)
    seen: dict[str, PcSeen] = field(default_factory=dict)
    """PCs, and cards that lend, as they were seen last."""
    cards: LendingCards = field(default_factory=LendingCards)
    refused: dict[str, str] = field(default_factory=dict)
    """Sentences on why stages have borrowed nothing, by their PCs."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("A step of a cell"))
    _ordered: dict[str, CellOrder] = field(default_factory=dict)
    """Order of each PC, as it was published last."""
    _claims: dict[str, tuple[Node, AssignedWork, LanLease]] = field(default_factory=dict)
    """Leases of an earlier start whose lenders are not seen yet, by node."""
    _ticked: Signal = field(default_factory=Signal)
    _standing: StandingLeases = field(init=False)

    def __post_init__(self) -> None:
        self._standing = StandingLeases(self)
        first = int(1e3 * time.time())  # More than an earlier start has given in its time.
        self.driver = CellDriver(first, lambda: secrets.token_hex(32), time.monotonic())

    async def run(self) -> None:
        """Carry out what the driver decides, twice a second, until cancelled."""
        while True:
            with self.guard:
                await self._tick(time.monotonic())
            self._ticked.send()
            await asyncio.sleep(TICK_S)

    async def _tick(self, now: float) -> None:
        self.seen = self.cards.seen(pcs_seen(self.hub.book))
        self._adopt_claims()
        pairs = self.pairs.pairs if self.is_encrypted else ()
        orders = orders_to_pcs(self.driver.tick(self.seen, self._lending_pairs, now))
        known = {pc: order for pc, order in orders.items() if self._is_news(pc, order)}
        gone = {pc: CellOrder() for pc in self._ordered.keys() - orders.keys()}
        for pc, order in (known | gone).items():
            await self.hub.client.publish(CELL, pc, order)
            self._ordered[pc] = order
        for pc in gone:
            del self._ordered[pc]
        for node_id, paired in self.rings.orders(self.hub.book.nodes, pairs, now).items():
            await self.hub.client.publish(PAIR, node_id, paired)

    def _is_news(self, pc: str, order: CellOrder) -> bool:
        """Whether a PC is to be told: of nothing to do only where it lends to somebody."""
        before = self._ordered.get(pc)
        if before is None and order == CellOrder():
            return any(one.facts.port > 0 for to, one in self.seen.items() if pc_of(to) == pc)
        return order != before

    # -- stages -----------------------------------------------------------------------------------

    async def borrow(self, stages: Sequence[AgentStage]) -> None:
        """Give stages that are to load, and lack room, leases as part of their work."""
        wants = {one.node_id: one for one in self._wants(stages)}
        for wanted in wants.values():
            self.driver.want(wanted)
            self.refused.pop(wanted.pc, None)
        with suppress(TimeoutError):
            async with asyncio.timeout(BORROW_WITHIN_S):
                while any(self.driver.outcome(one) is None for one in wants):
                    await self._ticked.wait()
        for stage in [one for one in stages if one.node.node_id in wants]:
            outcome = self.driver.outcome(stage.node.node_id)
            if isinstance(outcome, Grant) and outcome.tokens > self._host_tokens(stage):
                give(stage, outcome)
            else:
                self.driver.drop(stage.node.node_id)
                self.refused[stage.node.pc] = outcome if isinstance(outcome, str) else TOO_LATE

    def adopt(self, stages: Sequence[AgentStage]) -> None:
        """Count leases that stages of a ring have which is taken over."""
        for stage in stages:
            if (lease := stage.work.lan_lease) is not None:
                self._claims[stage.node.node_id] = stage.node, stage.work, lease

    async def serve(self, ring: int, stages: Sequence[AgentStage]) -> None:
        """Give stages of a ring that stands, and lack room, leases as lenders come; until
        cancelled."""
        with self.rings.standing(ring, stages):
            await self._standing.serve(ring, stages)

    def may_lend(self, stages: Sequence[AgentStage]) -> bool:
        """Whether a ring's stages may be lent what they lack, within minutes: by their own PCs, or
        by others that the operator has named."""
        lacking = min(stages, key=lambda stage: stage.offer.blocks)
        return not _may_borrow(lacking) or lacking.node.pc in self._confirmed

    def give_back(self, node_ids: Iterable[str]) -> None:
        """End the leases of nodes whose stages have ended."""
        for node_id in node_ids:
            self._claims.pop(node_id, None)
            self._standing.forget(node_id)
            self.driver.drop(node_id)

    def lacking(self, stages: Sequence[AgentStage]) -> list[RoomWanted]:
        """Room that stages lack which serve, but for those with lenders in their own PCs, or with
        layers of two stages: they have no use for another one's."""
        able = {one.node.node_id for one in stages if _may_borrow(one)}
        return [one for one in self._wants(stages) if one.node_id in able]

    def _wants(self, stages: Sequence[AgentStage]) -> list[RoomWanted]:
        """Room that stages lack for the longest request, as far as it is of use: what a stage that
        nobody lends to has no room for, its ring cannot take."""
        found = [(stage, self.figures(stage.node, stage.work)) for stage in stages]
        counted = [(stage, figures) for stage, figures in found if figures is not None]
        if len(counted) < len(stages) or not counted:
            return []
        may = self._confirmed
        fixed = [self._tokens(stage) for stage in stages if stage.node.pc not in may]
        target = min([counted[0][1].tokens_longest, *fixed])
        return [
            RoomWanted(
                node_id=stage.node.node_id,
                pc=stage.node.pc,
                tokens=target - self._own_tokens(stage),
                token_bytes=figures.token_bytes,
                layers=stage.layers[1] - stage.layers[0],
                row_bytes=figures.row_bytes,
                slower_s=figures.slower_s,
            )
            for stage, figures in counted
            if stage.node.pc in may and self._tokens(stage) < target
        ]

    @property
    def _confirmed(self) -> set[str]:
        """PCs that others may lend to."""
        return {pc for pair in self._lending_pairs for pc in pair if not is_card(pc)}

    @property
    def _lending_pairs(self) -> set[Pair]:
        """Pairs that may lend, with cards; none where keys of leases could be read."""
        return set(self.cards.pairs(self.pairs.pairs)) if self.is_encrypted else set()

    def _tokens(self, stage: AgentStage) -> int:
        """Tokens that a stage holds by itself, with its own PC's memory."""
        host_tokens = self._host_tokens(stage) if stage.loaded is None else 0
        return self._own_tokens(stage) + host_tokens

    def _own_tokens(self, stage: AgentStage) -> int:
        """Tokens that a stage holds, or is to hold, before it borrows."""
        return (stage.work.kv_tokens or 0) if stage.loaded is None else own_tokens(stage)

    def _host_tokens(self, stage: AgentStage) -> int:
        """Tokens that its own PC's memory holds for a stage, where it was asked for."""
        figures, seen = self.figures(stage.node, stage.work), self.seen.get(stage.node.pc)
        if figures is None or seen is None:
            return stage.work.kv_host_tokens
        room = seen.of_pc.own_room_bytes // (figures.token_bytes * BLOCK_TOKENS) * BLOCK_TOKENS
        return min(stage.work.kv_host_tokens, room)

    def _adopt_claims(self) -> None:
        """Count what stages of an earlier start have, once their lenders tell of it."""
        lenders = {one.lease: pc for pc, seen in self.seen.items() for one in seen.facts.leases}
        for node_id, (node, work, lan) in list(self._claims.items()):
            figures, lender = self.figures(node, work), lenders.get(lan.lease)
            if figures is None or lender is None:
                continue
            del self._claims[node_id]
            wanted = RoomWanted(
                node_id,
                node.pc,
                tokens=work.kv_host_tokens,
                token_bytes=figures.token_bytes,
                layers=work.layers[1] - work.layers[0],
                row_bytes=figures.row_bytes,
                slower_s=figures.slower_s,
            )
            lease = Lease(
                lan.lease,
                debtor=node_id,
                debtor_incarnation=DEBTOR_INCARNATION,
                lender=f"{lender}{LENDS}",
                lender_incarnation=self.seen[lender].facts.started,
                blocks=wanted.blocks,
                block_bytes=wanted.block_bytes,
            )
            self.driver.adopt(Grant(wanted, lender, lease, lan))


def _may_borrow(stage: AgentStage) -> bool:
    has_own = stage.work.kv_host_tokens > 0 and stage.work.lan_lease is None
    return not has_own and isinstance(stage.command, Load)


def give(stage: AgentStage, grant: Grant) -> None:
    """Make a lease part of the work of a stage that is to load."""
    work = replace(stage.work, kv_host_tokens=grant.tokens, lan_lease=grant.lan)
    stage.assignment = stage.assignment.model_copy(update={"command": Load(work=work)})
