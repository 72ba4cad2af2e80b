"""What a plan holds: which nodes form which rings with which layers, and what it promises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from molink.control.messages.payloads import AssignedWork
from molink.coordinator.members.discrepancies import StepsSeen
from molink.coordinator.members.node_book import Node, Slowdown

if TYPE_CHECKING:
    from molink_scheduler.placement import Forecast

__all__ = ["ClusterPlan", "PlannedRing", "PlannedStage", "Planner"]


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
