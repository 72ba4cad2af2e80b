"""From what nodes say of themselves to the facts of a placement, and from the plan back.

The placement itself is pure (`molink_scheduler.placement`); here its inputs are put together: a
layer's times as each node has measured them, memory as it is lent, links as neighbours have
measured them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from molink.config.up_settings import UpSettings
from molink.control.messages import Device, PathMeasured, Profile
from molink.executor.description import ModelDescription
from molink.executor.layer_sizes import planned_model
from molink.runtime.cluster.cluster_plan import ClusterPlan, PlannedRing, PlannedStage
from molink.runtime.cluster.node_book import Node
from molink_scheduler.link_facts import RATE_MAX_BYTES_PER_S
from molink_scheduler.placement import (
    Forecast,
    Goal,
    LinkFacts,
    ModelCost,
    Network,
    NodeFacts,
    Plan,
    Shortage,
    change_cost,
    make_plan,
    plan_on_shared_lines,
    worth_changing,
)

__all__ = ["ModelPlanner", "goal_of"]

HOP_SOFTWARE_S = 0.002
"""Of a stage's step beside its layers: unpacking, packing, two thread wake-ups and the link's
thread (1.3 to 2.4 ms in docs/benchmarks/ring.md)."""

DOWNLOAD_GUESS_MBPS = 20.0
"""Of a node that has not told: slow enough that a change is not made light of."""

CONTEXT_TOKENS_USUAL = 2048
CONTEXT_SHARE = 4
"""Of the model's length: a quarter, where that is less than usual."""

