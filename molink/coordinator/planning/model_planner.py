"""Plans for one model: from the nodes in the book to rings, by the placement's answers.

The placement itself is pure (`molink_scheduler.placement`). Its facts are put together here, from
reports of nodes as far as they are believed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.layer_sizes import planned_model
from molink.checkpoint.model_shape import PLAIN_WEIGHTS, KvDtype, ModelShape
from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.too_large import with_advice
from molink.config.settings import UpSettings
from molink.control.messages.payloads import (
    AssignedWork,
    Device,
    ModelSize,
    PathMeasured,
    Profile,
    StepCost,
    WeightsSource,
)
from molink.coordinator.members.discrepancies import (
    Sightings,
    StepsSeen,
    believed_rate,
    believed_upload,
    discrepancies,
    measured_slowdown,
    slowed_steps,
)
from molink.coordinator.members.node_book import Node, Slowdown
from molink.coordinator.planning.cluster_plan import ClusterPlan, PlannedRing, PlannedStage
from molink.coordinator.planning.plan_process import plan_beside
from molink.coordinator.planning.step_times import steps_of
from molink_scheduler.link.facts import RATE_MAX_BYTES_PER_S
from molink_scheduler.placement import (
    Forecast,
    Goal,
    LinkFacts,
    ModelCost,
    Network,
    NodeFacts,
    Plan,
    Shortage,
    StageForecast,
    change_cost,
    forecast,
    plan_on_shared_lines,
    worth_changing,
)
from molink_scheduler.placement.plan import PlacementQuestion

__all__ = ["ELEMENT_BYTES", "FactsMaker", "ModelPlanner", "download_bytes_per_s", "goal_of"]

CONTEXT_TOKENS_USUAL = 2048
CONTEXT_SHARE = 4
"""Of the model's length: a quarter, where that is less than usual."""

HOP_SOFTWARE_S = 0.002
"""Of a stage's step beside its layers: unpacking, packing, two thread wake-ups and the link's
thread (1.3 to 2.4 ms in docs/benchmarks/ring.md)."""

DOWNLOAD_GUESS_MBPS = 20.0
"""Of a node that could not measure it: slow enough that a change is not made light of."""

