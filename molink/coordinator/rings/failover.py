"""From rings that serve to the rings that replace them, so that users wait as little as can be.

Whoever is new in the next plan loads while the old rings still serve; then these are drained, and
the manager plans with everybody and finds the newcomers loaded. When that took too long or failed,
the old rings end all the same: an owner who leaves does not wait for somebody else's download.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from molink.coordinator.members.node_book import Node
from molink.coordinator.planning.cluster_plan import ClusterPlan
from molink.coordinator.planning.plan_cache import PlanCache
from molink.coordinator.rings.assigner import Assigner
from molink.coordinator.rings.ring_supervisor import RingState, RingSupervisor
from molink.errors import StageError
from molink.tasks import gathered

__all__ = ["Failover"]

PRELOAD_BETTER_S = 3600.0
"""For a better plan nobody waits; a download over a home line takes half an hour."""

PRELOAD_LEAVING_S = 60.0
"""An owner who wants the PC back does not wait for somebody else's download."""


@dataclass(slots=True)
class Failover:
    """Rings whose replacement is being prepared."""

    desk: PlanCache
    assigner: Assigner
    members: Callable[[], set[str]]
    """Nodes of rings that live."""
    _rings: set[int] = field(default_factory=set)
    """Their numbers."""
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def under_way(self) -> bool:
        """Whether any ring is being replaced."""
        return bool(self._rings)

    def ended(self, life: RingSupervisor) -> None:
        """A ring is gone, replaced or not."""
        self._rings.discard(life.number)

    def let_go(self, lives: Sequence[RingSupervisor], free: Sequence[Node]) -> None:
        """Rings with a member that wants to leave, or to lend less, are replaced, or drained where
        they cannot be. `free` are the nodes of no ring that a plan may use."""
        for life in lives:
            leaving = [stage.node for stage in life.stages if self._leaves(life, stage.node)]
            if not leaving or life.number in self._rings:
                continue
            if life.state is not RingState.SERVING:
                life.drain()
                continue
            staying = [stage.node for stage in life.stages if stage.node.may_serve]
            plan = self.desk.plan(("instead of", life.epoch), [*staying, *free])
            if plan is not None:
                self._begin([life], plan, PRELOAD_LEAVING_S)

    def improve(self, lives: Sequence[RingSupervisor], plan: ClusterPlan) -> None:
        """Replace rings by a plan that is better."""
        self._begin(lives, plan, PRELOAD_BETTER_S)

    def release_strays(self) -> None:
        """Once nothing is being handed over, whoever was loaded in vain stands by."""
        if self.under_way:
            return
        self.assigner.preloading.clear()
        for node in self.assigner.strays(self.members()):
            self._start(self.assigner.stand_by(node))

    def _leaves(self, life: RingSupervisor, node: Node) -> bool:
        return node.wants != "serve" or self.desk.planner.outgrown(life.plan, node)

    def _begin(self, lives: Sequence[RingSupervisor], plan: ClusterPlan, within_s: float) -> None:
        self._rings |= {life.number for life in lives}
        self._start(self._hand_over(lives, plan, within_s))

    async def _hand_over(
        self, lives: Sequence[RingSupervisor], plan: ClusterPlan, within_s: float
    ) -> None:
        """Let newcomers of the plan load while the rings serve, then end them."""
        try:
            members = self.members()
            stages = [stage for ring in plan.rings for stage in self.assigner.stages(ring, 0)]
            coming = [stage for stage in stages if stage.node.node_id not in members]
            self.assigner.preloading += coming
            with suppress(StageError, TimeoutError):  # The next plan finds out by itself.
                async with asyncio.timeout(within_s):
                    await gathered(stage.load(lambda fraction: None) for stage in coming)
        finally:
            for life in lives:
                life.drain()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run beside the loop, held so that it is not collected."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
