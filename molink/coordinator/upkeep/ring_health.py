"""Health of rings as the manager judges it: slow nodes, and what is waited for.

Times are arguments, in seconds on a clock that never jumps.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from molink.control.messages.payloads import NodeState
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.slowdown import (
    AS_REPORTED,
    Slowdown,
    StepsSeen,
    measured_link_mbps,
)
from molink.coordinator.planning.cluster_plan import PlannedRing, Planner
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.upkeep.ring_supervisor import RingState, RingSupervisor
from molink.coordinator.upkeep.settings import NOBODY_JOINED
from molink.stage_protocol.health import StageHealth

PERIOD_S = 5.0
"""Stages smooth their times over a dozen steps; a plan changes by the minute at most."""

LOOKS_MIN = 3
"""In a row that must find a node slow until it counts as slow, ten seconds: a backup that begins, a
web page or a Wi-Fi that falters is over by then, and costs less than to load layers elsewhere."""

KEPT_S = 3600.0
"""A node that serves no more counts as fast as reported again after an hour: its owner may have
ended a game."""


@dataclass(slots=True)
class SlowdownMonitor:
    """Judge of nodes that are slower than they have reported; notes it in their entries."""

    planner: Planner
    _checked_at: float = 0.0
    _seen_at: dict[str, float] = field(default_factory=dict)
    _looks: Counter[str] = field(default_factory=Counter)
    """Looks in a row that found a node slow which does not count as slow yet, by node id."""

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
                    node.slowdown = AS_REPORTED
        return frozenset(node.node_id for node in nodes if node.slowdown != AS_REPORTED)

    def _check(self, ring: RingSupervisor, now: float) -> None:
        healths = [stage.health for stage in ring.stages]
        running = [health.requests_running or 0 for health in healths if health is not None]
        rows = max([1, ring.plan.users, *running])
        nodes = [stage.node for stage in ring.stages]
        if not all(node.is_measured for node in nodes):
            return
        rates_mbps = self.planner.link_rates_mbps(nodes)
        for planned, node, health, mbps in zip(
            ring.plan.stages, nodes, healths, rates_mbps, strict=True
        ):
            if health is None:
                continue
            seen = StepsSeen(health.steps, health.decode_step_s, health.prefill_row_s)
            steps = self.planner.slowdown(planned, node, rows, seen)
            link_mbps = _link_mbps(health, mbps, node.slowdown.link_mbps)
            self._note(node, replace(steps or node.slowdown, link_mbps=link_mbps), now)

    def _note(self, node: Node, found: Slowdown, now: float) -> None:
        """What a look has found; who was not slow must be found so in several looks."""
        is_new = found != AS_REPORTED and node.slowdown == AS_REPORTED
        self._looks[node.node_id] = self._looks[node.node_id] + 1 if is_new else 0
        if not is_new or self._looks[node.node_id] >= LOOKS_MIN:
            node.slowdown, self._seen_at[node.node_id] = found, now


def _link_mbps(health: StageHealth, planned_mbps: float, before: float) -> float:
    """What a stage's link to the next one is found to carry (`measured_link_mbps`); while nothing
    waits for it, what it was found to carry before."""
    for link in health.links:
        if link.name == "next" and link.decode_queued_bytes + link.prefill_queued_bytes > 0:
            return measured_link_mbps(link.rate_mbps, planned_mbps, before)
    return before


def plan_sentence(number: int, plan: PlannedRing, stages: Sequence[AgentStage]) -> str:
    """What a ring is to be, for the ledger of events."""
    parts = [f"layers {one.layers[0]} to {one.layers[1] - 1} on {one.name}" for one in stages]
    sentence = f"ring {number} is planned: {', '.join(parts)}"
    if plan.forecast is None:
        return sentence
    users = f"{plan.users} user{'s' * (plan.users != 1)} at once"
    return f"{sentence}; forecast: {plan.tokens_per_s:.1f} tokens/s, {users}"


def progress_sentence(
    nodes: Sequence[Node],
    rings: Sequence[RingSupervisor],
    *,
    min_nodes: int,
    measuring_paths: int = 0,
    failure: str = "",
    shortage: str = "",
    nobody: str = NOBODY_JOINED,
) -> str:
    """Why nothing serves yet, for users who get a 503: the nearest thing that is waited for.

    `measuring_paths` nodes still measure the paths to others; `failure` is that of the last ring,
    `shortage` why the last plan has none; `nobody` is said where no PC has come.
    """
    if not (rings or nodes):
        return nobody
    if rings:
        ring = rings[0]
        if any(stage.loaded is None for stage in ring.stages):
            return f"The PCs are loading the model: {ring.loaded_share:.0%} done."
        return "The PCs have loaded the model and are connecting to each other."
    outdated = [node for node in nodes if node.is_here and node.outdated]
    others = [node for node in nodes if node not in outdated]
    if outdated and not any(node.is_here for node in others):
        return f"{_pcs(len(outdated))} joined, of another version. {outdated[0].outdated}"
    waited = _waited_for(others, min_nodes, measuring_paths, failure, shortage)
    if not outdated:
        return waited
    return f"{waited} {_pcs(len(outdated))} of another version left out. {outdated[0].outdated}"


def _waited_for(
    nodes: Sequence[Node], min_nodes: int, measuring_paths: int, failure: str, shortage: str
) -> str:
    """What is waited for, of nodes that may serve once they are ready."""
    here = [node for node in nodes if node.is_here]
    if not here:
        return f"None of the {_pcs(len(nodes))} that joined before is here now."
    measuring = [node for node in here if node.state is NodeState.JOINING]
    if measuring:
        return f"{_pcs(len(here))} joined, {len(measuring)} of them still being measured."
    ready = [node for node in here if node.may_serve]
    if len(ready) < min_nodes:
        return f"{len(ready)} of at least {min_nodes} PCs ready: let more join."
    if measuring_paths:
        return (
            f"{_pcs(len(ready))} ready, {measuring_paths} of them still measuring the ways to the "
            "others."
        )
    if failure:
        return f"The last ring has failed: {failure} Another is tried soon."
    return shortage or f"{_pcs(len(ready))} ready; a plan is being made."


def _pcs(count: int) -> str:
    return f"{count} PC{'s' * (count != 1)}"