NO_PATH_S = 60.0
"""Delay of a link where no path was found."""

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def goal_of(settings: UpSettings, description: ModelDescription) -> Goal:
    """What users are to feel, and how long their requests are taken to be."""
    length = min(settings.model_len_max or description.model_len_max, description.model_len_max)
    usual = max(16, min(CONTEXT_TOKENS_USUAL, length // CONTEXT_SHARE))
    context = settings.context_tokens or usual
    prompt = context // 2 if settings.prompt_tokens is None else settings.prompt_tokens
    return Goal(
        tpot_s=settings.tpot_ms / 1e3,
        context_tokens=context,
        prompt_tokens=prompt,
        answer_tokens=settings.answer_tokens or max(1, context // 8),
        micro_batches=settings.ring.micro_batch_count,
    )


@dataclass(frozen=True, slots=True)
class FactsMaker:
    """Maker of a placement's facts, for one model."""

    costs: Mapping[int, ModelCost]
    """By the bytes of a number in the stages, see `PlannedModel`."""
    stored_element_bytes: int
    dtype: str
    """As `--dtype`."""
    output_layers: float | None = None
    """What a row multiplies with in the output matrix, in layers; None: as its bytes tell."""
    shape: ModelShape | None = None
    """By which nodes that have timed another model are planned; None: by that model's times."""
    model: str = ""
    """Public name of the model of that shape."""

    @property
    def cost(self) -> ModelCost:
        """Costs in the checkpoint's own format, in whose bytes the placement counts."""
        return self.costs[self.stored_element_bytes]

    def of(self, nodes: Sequence[Node]) -> tuple[list[NodeFacts], Network]:
        """Facts of measured nodes, and of the links between them."""
        seen = Sightings.of(nodes)
        facts = [self._node(node, seen.uploads.get(node.pc, ())) for node in nodes]
        return facts, _network(nodes, seen.links)

    def model_size(self, name: str) -> ModelSize:
        """Size of the model, by which nodes know when they lend too little."""
        return ModelSize(
            name=name,
            layers=self.cost.layers,
            layer_bytes=min(self.cost.layer_bytes),
            # Bytes at two and at four a number: what they have in common are codes.
            code_bytes=max(0, 2 * min(self.costs[2].layer_bytes) - min(self.costs[4].layer_bytes)),
            element_bytes=4 if self.stored_element_bytes == 4 else 2,
            computed_bytes=4 if self.dtype == "float32" else 2 if self.dtype != "auto" else None,
        )

    def reported_decode_s(self, node: Node, layers: tuple[int, int], rows: int) -> float:
        """Seconds of a stage's decode step of so many rows, by the node's own report."""
        steps = self._steps(node)
        work = sum(self.cost.layer_work[slice(*layers)]) or layers[1] - layers[0]
        step_s = HOP_SOFTWARE_S + work * (steps.decode_fixed_s + rows * steps.decode_row_s)
        is_tail = layers[1] == self.cost.layers
        if not is_tail:
            return step_s
        fixed_s, row_s = self._head_s(steps)
        return step_s + fixed_s + rows * row_s

    def reported_row_s(self, node: Node, layers: tuple[int, int]) -> float:
        """Seconds of a row of a prompt in a stage, by the node's own report."""
        work = sum(self.cost.layer_work[slice(*layers)]) or layers[1] - layers[0]
        return work * self._steps(node).prefill_row_s

    def _steps(self, node: Node) -> StepCost:
        return steps_of(node, self.model, self.shape)

    def memory_bytes(self, device: Device, lent_bytes: int) -> int:
        """In bytes of layers as the placement counts them: in a CPU without 16-bit arithmetic they
        take twice as much, and quantized ones a little more."""
        there = self._cost_on(device)
        return lent_bytes * sum(self.cost.layer_bytes) // sum(there.layer_bytes)

    def kv_scale(self, device: Device) -> float:
        """KV bytes of a token on this device, as a multiple of what the plan counts."""
        there = self._cost_on(device)
        return self._scale(device, sum(self.cost.kept_of_token), sum(there.kept_of_token))

    def state_scale(self, device: Device) -> float:
        """Bytes of a request's states on this device, as a multiple of what the plan counts."""
        there = self._cost_on(device)
        return self._scale(device, sum(self.cost.kept_of_request), sum(there.kept_of_request))

    def tables_scale(self, device: Device) -> float:
        """Bytes of embeddings and output head on this device, as a multiple of what the plan
        counts."""
        return self._scale(device, self.cost.tail_bytes, self._cost_on(device).tail_bytes)

    def held_bytes(self, device: Device, stage: StageForecast) -> float:
        """What a stage takes of a device with all its KV and states, as the plan counts."""
        layers = slice(*stage.layers)
        token = sum(self.cost.kept_of_token[layers]) * self.kv_scale(device)
        state = sum(self.cost.kept_of_request[layers]) * self.state_scale(device)
        return stage.weights_bytes + stage.kv_tokens * token + (stage.state_slots or 0) * state

    def _scale(self, device: Device, bytes_here: int, bytes_there: int) -> float:
        """What grows from `bytes_here` to `bytes_there` on a device, against what layers do."""
        layers = sum(self.cost.layer_bytes) / sum(self._cost_on(device).layer_bytes)
        return layers * bytes_there / bytes_here if bytes_here else 1.0

    def _cost_on(self, device: Device) -> ModelCost:
        return self.costs[ELEMENT_BYTES.get(self.dtype, device.element_bytes)]

    def _node(self, node: Node, seen_mbps: Sequence[float]) -> NodeFacts:
        """`seen_mbps`: what others have seen its PC send."""
        profile = node.profile
        assert profile is not None, "only measured nodes are planned"
        device, steps = profile.devices[0], slowed_steps(self._steps(node), node.slowdown)
        head_fixed_s, head_row_s = self._head_s(steps)
        return NodeFacts(
            id=node.node_id,
            memory_bytes=self.memory_bytes(device, device.free_bytes),
            decode_fixed_s=steps.decode_fixed_s,
            decode_row_s=steps.decode_row_s,
            prefill_row_s=steps.prefill_row_s,
            step_fixed_s=HOP_SOFTWARE_S,
            head_row_s=head_row_s,
            head_fixed_s=head_fixed_s,
            upload_bytes_per_s=_upload_bytes_per_s(profile, seen_mbps),
            download_bytes_per_s=profile.download_mbps * 1e6 / 8,
            kv_scale=self.kv_scale(device),
            tables_scale=self.tables_scale(device),
            state_scale=self.state_scale(device),
            name=node.name,
            pc=node.pc,
        )

    def _head_s(self, steps: StepCost) -> tuple[float, float]:
        """Seconds that the output matrix adds to a step and to each row: as reported, or of as
        many layers as it has bytes to read and weights to multiply with."""
        if steps.head_row_s:
            return 0.0, steps.head_row_s
        read = self.cost.tail_bytes * self.cost.layers / sum(self.cost.layer_bytes)
        multiplied = read if self.output_layers is None else self.output_layers
        return steps.decode_fixed_s * read, steps.decode_row_s * multiplied


def _network(nodes: Sequence[Node], seen: Mapping[str, Mapping[str, float]]) -> Network:
    here = {node.node_id for node in nodes}
    return Network(
        {
            (node.node_id, to): _link(path, seen.get(node.node_id, {}).get(to))
            for node in nodes
            for to, path in node.paths.items()
            if to in here
        }
    )


def _link(path: PathMeasured, seen_mbps: float | None) -> LinkFacts:
    """What was not reached at all is taken for the worst link there is."""
    if path.path == "none":
        return LinkFacts(0.0, NO_PATH_S)
    rate = believed_rate(path.rate_mbps, seen_mbps) * 1e6 / 8
    return LinkFacts(rate or RATE_MAX_BYTES_PER_S, path.rtt_ms / 2e3)


def _upload_bytes_per_s(profile: Profile, seen_mbps: Sequence[float]) -> float:
    believed = believed_upload(profile.upload_mbps, seen_mbps)
    cap = profile.upload_cap_mbps
    return (believed if cap is None else min(believed, cap)) * 1e6 / 8


def download_bytes_per_s(node: Node) -> float:
    """As measured, or guessed."""
    mbps = node.profile.download_mbps if node.profile is not None else 0.0
    return (mbps or DOWNLOAD_GUESS_MBPS) * 1e6 / 8


@dataclass(frozen=True, slots=True)
class ModelPlanner:
    """Plans for one model."""

    facts: FactsMaker
    goal: Goal
    weights: WeightsSource
    split: str = "planned"
    """As `--split`."""
    kv_dtype: KvDtype = "auto"
    """As `--kv`."""
    declared: DeclaredQuantization = PLAIN_WEIGHTS
    """How the checkpoint says that its weights are quantized."""

    @classmethod
    def of(
        cls,
        path: str,
        description: ModelDescription,
        weights: WeightsSource,
        settings: UpSettings,
        name: str = "",
    ) -> "ModelPlanner":
        """For the model at a path or on the hub, of which nodes hear by a public name. Raises
        UserError when its sizes are not known."""
        stored = ELEMENT_BYTES.get(description.dtype, 2)
        planned = planned_model(path, settings.kv_dtype)
        output_layers = 2 * planned.shape.head_parameters / planned.shape.row_flops
        shown = planned.shape, name or weights.model
        facts = FactsMaker(planned.costs, stored, settings.dtype, output_layers, *shown)
        goal = goal_of(settings, description)
        kept = (settings.split, settings.kv_dtype, planned.declared)
        return cls(facts, goal, weights, *kept)

    @property
    def cost(self) -> ModelCost:
        """Costs of the model."""
        return self.facts.cost

    def splitting(self, split: str | None) -> "ModelPlanner":
        """This planner with another `--split`; None: as it is."""
        return self if split is None else replace(self, split=split)

    async def plan(self, nodes: Sequence[Node]) -> ClusterPlan:
        """The best rings of these nodes, all of which are measured. Raises StageError."""
        if not nodes:
            return ClusterPlan((), {}, "No PC is ready.")
        devices = {node.node_id: _device(node) for node in nodes}
        found = await plan_beside(self.question(nodes))
        if isinstance(found, Shortage):
            sentence = with_advice(found.sentence, self.declared)
            return ClusterPlan((), {}, sentence[:1].upper() + sentence[1:])
        seen, by_id = Sightings.of(nodes), {node.node_id: node for node in nodes}
        standbys = {
            one.node_id: " ".join((f"It {one.reason}.", *discrepancies(by_id[one.node_id], seen)))
            for one in found.standbys
        }
        rings = tuple(self._planned(ring, devices) for ring in found.rings)
        return ClusterPlan(rings, standbys)

    def question(self, nodes: Sequence[Node]) -> PlacementQuestion:
        """What the placement is asked."""
        facts, network = self.facts.of(nodes)
        return PlacementQuestion.of(self.cost, facts, network, self.goal, self.split)

    def slowdown(
        self, stage: PlannedStage, node: Node, rows: int, seen: StepsSeen
    ) -> Slowdown | None:
        """How a member's steps compare with what it has reported; None: it is not known yet."""
        decode_s = self.facts.reported_decode_s(node, stage.work.layers, rows)
        row_s = self.facts.reported_row_s(node, stage.work.layers)
        return measured_slowdown(decode_s, row_s, seen, node.slowdown)

    def outgrown(self, ring: PlannedRing, node: Node) -> bool:
        """Whether a member's owner has set a cap in which its part of the ring does not fit. One
        that reports no device does not leave by that: its driver may be silent for a moment."""
        device = next(iter(node.profile.devices), None) if node.profile is not None else None
        if device is None or device.cap_bytes is None or ring.forecast is None:
            return False
        held = [
            self.facts.held_bytes(device, stage)
            for stage in ring.forecast.stages
            if stage.node_id == node.node_id
        ]
        return sum(held) > self.facts.memory_bytes(device, device.cap_bytes)

    def work_on(self, node: Node, work: AssignedWork, kv_tokens: int) -> AssignedWork | None:
        """A stage's work as another node would do it; None: that node has no room for it."""
        device, facts = _device(node), self.facts
        layers = slice(*work.layers)
        weights = facts.cost.stage_bytes(*work.layers, facts.tables_scale(device))
        token = sum(facts.cost.kept_of_token[layers]) * facts.kv_scale(device)
        if weights + kv_tokens * token > facts.memory_bytes(device, device.free_bytes):
            return None
        name = _device_name(device)
        return replace(work, device=name, threads=device.threads, kv_tokens=kv_tokens)

    def fetch_s(self, node: Node, layers: tuple[int, int]) -> float:
        """How long a node takes to fetch layers of which it has none."""
        return self.cost.fetched_bytes(*layers) / download_bytes_per_s(node)

    def _planned(self, ring: Forecast, devices: Mapping[str, Device]) -> PlannedRing:
        stages = (
            PlannedStage(stage.node_id, self._work(stage, devices[stage.node_id]))
            for stage in ring.stages
        )
        return PlannedRing(tuple(stages), ring, ring.ttft_s / max(1, self.goal.prompt_tokens))

    def _work(self, stage: StageForecast, device: Device) -> AssignedWork:
        return AssignedWork(
            layers=stage.layers,
            device=_device_name(device),
            dtype=self.facts.dtype,
            kv_tokens=stage.kv_tokens,
            threads=device.threads,
            weights=self.weights,
            kv_dtype=self.kv_dtype,
        )

    def is_worth(
        self, present: Sequence[PlannedRing], plan: ClusterPlan, nodes: Sequence[Node]
    ) -> str:
        """Why the plan is worth the interruption; empty when it is not."""
        now, then = self._as_known(present, nodes), self._placement(plan.rings)
        rates = {node.node_id: download_bytes_per_s(node) for node in nodes}
        cost = change_cost(now, then, self.cost, rates)
        decision = worth_changing(now, then, cost)
        return decision.sentence if decision.change else ""

    def _as_known(self, present: Sequence[PlannedRing], nodes: Sequence[Node]) -> Plan:
        """Of rings that serve, by what is known of their members today; devices of a PC share its
        line as in a new plan."""
        members = {stage.node_id for ring in present for stage in ring.stages}
        facts, network = self.facts.of([node for node in nodes if node.node_id in members])

        def forecasts(known: Sequence[NodeFacts]) -> Plan:
            by_id = {one.id: one for one in known}
            rings = (self._forecast_now(ring, by_id, network) for ring in present if ring.forecast)
            return Plan(self.goal, tuple(rings))

        return plan_on_shared_lines(facts, forecasts)

    def _forecast_now(
        self, ring: PlannedRing, facts: Mapping[str, NodeFacts], network: Network
    ) -> Forecast:
        """Their memory is in use, so what they lent when it was planned still counts."""
        planned = ring.forecast
        assert planned is not None, "only forecast rings are compared"
        if any(stage.node_id not in facts for stage in ring.stages):
            return planned
        lent = [
            replace(facts[stage.node_id], memory_bytes=stage.memory_bytes)
            for stage in planned.stages
        ]
        counts = [stage.layers[1] - stage.layers[0] for stage in planned.stages]
        return forecast(self.cost, lent, counts, network, self.goal)

    def _placement(self, rings: Sequence[PlannedRing]) -> Plan:
        return Plan(self.goal, tuple(ring.forecast for ring in rings if ring.forecast is not None))


def _device(node: Node) -> Device:
    assert node.profile is not None, "only measured nodes are planned"
    return node.profile.devices[0]


def _device_name(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"
