"""Shadows: standbys that hold the KV of the stage that they cover as well, a little behind.

A standby that has loaded joins the ring's epoch without a place in it, and the stage before the
covered one is told where it is (`molink.stage.shadowing`). What it reports then says from where it
must be sent rows should it take the place. In each epoch of the ring it begins anew: epochs are
rare, and what it held is soon sent again.

A head has no stage before it that sends rows; it computes what it lacks from the tokens. Layers
that keep states cannot be shadowed: a state cannot go back to an earlier token.
"""

import asyncio
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from molink.control.messages.assignment import Follow, GoOn, Join
from molink.coordinator.ring.agent_stage import AgentStage, NodeCommands
from molink.coordinator.upkeep.ring_building import link_to
from molink.coordinator.upkeep.ring_supervisor import RingSupervisor
from molink.errors import ErrorGuard, MolinkError

Standing = MutableMapping[str, AgentStage]
"""What each standby holds, by the id of its node."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Stage that sends, and the node of the one that is covered, in one epoch of their ring."""

    before: AgentStage
    covered_id: str

    @property
    def key(self) -> tuple[int, str, str]:
        return self.before.epoch, self.before.node.node_id, self.covered_id


@dataclass(slots=True)
class Shadows:
    """Keeper of the shadows among the standbys."""

    are_wanted: bool
    """Not as `--no-shadow`."""
    commands: NodeCommands
    tasks: asyncio.TaskGroup
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Leading rows to a shadow"))
    _pairs: dict[str, _Pair] = field(default_factory=dict)
    """What each shadow is fed by, by the id of its node."""

    def update(self, rings: Sequence[RingSupervisor], standing: Standing) -> None:
        """Have each standby that can be one be a shadow; `standing` is given what it becomes."""
        for node_id in self._pairs.keys() - standing.keys():
            self._end(self._pairs.pop(node_id))
        taken: set[str] = set()
        for ring in rings if self.are_wanted else ():
            for before, covered in pairwise(ring.stages):
                shadow = next(_able(covered, standing, taken), None)
                if shadow is not None:
                    taken.add(shadow.node.node_id)
                    self._shadow(ring, _Pair(before, covered.node.node_id), shadow, standing)

    def in_place(self, shadow: AgentStage, filling: AgentStage) -> AgentStage:
        """The stage in a lost one's place on a standby's node: that of a shadow is loaded, and
        holds what it has reported, unless it was the shadow of another ring's stage."""
        if shadow.node.node_id not in self._pairs or not _follows(shadow):
            return filling
        health = shadow.health
        report = health.shadow if health is not None else None
        is_current = shadow.has_joined and shadow.epoch == filling.epoch
        is_known = is_current and report is not None and report.epoch == shadow.epoch
        held = dict(report.held) if report is not None and is_known else {}
        return replace(filling, loaded=shadow.loaded, pid=shadow.pid, shadowed=held)

    def _shadow(
        self, ring: RingSupervisor, pair: _Pair, shadow: AgentStage, standing: Standing
    ) -> None:
        node, before = shadow.node, self._pairs.get(shadow.node.node_id)
        if before is None or before.key != pair.key:
            self._pairs[node.node_id] = pair
            self.tasks.create_task(self._begin(ring, pair, shadow, standing))
        health = pair.before.health
        node.behind = health.shadow_lag if health is not None else None

    async def _begin(
        self, ring: RingSupervisor, pair: _Pair, held: AgentStage, standing: Standing
    ) -> None:
        """Have a standby join beside its ring, then have it fed."""
        node, before, loaded = held.node, pair.before, held.loaded
        keys = before.node.public_key, held.accepted_keys[1]
        shadow = replace(held.in_epoch(before.epoch), accepted_keys=keys)
        with self.guard:
            try:
                await shadow.admit()
                given = before.node.assignment.command if before.node.assignment else None
                is_current = standing.get(node.node_id) is held and before.epoch == ring.epoch
                if not is_current or loaded is None or not isinstance(given, Join | GoOn):
                    return
                standing[node.node_id] = shadow
                await shadow.enter(Follow(work=held.work, terms=given.terms))
                link = link_to(node, loaded.port, "ring", given.next_link.relay)
                link = await ring.endpoint.reroute_one(link)
                await self.commands.lead_to_shadow(before.node, before.epoch, link)
            except MolinkError:
                return  # What has failed is seen where it stands by.

    def _end(self, pair: _Pair) -> None:
        if pair.before.node.is_here:
            self.tasks.create_task(self._feed_nobody(pair.before))

    async def _feed_nobody(self, before: AgentStage) -> None:
        with self.guard:
            await self.commands.lead_to_shadow(before.node, before.epoch, None)


def _able(covered: AgentStage, standing: Standing, taken: set[str]) -> Iterator[AgentStage]:
    """Standbys that could be the shadow of a stage, rather one that is already."""
    able = [
        one
        for node_id, one in standing.items()
        if node_id not in taken
        and one.loaded is not None
        and one.loaded.state_slots is None
        and one.work.layers == covered.work.layers
        and (one.work.dtype, one.work.kv_dtype) == (covered.work.dtype, covered.work.kv_dtype)
    ]
    yield from sorted(able, key=lambda one: not _follows(one))


def _follows(stage: AgentStage) -> bool:
    """Whether it was told to be a shadow in its ring's epoch."""
    given = stage.node.assignment
    if given is None or given.epoch != stage.epoch:
        return False
    return isinstance(given.command, Follow)
