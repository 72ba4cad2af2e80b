"""What a plan holds, who makes it, and the cache from which the manager takes it."""

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from molink.control.messages.payloads import AssignedWork
from molink.coordinator.members.discrepancies import StepsSeen
from molink.coordinator.members.node_book import Node, Slowdown
from molink.errors import ErrorGuard

if TYPE_CHECKING:
    from molink_scheduler.placement import Forecast

__all__ = ["ClusterPlan", "PlanCache", "PlannedRing", "PlannedStage", "Planner"]

FRESH_S = 5.0
"""A plan that was not used so long is not used any more; the manager asks twice a second."""

RETRY_S = 5.0
"""After a plan that could not be made: there is no memory for a process, perhaps."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Stage that one node shall hold."""

    node_id: str
    work: AssignedWork


@dataclass(frozen=True, slots=True)
class PlannedRing:
    """Stages in the order of the ring, and its forecast."""

    stages: tuple[PlannedStage, ...]
    forecast: "Forecast | None" = None
    """None: its nodes were not measured."""

    @property
    def users(self) -> int:
        """Users that it serves within the bound on TPOT."""
        return self.forecast.users if self.forecast is not None else 1

    @property
    def tokens_per_s(self) -> float:
        """Forecast of all users together; 0 without."""
        return self.forecast.tokens_per_s if self.forecast is not None else 0.0

    @property
    def promised(self) -> dict[str, Any] | None:
        """Forecast in figures, to be compared with what is served; None without."""
        if self.forecast is None:
            return None
        figures = ("users", "tpot_s", "tpot_alone_s", "ttft_s", "tokens_per_s", "bottleneck")
        return {name: getattr(self.forecast, name) for name in figures}


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Plan of all rings at once."""

    rings: tuple[PlannedRing, ...]
    standbys: Mapping[str, str] = field(default_factory=dict)
    """Node to the reason why it holds nothing."""
    shortage: str = ""
    """Why there is no ring; empty when there is one."""


class Planner(Protocol):
    """Maker of plans for one model."""

    async def plan(self, nodes: Sequence[Node]) -> ClusterPlan:
        """The best rings of these nodes, all of which are measured; may take seconds. Raises
        StageError when it cannot be made."""

    def slowdown(
        self, stage: PlannedStage, node: Node, rows: int, seen: StepsSeen
    ) -> Slowdown | None:
        """How a member's steps compare with what it has reported; None: it is not known yet.

        `rows`: of a decode micro-batch, at most.
        """

    def outgrown(self, ring: PlannedRing, node: Node) -> bool:
        """Whether a member's owner has set a cap in which its part of the ring does not fit."""

    def is_worth(
        self, present: Sequence[PlannedRing], plan: ClusterPlan, nodes: Sequence[Node]
    ) -> str:
        """Why the plan is worth the interruption; empty when it is not."""


@dataclass(slots=True)
class PlanCache:
    """Cache of plans, one for each purpose: made beside, and handed out while it still holds.

    The manager evaluates the cluster again and again; it cannot wait for a plan, and one that took
    seconds may be out of date. So a plan is invalid once a node that it uses has gone, or some
    seconds after it was made; newcomers are for the next one.
    """

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
