"""Handover from rings that serve to the rings that replace them; users wait as little as can be.

Nodes that are new in the next plan load while the old rings still serve; then these are drained,
and the manager plans with all nodes and finds the newcomers loaded. When that took too long or
failed, rings that an owner leaves end all the same: who wants the PC back does not wait for another
PC's download. Rings that were to be replaced by better ones go on.

While nobody serves, a ring does not wait for a member that will load for more than a minute, by the
rate that it has shown, when the others would serve sooner without it; nor, whatever it promises,
for a minute longer than they would take.
"""

import asyncio
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace

from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.cluster_plan import ClusterPlan, PlanCache
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.stage_watch import StageFailure
from molink.coordinator.upkeep.assigner import Assigner
from molink.coordinator.upkeep.ring_supervisor import RingState, RingSupervisor
from molink.errors import ErrorGuard, StageError
from molink.tasks import gathered

PRELOAD_BETTER_S = 3600.0
"""A better plan can wait; a download over a home line takes half an hour."""

PRELOAD_LEAVING_S = 60.0
"""An owner who wants the PC back does not wait for another PC's download."""

REBUILD_S = 10.0
"""To load what is on the disk, and to join: what a ring without somebody takes at least."""

WAIT_MAX_S = 60.0
"""For members that load: for what they promise by their rate, and for all that they promise beyond
what the others would take without them. No progress resets it."""


@dataclass(slots=True)
class _Late:
    """Members of a ring that still load."""

    node_ids: frozenset[str]
    since: float
    """When they, and no others, were first seen to."""
    without: ClusterPlan | None = None
    """What others could do without them; None: it is not known."""


