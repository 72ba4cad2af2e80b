"""From rings that serve to the rings that replace them, so that users wait as little as can be.

Nodes that are new in the next plan load while the old rings still serve; then these are drained,
and the manager plans with all nodes and finds the newcomers loaded. When that took too long or
failed, rings that an owner leaves end all the same: who wants the PC back does not wait for another
PC's download. Rings that were to be replaced by better ones go on.
"""

import asyncio
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from molink.coordinator.members.node_book import Node, NodeBook
from molink.coordinator.members.ring import AgentStage
from molink.coordinator.members.stage_watch import StageFailure
from molink.coordinator.planning.cluster_plan import ClusterPlan, PlanCache
from molink.coordinator.rings.assigner import Assigner
from molink.coordinator.rings.ring_supervisor import RingState, RingSupervisor
from molink.errors import ErrorGuard, StageError
from molink.tasks import gathered

__all__ = ["Failover"]

PRELOAD_BETTER_S = 3600.0
"""A better plan can wait; a download over a home line takes half an hour."""

PRELOAD_LEAVING_S = 60.0
"""An owner who wants the PC back does not wait for another PC's download."""


@dataclass(slots=True)
class Failover:
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
    _asked: set[int] = field(default_factory=set)
    """Numbers of the rings for which it is known whether others would suffice."""

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
        self._asked.discard(ring.number)

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

    def pass_over_lagging(self, free: Sequence[Node]) -> None:
        """Let a ring end that waits for a member which does not go on loading, when all others have
        loaded and suffice, and nobody serves users meanwhile."""
        if any(ring.state is RingState.SERVING for ring in self.rings):
            return
        for ring in self.rings:
            late = [stage for stage in ring.stages if stage.loaded is None]
            is_stuck = late and all(stage.is_lagging for stage in late)
            if ring.state is RingState.LOADING and is_stuck and ring.number not in self._asked:
                self._pass_over(ring, late, free)

    def _pass_over(
        self, ring: RingSupervisor, late: Sequence[AgentStage], free: Sequence[Node]
    ) -> None:
        others = [stage.node for stage in ring.stages if stage not in late and stage.node.may_serve]
        plan = self.plans.take(("without those who lag in", ring.epoch), [*others, *free])
        if plan is None:
            return
        self._asked.add(ring.number)
        if plan.rings:
            for stage in late:
                stage.fail(f"{stage.name} did not go on loading while the others waited.")
            ring.drain()

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
