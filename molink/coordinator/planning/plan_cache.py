"""Where plans are ordered and fetched: whoever asks gets one when it is made, until then nothing.

The manager looks at the cluster again and again; it cannot wait for a plan, and a plan that took
seconds may be out of date. So each purpose has one plan in the making, and what comes of it is
handed out if it uses nobody who has gone since; newcomers are for the next one.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from molink.coordinator.members.node_book import Node
from molink.coordinator.planning.cluster_plan import ClusterPlan, Planner
from molink.errors import ErrorGuard

__all__ = ["PlanCache"]

FRESH_S = 5.0
"""Whoever ordered a plan asks twice a second; a plan that nobody fetched so long is forgotten."""

RETRY_S = 5.0
"""After a plan that could not be made: there is no memory for a process, perhaps."""


@dataclass(slots=True)
class PlanCache:
    """One for a manager."""

    planner: Planner
    made: Callable[[], None]
    """A plan is there: ask for it."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Making a plan"))
    _orders: dict[Hashable, "_Order"] = field(default_factory=dict)

    def plan(self, purpose: Hashable, nodes: Sequence[Node]) -> ClusterPlan | None:
        """The best rings of these nodes; None while that is not known yet."""
        order = self._orders.get(purpose)
        if order is not None and not order.task.done():
            return None
        plan = None if order is None else self._checked(order, nodes)
        if plan is None:
            self._order(purpose, nodes)
        else:
            del self._orders[purpose]
        return plan

    async def close(self) -> None:
        """Make no more."""
        tasks = [order.task for order in self._orders.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _order(self, purpose: Hashable, nodes: Sequence[Node]) -> None:
        order = _Order(_facts(nodes), asyncio.create_task(self._make(nodes)))
        order.task.add_done_callback(lambda task: order.note_time())
        order.task.add_done_callback(lambda task: self.made())
        self._orders[purpose] = order

    async def _make(self, nodes: Sequence[Node]) -> ClusterPlan | None:
        with self.guard:
            return await self.planner.plan(nodes)
        await asyncio.sleep(RETRY_S)
        return None

    def _checked(self, order: "_Order", nodes: Sequence[Node]) -> ClusterPlan | None:
        """The plan that was made, unless it is out of date. That there is no ring holds only for
        those very nodes."""
        plan = order.task.result()
        if plan is None or _now() - order.made_at > FRESH_S:
            return None
        used = {stage.node_id for ring in plan.rings for stage in ring.stages}
        fits = used <= {node.node_id for node in nodes} if used else order.facts == _facts(nodes)
        return plan if fits else None


@dataclass(slots=True)
class _Order:
    """A plan in the making, or made."""

    facts: frozenset[tuple[object, ...]]
    task: "asyncio.Task[ClusterPlan | None]"
    made_at: float = 0.0

    def note_time(self) -> None:
        self.made_at = _now()


def _facts(nodes: Sequence[Node]) -> frozenset[tuple[object, ...]]:
    return frozenset((node.node_id, node.profile, node.paths_round) for node in nodes)


def _now() -> float:
    return asyncio.get_running_loop().time()
