"""From rings that serve to the rings that replace them, so that users wait as little as can be.

Nodes that are new in the next plan load while the old rings still serve; then these are drained,
and the manager plans with all nodes and finds the newcomers loaded. When that took too long or
failed, the old rings end all the same: an owner who leaves does not wait for another PC's download.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from molink.coordinator.members.node_book import Node, NodeBook
from molink.coordinator.planning.cluster_plan import ClusterPlan, PlanCache
from molink.coordinator.rings.ring_supervisor import Assigner, RingState, RingSupervisor
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
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Replacing a ring"))
    _replaced: set[int] = field(default_factory=set)
    """Numbers of the rings that are being replaced."""

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
                self._begin([ring], plan, PRELOAD_LEAVING_S)

    def improve(self, rings: Sequence[RingSupervisor], plan: ClusterPlan) -> None:
        """Replace rings by a plan that is better."""
        self._begin(rings, plan, PRELOAD_BETTER_S)

    def release_unused(self) -> None:
        """Have nodes stand by that hold layers for no ring: of a plan that was dropped, or of a
        coordinator that ran before. Not while a ring is being replaced."""
        if self.under_way:
            return
        members = self.members
        for node in self.book:
            if node.is_here and node.node_id not in members and _holds_something(node):
                self.tasks.create_task(self._stand_by(node))

    def _leaves(self, ring: RingSupervisor, node: Node) -> bool:
        return node.wants != "serve" or self.plans.planner.outgrown(ring.plan, node)

    def _begin(self, rings: Sequence[RingSupervisor], plan: ClusterPlan, within_s: float) -> None:
        self._replaced |= {ring.number for ring in rings}
        self.tasks.create_task(self._hand_over(rings, plan, within_s))

    async def _hand_over(
        self, rings: Sequence[RingSupervisor], plan: ClusterPlan, within_s: float
    ) -> None:
        """Let newcomers of the plan load while the rings serve, then end these."""
        try:
            with self.guard, suppress(StageError, TimeoutError):  # The next plan will show it.
                await self._preload(plan, within_s)
        finally:
            for ring in rings:
                ring.drain()

    async def _preload(self, plan: ClusterPlan, within_s: float) -> None:
        members = self.members
        stages = [stage for ring in plan.rings for stage in self.assigner.stages(ring, 0)]
        coming = [stage for stage in stages if stage.node.node_id not in members]
        async with asyncio.timeout(within_s):
            await gathered(stage.load(lambda fraction: None) for stage in coming)

    async def _stand_by(self, node: Node) -> None:
        with self.guard:
            await self.assigner.stand_by(node)


def _holds_something(node: Node) -> bool:
    if node.assignment is not None:
        return node.is_assigned
    return node.fact is not None and node.fact.kind not in ("failed", "stopped")