NO_WAY_S = 60.0
"""One way, where none was found."""

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def goal_of(settings: UpSettings, description: ModelDescription) -> Goal:
    """What users are to feel, and how long their requests are taken to be."""
    length = min(settings.model_len_max or description.model_len_max, description.model_len_max)
    usual = max(16, min(CONTEXT_TOKENS_USUAL, length // CONTEXT_SHARE))
    context = settings.context_tokens or usual
    answer = max(1, context // 8)
    return Goal(
        tpot_s=settings.tpot_ms / 1e3,
        context_tokens=context,
        prompt_tokens=context // 2,
        answer_tokens=answer,
    )


@dataclass(frozen=True, slots=True)
class ModelPlanner:
    """Plans for one model."""

    cost: ModelCost
    goal: Goal
    stored_element_bytes: int
    dtype: str
    """As `--dtype`."""

    @classmethod
    def of(cls, path: str, description: ModelDescription, settings: UpSettings) -> "ModelPlanner":
        """For the model at a path or on the hub. Raises UserError when its sizes are not known."""
        return cls(
            planned_model(path).cost,
            goal_of(settings, description),
            ELEMENT_BYTES.get(description.dtype, 2),
            settings.dtype,
        )

    def plan(self, nodes: Sequence[Node]) -> ClusterPlan:
        """The best rings of these nodes, all of which are measured."""
        if not nodes:
            return ClusterPlan((), {}, "No PC is ready.")
        found = self.placement(nodes)
        if isinstance(found, Shortage):
            return ClusterPlan((), {}, found.sentence[:1].upper() + found.sentence[1:])
        standbys = {one.node_id: f"It {one.reason}." for one in found.standbys}
        return ClusterPlan(tuple(_planned(ring) for ring in found.rings), standbys)

    def placement(self, nodes: Sequence[Node]) -> Plan | Shortage:
        """The same with all that the placement knows."""
        facts = [self._facts(node) for node in nodes]
        network = _network(nodes)
        return plan_on_shared_lines(
            facts, lambda them: make_plan(self.cost, them, network, self.goal)
        )

    def outgrown(self, ring: PlannedRing, node: Node) -> bool:
        """Whether a member's owner has set a cap in which its part of the ring does not fit."""
        device = node.profile.devices[0] if node.profile is not None else None
        if device is None or device.cap_bytes is None or ring.forecast is None:
            return False
        held = [
            stage.weights_bytes + stage.kv_tokens * self._kv_bytes(stage.layers)
            for stage in ring.forecast.stages
            if stage.node_id == node.node_id
        ]
        return sum(held) > self._memory_bytes(device, device.cap_bytes)

    def _kv_bytes(self, layers: tuple[int, int]) -> int:
        return self.cost.kv_bytes * (layers[1] - layers[0])

    def is_worth(
        self, present: Sequence[PlannedRing], plan: ClusterPlan, nodes: Sequence[Node]
    ) -> str:
        """Why the plan is worth the interruption; empty when it is not."""
        now, then = self._placement(present), self._placement(plan.rings)
        rates = {node.node_id: _download_bytes_per_s(node) for node in nodes}
        cost = change_cost(now, then, self.cost, {}, rates)
        decision = worth_changing(now, then, cost)
        return decision.sentence if decision.change else ""

    def _placement(self, rings: Sequence[PlannedRing]) -> Plan:
        return Plan(self.goal, tuple(ring.forecast for ring in rings if ring.forecast is not None))

    def _facts(self, node: Node) -> NodeFacts:
        profile = node.profile
        assert profile is not None and profile.steps is not None, "only measured nodes are planned"
        device, steps = profile.devices[0], profile.steps
        layer_bytes = sum(self.cost.layer_bytes) / self.cost.layers
        return NodeFacts(
            id=node.node_id,
            memory_bytes=self._memory_bytes(device, device.free_bytes),
            decode_fixed_s=steps.decode_fixed_s,
            decode_row_s=steps.decode_row_s,
            prefill_row_s=steps.prefill_row_s,
            step_fixed_s=HOP_SOFTWARE_S,
            head_row_s=steps.head_row_s
            or steps.decode_fixed_s * self.cost.tail_bytes / layer_bytes,
            upload_bytes_per_s=_upload_bytes_per_s(profile),
            name=node.name,
            pc=node.pc,
        )

    def _memory_bytes(self, device: Device, lent_bytes: int) -> int:
        """In bytes of the model as it is stored: a CPU without 16-bit arithmetic holds weights and
        KV twice as large."""
        wanted = ELEMENT_BYTES.get(self.dtype, device.element_bytes)
        return lent_bytes * self.stored_element_bytes // wanted


def _network(nodes: Sequence[Node]) -> Network:
    here = {node.node_id for node in nodes}
    links = {}
    for node in nodes:
        for to, path in node.paths.items():
            if to in here:
                links[node.node_id, to] = _link(path)
    return Network(links)


def _link(path: PathMeasured) -> LinkFacts:
    """What was not reached at all is taken for the worst link there is."""
    if path.path == "none":
        return LinkFacts(0.0, NO_WAY_S)
    return LinkFacts(path.rate_mbps * 1e6 / 8 or RATE_MAX_BYTES_PER_S, path.rtt_ms / 2e3)


def _upload_bytes_per_s(profile: Profile) -> float:
    known = [cap for cap in (profile.upload_mbps or None, profile.upload_cap_mbps) if cap]
    return min(known) * 1e6 / 8 if known else RATE_MAX_BYTES_PER_S


def _download_bytes_per_s(node: Node) -> float:
    profile = node.profile
    mbps = profile.download_mbps if profile is not None else 0.0
    return (mbps or DOWNLOAD_GUESS_MBPS) * 1e6 / 8


def _planned(ring: Forecast) -> PlannedRing:
    return PlannedRing(
        stages=tuple(
            PlannedStage(stage.node_id, stage.layers, stage.kv_tokens) for stage in ring.stages
        ),
        users=ring.users,
        tpot_s=ring.tpot_s,
        tpot_alone_s=ring.tpot_alone_s,
        ttft_s=ring.ttft_s,
        tokens_per_s=ring.tokens_per_s,
        bottleneck=ring.bottleneck,
        forecast=ring,
    )
