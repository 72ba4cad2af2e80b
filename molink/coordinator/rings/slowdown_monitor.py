"""Compares how long stages that serve really take with what their nodes have reported."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.coordinator.members.node_book import Node
from molink.coordinator.members.reported_vs_measured import AS_TOLD, StepsSeen
from molink.coordinator.planning.cluster_plan import Planner
from molink.coordinator.rings.ring_supervisor import RingState, RingSupervisor

__all__ = ["SlowdownMonitor"]

PERIOD_S = 5.0
"""Stages smooth their times over a dozen steps; a plan changes by the minute at most."""

KEPT_S = 3600.0
"""A node that serves no more counts as fast as reported again after an hour: its owner may have
ended a game."""


@dataclass(slots=True)
class SlowdownMonitor:
    """Judge of nodes that are slower than they have reported; notes it in their entries."""

    planner: Planner
    _checked_at: float = 0.0
    _seen_at: dict[str, float] = field(default_factory=dict)

    def slow_nodes(
        self, rings: Sequence[RingSupervisor], nodes: Sequence[Node], now: float
    ) -> frozenset[str]:
        """Ids of all that are slower than they have reported; checked every few seconds."""
        if now - self._checked_at >= PERIOD_S:
            self._checked_at = now
            for ring in rings:
                if ring.state is RingState.SERVING:
                    self._check(ring, now)
            for node in nodes:
                if now - self._seen_at.get(node.node_id, now) > KEPT_S:
                    node.pace = AS_TOLD
        return frozenset(node.node_id for node in nodes if node.pace != AS_TOLD)

    def _check(self, ring: RingSupervisor, now: float) -> None:
        healths = [stage.health for stage in ring.stages]
        running = [health.requests_running or 0 for health in healths if health is not None]
        rows = max([1, ring.plan.users, *running])
        for planned, stage, health in zip(ring.plan.stages, ring.stages, healths, strict=True):
            if health is None or not stage.node.is_measured:
                continue
            seen = StepsSeen(health.steps, health.decode_step_s, health.prefill_row_s)
            slowdown = self.planner.slowdown(planned, stage.node, rows, seen)
            if slowdown is not None:
                stage.node.pace, self._seen_at[stage.node.node_id] = slowdown, now
