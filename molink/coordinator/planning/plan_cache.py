"""Cache of plans, one for each purpose: a plan is made beside, and handed out while it still holds.

The manager evaluates the cluster again and again; it cannot wait for a plan, and one that took
seconds may be out of date. So a plan is invalid once a node that it uses has gone, or some seconds
after it was made; newcomers are for the next one.
"""

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from molink.coordinator.members.node_book import Node
from molink.coordinator.planning.cluster_plan import ClusterPlan, Planner
from molink.errors import ErrorGuard

__all__ = ["PlanCache"]

FRESH_S = 5.0
"""A plan that was not used so long is not used any more; the manager asks twice a second."""

RETRY_S = 5.0
"""After a plan that could not be made: there is no memory for a process, perhaps."""


@dataclass(slots=True)
class PlanCache:
    """Plans of one manager, by purpose."""

    planner: Planner
    wake: asyncio.Event
    """Set when a plan was made."""
    tasks: asyncio.TaskGroup
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Making a plan"))
    _entries: dict[Hashable, "_Entry"] = field(default_factory=dict)

    def take(self, purpose: Hashable, nodes: Sequence[Node]) -> ClusterPlan | None:
        """The best rings of these nodes; None while they are not known, and a plan is made then."""
        entry = self._entries.get(purpose)
        if entry is not None and not entry.is_made:
            return None
        if entry is None or not entry.holds(nodes, _now()):
            self._entries[purpose] = entry = _Entry(_facts(nodes))
            self.tasks.create_task(self._make(entry, nodes))
            return None
        del self._entries[purpose]
        return entry.plan

    async def _make(self, entry: "_Entry", nodes: Sequence[Node]) -> None:
        with self.guard:
            entry.plan = await self.planner.plan(nodes)
        if entry.plan is None:
            await asyncio.sleep(RETRY_S)
        entry.made_at = _now()
        self.wake.set()


@dataclass(slots=True)
class _Entry:
    """Plan in the making, or made."""

    facts: frozenset[tuple[object, ...]]
    """What it is made from."""
    plan: ClusterPlan | None = None
    """None, once made: it could not be made."""
    made_at: float | None = None

    @property
    def is_made(self) -> bool:
        return self.made_at is not None

    def holds(self, nodes: Sequence[Node], now: float) -> bool:
        """Whether it is still a plan of these nodes. That there is no ring holds only for those
        very nodes."""
        if self.plan is None or self.made_at is None or now - self.made_at > FRESH_S:
            return False
        used = {stage.node_id for ring in self.plan.rings for stage in ring.stages}
        return used <= {node.node_id for node in nodes} if used else self.facts == _facts(nodes)


def _facts(nodes: Sequence[Node]) -> frozenset[tuple[object, ...]]:
    return frozenset((node.node_id, node.profile, node.paths_round) for node in nodes)


def _now() -> float:
    return asyncio.get_running_loop().time()
