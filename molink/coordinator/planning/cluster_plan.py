"""What a plan says of a cluster: which nodes form which rings, and what it promises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from molink.coordinator.members.node_book import Node
from molink.coordinator.members.reported_vs_measured import Slowdown, StepsSeen

if TYPE_CHECKING:
    from molink_scheduler.placement import Forecast

__all__ = ["ClusterPlan", "PlannedRing", "PlannedStage", "Planner"]


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One node's part."""

    node_id: str
    layers: tuple[int, int]
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class PlannedRing:
    """Nodes in the order of the ring, and its forecast."""

    stages: tuple[PlannedStage, ...]
    users: int
    """Served within the bound on TPOT."""
    tpot_s: float
    """With so many users."""
    tpot_alone_s: float
    ttft_s: float
    tokens_per_s: float
    bottleneck: str
    forecast: "Forecast | None" = None
    """All that the planner knows of it."""

    @property
    def promised(self) -> dict[str, Any] | None:
        """The forecast in figures, for whoever holds it against what is served; None without."""
        if self.forecast is None:
            return None
        return {
            "users": self.users,
            "tpot_s": self.tpot_s,
            "tpot_alone_s": self.tpot_alone_s,
            "ttft_s": self.ttft_s,
            "tokens_per_s": self.tokens_per_s,
            "bottleneck": self.bottleneck,
        }


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All rings at once."""

    rings: tuple[PlannedRing, ...]
    standbys: Mapping[str, str] = field(default_factory=dict)
    """Node to the reason why it holds nothing."""
    shortage: str = ""
    """Why there is no ring; empty when there is one."""

    @property
    def users(self) -> int:
        """Of all rings."""
        return sum(ring.users for ring in self.rings)


class Planner(Protocol):
    """Makes plans for one model."""

    async def plan(self, nodes: Sequence[Node]) -> ClusterPlan:
        """The best rings of these nodes, all of which are measured; may take seconds. Raises
        StageError when it cannot be made."""

    def pace(self, stage: PlannedStage, node: Node, rows: int, seen: StepsSeen) -> Slowdown | None:
        """How a member's steps compare with what it has told; None: it cannot be told yet.

        `rows`: of a decode micro-batch, at most.
        """

    def outgrown(self, ring: PlannedRing, node: Node) -> bool:
        """Whether a member's owner has set a cap in which its part of the ring does not fit."""

    def is_worth(
        self, present: Sequence[PlannedRing], plan: ClusterPlan, nodes: Sequence[Node]
    ) -> str:
        """Why the plan is worth the interruption; empty when it is not."""
