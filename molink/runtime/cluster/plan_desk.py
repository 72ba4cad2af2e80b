"""Where plans are ordered and fetched: whoever asks gets one when it is made, until then nothing.

The manager looks at the cluster again and again; it cannot wait for a plan, and a plan that took
seconds may be out of date. So each purpose has one plan in the making, and what comes of it is
handed out if it uses nobody who has gone since; newcomers are for the next one.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from molink.errors import MolinkError
from molink.runtime.cluster.cluster_plan import ClusterPlan, Planner
from molink.runtime.cluster.node_book import Node

__all__ = ["PlanDesk"]

log = logging.getLogger(__name__)

FRESH_S = 5.0
"""Whoever ordered a plan asks twice a second; a plan that nobody fetched so long is forgotten."""

RETRY_S = 5.0
"""After a plan that could not be made: there is no memory for a process, perhaps."""


@dataclass(slots=True)
class PlanDesk:
    """One for a manager."""

    planner: Planner
    made: Callable[[], None]
    """A plan is there: ask for it."""
    _making: dict[Hashable, "asyncio.Task[ClusterPlan | None]"] = field(default_factory=dict)
    _made_at: dict[Hashable, float] = field(default_factory=dict)

    def plan(self, purpose: Hashable, nodes: Sequence[Node]) -> ClusterPlan | None:
        """The best rings of these nodes; None while that is not known yet."""
        making = self._making.get(purpose)
        if making is None:
            self._order(purpose, nodes)
            return None
        if not making.done():
            return None
        plan = self._taken(purpose)
        if plan is None or not _nodes_of(plan) <= {node.node_id for node in nodes}:
            self._order(purpose, nodes)
            return None
        return plan

    async def close(self) -> None:
        """Make no more."""
        for task in self._making.values():
            task.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)

    def _order(self, purpose: Hashable, nodes: Sequence[Node]) -> None:
        async def make() -> ClusterPlan | None:
            try:
                return await self.planner.plan(nodes)
            except MolinkError as error:
                log.warning("no plan: %s", error)
                await asyncio.sleep(RETRY_S)
                return None
            finally:
                self._made_at[purpose] = asyncio.get_running_loop().time()
                self.made()

        self._making[purpose] = asyncio.create_task(make())

    def _taken(self, purpose: Hashable) -> ClusterPlan | None:
        """The plan that was made; None when it is too old or could not be made."""
        task, made_at = self._making.pop(purpose), self._made_at.pop(purpose)
        return task.result() if asyncio.get_running_loop().time() - made_at < FRESH_S else None


def _nodes_of(plan: ClusterPlan) -> set[str]:
    return {stage.node_id for ring in plan.rings for stage in ring.stages}
