"""Looks at how long stages that serve really take, and notes who is slower than it has told."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.coordinator.members.node_book import Node
from molink.coordinator.members.reported_vs_measured import AS_TOLD, StepsSeen
from molink.coordinator.planning.cluster_plan import Planner
from molink.coordinator.rings.agent_stage import AgentStage
from molink.coordinator.rings.ring_supervisor import RingState, RingSupervisor

__all__ = ["SlowdownMonitor"]

LOOK_S = 5.0
"""Stages smooth their times over a dozen steps; a plan changes by the minute at most."""

KEPT_S = 3600.0
"""Who serves no more is taken at its word again after an hour: its owner may have ended a game."""


@dataclass(slots=True)
class SlowdownMonitor:
    """Notes it in the nodes of the book."""

    planner: Planner
    _looked_at: float = 0.0
    _seen_at: dict[str, float] = field(default_factory=dict)

    def look(
        self, lives: Sequence[RingSupervisor], nodes: Sequence[Node], now: float
    ) -> frozenset[str]:
        """Everybody who is slower than it has told; looks at most every few seconds."""
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            for life in lives:
                if life.state is RingState.SERVING:
                    self._look_at(life, now)
            for node in nodes:
                if now - self._seen_at.get(node.node_id, now) > KEPT_S:
                    node.pace = AS_TOLD
        return frozenset(node.node_id for node in nodes if node.pace != AS_TOLD)

    def _look_at(self, life: RingSupervisor, now: float) -> None:
        running = [stage.health.requests_running or 0 for stage in life.stages if stage.health]
        rows = max([1, life.plan.users, *running])
        for planned, stage in zip(life.plan.stages, life.stages, strict=True):
            if stage.health is None or not stage.node.is_measured:
                continue
            pace = self.planner.pace(planned, stage.node, rows, _steps_seen(stage))
            if pace is not None:
                stage.node.pace, self._seen_at[stage.node.node_id] = pace, now


def _steps_seen(stage: AgentStage) -> StepsSeen:
    health = stage.health
    assert health is not None, "asked only of stages that have reported"
    return StepsSeen(health.steps, health.decode_step_s, health.prefill_row_s)