@dataclass(slots=True)
class Handover:
    """Replacement of rings, prepared while they serve."""

    rings: Sequence[RingSupervisor]
    """The manager's own list."""
    book: NodeBook
    plans: PlanCache
    assigner: Assigner
    tasks: asyncio.TaskGroup
    failed: Callable[[StageFailure], object]
    """Takes the failure of a node that cannot load."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Replacing a ring"))
    _replaced: set[int] = field(default_factory=set)
    """Numbers of the rings that are being replaced."""
    _late: dict[int, "_Late"] = field(default_factory=dict)
    """Members that still load, by the number of their ring."""

    @property
    def under_way(self) -> bool:
        """Whether any ring is being replaced."""
        return bool(self._replaced)

    @property
    def members(self) -> set[str]:
        """Nodes of the rings that there are."""
        return {stage.node.node_id for ring in self.rings for stage in ring.stages}

    def ended(self, ring: RingSupervisor) -> None:
        """A ring is gone, replaced or not."""
        self._replaced.discard(ring.number)
        self._late.pop(ring.number, None)

    def release_leaving(self, free: Sequence[Node]) -> None:
        """Rings with a member that wants to leave, or to lend less, are replaced, or drained where
        they cannot be. `free` are the nodes of no ring that a plan may use."""
        for ring in self.rings:
            leaving = [stage.node for stage in ring.stages if self._leaves(ring, stage.node)]
            if not leaving or ring.number in self._replaced:
                continue
            if ring.state is not RingState.SERVING:
                ring.drain()
                continue
            staying = [stage.node for stage in ring.stages if stage.node.may_serve]
            plan = self.plans.take(("instead of", ring.epoch), [*staying, *free])
            if plan is not None:
                self._begin([ring], plan, PRELOAD_LEAVING_S, must_end=True)

    def improve(self, rings: Sequence[RingSupervisor], plan: ClusterPlan) -> None:
        """Replace rings by a plan that is better, if its newcomers can load."""
        self._begin(rings, plan, PRELOAD_BETTER_S, must_end=False)

    def pass_over_late(self, free: Sequence[Node]) -> None:
        """Let a ring end that waits for members without which the others would serve sooner, while
        nobody serves users."""
        if any(ring.state is RingState.SERVING for ring in self.rings):
            return
        for ring in self.rings:
            late = [stage for stage in ring.stages if stage.loaded is None]
            if ring.state is RingState.LOADING and late:
                self._pass_over(ring, late, free)

    def _pass_over(
        self, ring: RingSupervisor, late: Sequence[AgentStage], free: Sequence[Node]
    ) -> None:
        ids, now = frozenset(stage.node.node_id for stage in late), ring.clock()
        known = self._late.get(ring.number)
        if known is None or known.node_ids != ids:
            known = self._late[ring.number] = _Late(ids, now)
        needs_s = min(stage.needs_s for stage in late)
        waited_s = now - known.since if len(late) < len(ring.stages) else 0.0
        if max(needs_s, waited_s) <= WAIT_MAX_S:
            return
        if known.without is None:
            others = [stage.node for stage in ring.stages if stage not in late]
            nodes = [*(node for node in others if node.may_serve), *free]
            known.without = self.plans.take(("without those who are late in", ring.epoch), nodes)
        if known.without is None or not known.without.rings:
            return
        ready_s = self._ready_s(known.without, ring)
        if needs_s > ready_s or waited_s > ready_s + WAIT_MAX_S:
            for stage in late:
                stage.fail(
                    f"{stage.name} did not go on loading as fast as others serve without it."
                )
            ring.drain()

    def _ready_s(self, plan: ClusterPlan, ring: RingSupervisor) -> float:
        """How long the first ring of a plan would take to serve, where a ring's stages stay what
        they have loaded."""
        held = {one.node.node_id: one.layers for one in ring.stages if one.loaded is not None}
        times_s = []
        for stage in plan.rings[0].stages:
            (start, end), node = stage.work.layers, self.book.node(stage.node_id)
            first, last = held.get(stage.node_id, (end, end))
            parts = [(start, min(end, first)), (max(start, last), end)]
            lacking = [replace(stage.work, layers=part) for part in parts if part[0] < part[1]]
            times_s.append(sum(self.plans.planner.fetch_s(node, work) for work in lacking))
        return REBUILD_S + max(times_s)

    def release_unused(self, standbys: Set[str]) -> None:
        """Have nodes hold nothing that hold layers for no ring, and are no standbys: of a plan that
        was dropped, or of a coordinator that ran before. Not while a ring is being replaced."""
        if self.under_way:
            return
        members = self.members | standbys
        for node in self.book:
            if node.is_here and node.node_id not in members and _holds_something(node):
                self.tasks.create_task(self._stand_by(node))

    def _leaves(self, ring: RingSupervisor, node: Node) -> bool:
        return node.wants != "serve" or self.plans.planner.outgrown(ring.plan, node)

    def _begin(
        self, rings: Sequence[RingSupervisor], plan: ClusterPlan, within_s: float, *, must_end: bool
    ) -> None:
        self._replaced |= {ring.number for ring in rings}
        self.tasks.create_task(self._hand_over(rings, plan, within_s, must_end=must_end))

    async def _hand_over(
        self, rings: Sequence[RingSupervisor], plan: ClusterPlan, within_s: float, *, must_end: bool
    ) -> None:
        """Let newcomers of the plan load while the rings serve, then end these; if it fails only
        where they must."""
        is_loaded = False
        try:
            with self.guard:
                is_loaded = await self._preload(plan, within_s)
        finally:
            for ring in rings:
                if is_loaded or must_end:
                    ring.drain()
                else:
                    self._replaced.discard(ring.number)

    async def _preload(self, plan: ClusterPlan, within_s: float) -> bool:
        """Whether all newcomers have loaded; those that cannot are to blame."""
        members = self.members
        stages = [stage for ring in plan.rings for stage in self.assigner.stages(ring, 0)]
        coming = [stage for stage in stages if stage.node.node_id not in members]
        try:
            async with asyncio.timeout(within_s):
                await gathered(stage.load(lambda fraction: None) for stage in coming)
        except (StageError, TimeoutError):
            for stage in coming:
                if stage.failure is not None:
                    self.failed(stage.failure)
            return False
        return True

    async def _stand_by(self, node: Node) -> None:
        with self.guard:
            await self.assigner.stand_by(node)


def _holds_something(node: Node) -> bool:
    if node.assignment is not None:
        return node.is_assigned
    return node.fact is not None and node.fact.kind not in ("failed", "stopped")
