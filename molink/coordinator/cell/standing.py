"""Leases of rings that stand: a stage that lacks room gets one without loading anew, as soon as a
lender is there, and another one where its lender is gone for good.

A stage takes a lease between two steps. It offers its ring the places when the lender has answered,
and the head counts with them last, once all stages offer as many (`ring.lent_room`). What a lender
wants back of it the stage is told the same way: it offers less, the head counts with less, and then
the blocks come home.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from molink.control.messages.payloads import StageLease
from molink.control.messages.topics import LEASE
from molink.coordinator.cell.driver import CellDriver
from molink.coordinator.cell.values import Grant, RoomWanted
from molink.coordinator.nodes.hub import ControlHub
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.lent_room import own_tokens
from molink.errors import ErrorGuard
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.kv.blocks import BLOCK_TOKENS

LOOK_S = 1.0
"""Between two looks at the stages of a ring."""

TAKEN_WITHIN_S = 60.0
"""Seconds for a stage to offer what it was given: it may be within a long step, and it comes thrice
for a lender that is lost."""

TAKE_AGAIN_S = 5.0
"""Seconds until a stage that does not use its lease is told it again, and twice as many each time
after that: its lender may have been a moment late, and a stage that has tried thrice stops."""

AGAIN_S = 10.0
"""Seconds for which a stage that has not taken a lease is given none; twice as many each time after
that, at most `AGAIN_MOST_S`, until it takes one."""

AGAIN_MOST_S = 120.0

TELL_AGAIN_S = 5.0
"""Between two words to a stage that is to give places back: the one before may have been lost."""

NOT_TAKEN = "It has not come for the lease that it was given."


class Wants(Protocol):
    """What stages of a ring lack."""

    driver: CellDriver
    hub: ControlHub
    refused: dict[str, str]

    def lacking(self, stages: Sequence[AgentStage]) -> list[RoomWanted]:
        """Room that stages which have loaded lack, as far as it is of use."""


@dataclass(slots=True)
class _Given:
    """Lease that a stage was told, or has loaded with."""

    number: int
    loaded: StageLoaded | None
    """What the process had loaded that was told; another one knows nothing of it."""
    used_at: float
    """When it was given, or was last seen to be used."""
    tell_at: float
    """When it is told again, unless it uses it."""
    pause_s: float = TAKE_AGAIN_S
    """Seconds until it is told once more then."""
    recalled_at: float = -math.inf
    """When the stage was last told to give places back."""


@dataclass(slots=True)
class StandingLeases:
    """Leases of the stages of all rings that stand, in one epoch after another."""

    lending: Wants
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Leases of a ring that stands"))
    _given: dict[str, _Given] = field(default_factory=dict)
    """By node."""
    _not_before: dict[str, float] = field(default_factory=dict)
    """Until when nodes get no lease."""
    _pauses: dict[str, float] = field(default_factory=dict)
    """Seconds for which nodes that have not taken their last lease were given none."""

    async def serve(self, ring: int, stages: Sequence[AgentStage]) -> None:
        """Look after the stages of a ring until cancelled."""
        while True:
            with self.guard:
                await self.look(ring, stages, time.monotonic())
            await asyncio.sleep(LOOK_S)

    def forget(self, node_id: str) -> None:
        """The stage of a node has ended."""
        self._given.pop(node_id, None)
        self._not_before.pop(node_id, None)
        self._pauses.pop(node_id, None)

    async def look(self, ring: int, stages: Sequence[AgentStage], now: float) -> None:
        """Give what was granted, end what is not used, and ask for what is lacking."""
        grants = {one.wanted.node_id: one for one in self.lending.driver.grants.values()}
        for stage in stages:
            grant = grants.get(stage.node.node_id)
            stage.lender = grant.lender if grant is not None else ""
            if grant is not None:
                await self._follow(ring, stage, grant, now)
        for wanted in self.lending.lacking(stages):
            if wanted.node_id not in grants and now >= self._not_before.get(wanted.node_id, 0.0):
                self._ask(wanted)

    def _ask(self, wanted: RoomWanted) -> None:
        """Ask for what a stage lacks, unless an answer is still to come."""
        driver, outcome = self.lending.driver, self.lending.driver.outcome(wanted.node_id)
        if isinstance(outcome, str):
            self.lending.refused[wanted.pc] = outcome
        if outcome is not None or not driver.is_wanted(wanted.node_id):
            driver.want(wanted)

    async def _follow(self, ring: int, stage: AgentStage, grant: Grant, now: float) -> None:
        node_id, number = stage.node.node_id, grant.lease.number
        link = self.lending.driver.echoes.links.get((grant.wanted.pc, grant.lender))
        stage.lender_trip_s = (link.near_s if link is not None else None) or 0.0
        given = self._given.get(node_id)
        if given is None or given.number != number or given.loaded is not stage.loaded:
            self._given[node_id] = given = _Given(number, stage.loaded, now, now + TAKE_AGAIN_S)
            if not _loaded_with(stage, number):
                await self._give(ring, stage, grant)
        await self._recall(ring, stage, grant, given, now)
        if BLOCK_TOKENS * stage.offer.blocks > own_tokens(stage):
            given.used_at, given.tell_at, given.pause_s = now, now + TAKE_AGAIN_S, TAKE_AGAIN_S
            self._pauses.pop(node_id, None)
        elif now - given.used_at >= TAKEN_WITHIN_S:
            self._not_taken(node_id, grant, now)
        elif now >= given.tell_at and self.lending.driver.recalled(number) is None:
            given.pause_s *= 2
            given.tell_at = now + given.pause_s
            await self._give(ring, stage, grant)

    def _not_taken(self, node_id: str, grant: Grant, now: float) -> None:
        """End a lease that a stage has not come for, and give it none for a while."""
        self.lending.driver.drop(node_id)
        self.lending.refused[grant.wanted.pc] = NOT_TAKEN
        pause_s = min(AGAIN_MOST_S, 2 * self._pauses.get(node_id, AGAIN_S / 2))
        self._pauses[node_id], self._not_before[node_id] = pause_s, now + pause_s

    async def _recall(
        self, ring: int, stage: AgentStage, grant: Grant, given: _Given, now: float
    ) -> None:
        """Have a stage give back what its lender wants."""
        left = self.lending.driver.recalled(given.number)
        if left is None or now - given.recalled_at < TELL_AGAIN_S:
            return
        given.recalled_at = now
        order = StageLease(ring=ring, tokens=left * BLOCK_TOKENS, lease=grant.lan)
        await self.lending.hub.client.publish(LEASE, stage.node.node_id, order)

    async def _give(self, ring: int, stage: AgentStage, grant: Grant) -> None:
        order = StageLease(ring=ring, tokens=grant.tokens, lease=grant.lan)
        await self.lending.hub.client.publish(LEASE, stage.node.node_id, order)
        self.lending.refused.pop(grant.wanted.pc, None)


def _loaded_with(stage: AgentStage, number: int) -> bool:
    lease = stage.work.lan_lease
    return lease is not None and lease.lease == number
