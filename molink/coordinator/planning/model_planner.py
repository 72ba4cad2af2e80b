"""Plans for one model: from the nodes in the book to rings, by the placement's answers.

The placement itself is pure (`molink_scheduler.placement`), its facts are `placement_facts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.kv_format import KvDtype
from molink.checkpoint.layer_sizes import planned_model
from molink.checkpoint.model_shape import PLAIN_WEIGHTS
from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.quantized.too_large import with_advice
from molink.config.groups import TAIL_DRAFTERS
from molink.config.settings import UpSettings
from molink.control.messages.payloads import (
    AssignedDrafter,
    AssignedWork,
    Device,
    WeightsSource,
)
from molink.coordinator.nodes.discrepancies import Sightings, discrepancies
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.slowdown import Slowdown, StepsSeen, measured_slowdown
from molink.coordinator.planning.cluster_plan import ClusterPlan, PlannedRing, PlannedStage
from molink.coordinator.planning.drafter_plan import (
    NO_ROOM,
    TOO_LATE,
    PlannedDrafter,
    refused,
    undrafted,
)
from molink.coordinator.planning.placement_facts import (
    ELEMENT_BYTES,
    FactsMaker,
    download_bytes_per_s,
)
from molink.coordinator.planning.plan_process import plan_beside
from molink.stage_protocol.draft_model import DraftModel
from molink_scheduler.cell.far_lender import TOKEN_SHARE_MAX
from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import (
    Forecast,
    Goal,
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
from molink_scheduler.placement.question import PlacementQuestion

REPLACED_GAIN_MIN = 0.2
"""Share of a request's time that another node must save in a slow one's place: streams pause for a
second, and forecasts err."""

CONTEXT_TOKENS_USUAL = 2048
CONTEXT_SHARE = 4
"""Part of the model's length, a quarter, that is planned for where it is less than usual."""


def goal_of(settings: UpSettings, description: ModelDescription) -> Goal:
    """Goal of a plan: what users are to feel, and how long their requests are taken to be."""
    goal, len_max = settings.goal, description.model_len_max
    length = min(settings.served.model_len_max or len_max, len_max)
    usual = max(16, min(CONTEXT_TOKENS_USUAL, length // CONTEXT_SHARE))
    context = goal.context_tokens or usual
    prompt = context // 2 if goal.prompt_tokens is None else goal.prompt_tokens
    return Goal(
        tpot_s=goal.tpot_ms / 1e3,
        context_tokens=context,
        prompt_tokens=prompt,
        answer_tokens=goal.answer_tokens or max(1, context // 8),
        micro_batches=settings.ring.micro_batch_count,
    )


@dataclass(frozen=True, slots=True)
class KvFigures:
    """What a stage's KV takes, for who may lend it room."""

    token_bytes: int
    """Bytes of a token in its layers."""
    row_bytes: int
    """Bytes of a decode row's queries and answers in one layer, both ways."""
    tokens_longest: int
    """Tokens of the longest request that is let in."""
    slower_s: float
    """Seconds by which its steps may take longer for room that it borrows."""


@dataclass(frozen=True, slots=True)
class ModelPlanner:
    """Plans for one model."""

    facts: FactsMaker
    goal: Goal
    weights: WeightsSource
    split: str = "planned"
    """Way to split the layers, as `--split` names it."""
    kv_dtype: KvDtype = "auto"
    """Form in which KV is kept, as `--kv` names it."""
    declared: DeclaredQuantization = PLAIN_WEIGHTS
    """How the checkpoint says that its weights are quantized."""
    standbys: int = 0
    """Nodes that a plan leaves free if it can, as `--standby` asks."""
    prefix_cache: bool = True
    """Whether stages cache prefixes; `--no-prefix-cache` turns it off."""
    kv_host_tokens: int = 0
    """Tokens of KV that stages may hold in their PCs' memory, as `--kv-host-tokens` asks."""
    drafts: bool = False
    """Whether tails draft with a layer of the checkpoint."""
    drafter: AssignedDrafter | None = None
    """Model that drafts, which the costs hold in the head; None: there is none."""
    tokens_longest: int = 0
    """Tokens of the longest request that is let in."""
    trouble: str = ""
    """Why tails do not draft although they were asked to, in a sentence."""

    @classmethod
    def of(
        cls,
        path: str,
        description: ModelDescription,
        weights: WeightsSource,
        settings: UpSettings,
        name: str = "",
        drafter: DraftModel | None = None,
    ) -> "ModelPlanner":
        """The planner for the model at a path or on the hub, of which nodes hear by a public name,
        and for one that drafts. Raises UserError when its sizes are not known."""
        stored, served = ELEMENT_BYTES.get(description.dtype, 2), settings.served
        planned = planned_model(path, served.kv_dtype)
        drafts = bool(planned.drafts) and settings.ring.drafter in TAIL_DRAFTERS
        planned = planned.drafting if drafts else planned
        output_layers = 2 * planned.shape.head_parameters / planned.shape.row_flops
        goal = goal_of(settings, description)
        beside = PlannedDrafter.of(drafter, goal.context_tokens) if drafter is not None else None
        planned = planned if beside is None else beside.beside(planned)
        drafts |= beside is not None and beside.drafts_at_tail
        model_len_max = description.model_len_max
        return cls(
            FactsMaker(
                planned.costs,
                stored,
                served.dtype,
                output_layers,
                shape=planned.shape,
                model=name or weights.model,
            ),
            goal,
            weights,
            split=settings.goal.split,
            kv_dtype=served.kv_dtype,
            declared=planned.declared,
            standbys=settings.ring.standbys,
            prefix_cache=settings.ring.prefix_cache,
            kv_host_tokens=settings.ring.kv_host_tokens,
            drafts=drafts,
            drafter=None if beside is None else beside.assigned,
            tokens_longest=min(served.model_len_max or model_len_max, model_len_max),
        )

    @property
    def cost(self) -> ModelCost:
        """Costs of the model."""
        return self.facts.cost

    def splitting(self, split: str | None) -> "ModelPlanner":
        """This planner with another `--split`; None: as it is."""
        return self if split is None else replace(self, split=split)

    def without_drafter(self, why: str) -> "ModelPlanner":
        """This planner for rings on which no model drafts."""
        if self.drafter is None or self.drafter.refused:
            return self
        facts = replace(self.facts, costs=undrafted(self.facts.costs))
        drafts = self.drafts and self.drafter.reads_from is None
        return replace(self, facts=facts, drafts=drafts, drafter=refused(self.drafter, why))

    async def plan(self, nodes: Sequence[Node]) -> ClusterPlan:
        """The best rings of these nodes, all of which are measured; without a model that drafts
        where there are none with it. Raises StageError."""
        if not nodes:
            return ClusterPlan((), {}, "No PC is ready.")
        without = self.without_drafter(NO_ROOM)
        found = await plan_beside(self.question(nodes))
        if isinstance(found, Shortage) and without is not self:
            return await without.plan(nodes)
        if isinstance(found, Shortage):
            sentence = with_advice(found.sentence, self.declared)
            return ClusterPlan((), {}, sentence[:1].upper() + sentence[1:])
        seen, by_id = Sightings.of(nodes), {node.node_id: node for node in nodes}
        standbys = {
            one.node_id: " ".join((f"It {one.reason}.", *discrepancies(by_id[one.node_id], seen)))
            for one in found.standbys
        }
        devices = {node.node_id: _device(node) for node in nodes}
        rings = tuple(self._planned(ring, devices) for ring in found.rings)
        return ClusterPlan(rings, standbys)

    def question(self, nodes: Sequence[Node]) -> PlacementQuestion:
        """Question that the placement is asked."""
        facts, network = self.facts.of(nodes)
        return PlacementQuestion.of(self.cost, facts, network, self.goal, self.split, self.standbys)

    def slowdown(
        self, stage: PlannedStage, node: Node, rows: int, seen: StepsSeen
    ) -> Slowdown | None:
        """How a member's steps compare with what it has reported; None: it is not known yet."""
        decode_s = self.facts.reported_decode_s(node, stage.work.layers, rows)
        row_s = self.facts.reported_row_s(node, stage.work.layers)
        return measured_slowdown(decode_s, row_s, seen, node.slowdown)

    def link_rates_mbps(self, nodes: Sequence[Node]) -> Sequence[float]:
        """Rate from each node of a ring to the next one, as a plan counts it before they serve."""
        return self.facts.link_rates_mbps(nodes)

    def gains_by(self, ring: PlannedRing, place: int, node: Node, members: Sequence[Node]) -> bool:
        """Whether a ring would answer much sooner with another node in one place, by what is known
        of it and of the ring's members now."""
        if ring.forecast is None:
            return False
        stages = list(ring.stages)
        stages[place] = replace(stages[place], node_id=node.node_id)
        known = (self._as_known([one], [*members, node]) for one in (ring, ring.moved(stages)))
        now_s, then_s = (self._request_s(plan.rings[0]) for plan in known)
        return then_s <= (1 - REPLACED_GAIN_MIN) * now_s

    def _request_s(self, ring: Forecast) -> float:
        """How long a typical request takes that is alone on a ring."""
        return ring.ttft_s + self.goal.answer_tokens * ring.tpot_alone_s

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
        """A stage's work as another node would do it, without the model that drafts where that has
        no room; None: that node has no room for it."""
        device = _device(node)
        ways = _planner_of(self, work), self.without_drafter(NO_ROOM)
        able = (one for one in ways if one.facts.has_room(device, work.layers, kv_tokens))
        if (planner := next(able, None)) is None:
            return None
        work = replace(work, device=_device_name(device), threads=device.threads)
        work = replace(work, kv_host_tokens=self.kv_host_tokens, lan_lease=None)
        return replace(work, kv_tokens=kv_tokens, drafter=planner.drafter)

    def kv_figures(self, node: Node, work: AssignedWork) -> KvFigures | None:
        """What a stage's KV takes on a node; None: it tells of no device, or no lender holds such
        KV (rows of latent attention)."""
        shape = self.facts.shape
        if shape is None or node.profile is None or not node.profile.devices:
            return None
        if shape.expansion_parameters:
            return None
        return KvFigures(
            token_bytes=self.facts.token_bytes(_device(node), work.layers),
            row_bytes=2 * shape.attention_width + 4 * shape.heads,
            tokens_longest=self.tokens_longest,
            slower_s=TOKEN_SHARE_MAX * self.goal.tpot_s,
        )

    def undrafted(self, work: AssignedWork) -> AssignedWork:
        """The work without the model that drafts, which would come too late."""
        return replace(work, drafter=_planner_of(self, work).without_drafter(TOO_LATE).drafter)

    def fetch_s(self, node: Node, work: AssignedWork) -> float:
        """How long a node takes to fetch layers of which it has none, with the model that drafts on
        the first one."""
        cost = _planner_of(self, work).cost
        return cost.fetched_bytes(*work.layers) / download_bytes_per_s(node)

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
            prefix_cache=self.prefix_cache,
            kv_host_tokens=self.kv_host_tokens,
            drafts=self.drafts,
            drafter=self.drafter,
        )

    def is_worth(
        self,
        present: Sequence[PlannedRing],
        plan: ClusterPlan,
        nodes: Sequence[Node],
        kept_tokens: Sequence[int],
    ) -> str:
        """Why the plan is worth the interruption; empty when it is not. `kept_tokens`: of how many
        tokens each present ring holds KV."""
        now, then = self._as_known(present, nodes), self._placement(plan.rings)
        rates = {node.node_id: download_bytes_per_s(node) for node in nodes}
        cost = change_cost(now, then, self.cost, rates, kept_tokens)
        decision = worth_changing(now, then, cost)
        return decision.sentence if decision.change else ""

    def _as_known(self, present: Sequence[PlannedRing], nodes: Sequence[Node]) -> Plan:
        """Plan of the rings that serve, by what is known of their members today; devices of a PC
        share its line as in a new plan."""
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
        """Forecast of a ring today; its memory is in use, so what was lent at its plan counts."""
        planned = ring.forecast
        assert planned is not None, "only forecast rings are compared"
        if any(stage.node_id not in facts for stage in ring.stages):
            return planned
        lent = [
            replace(facts[stage.node_id], memory_bytes=stage.memory_bytes)
            for stage in planned.stages
        ]
        counts = [stage.layers[1] - stage.layers[0] for stage in planned.stages]
        cost = _planner_of(self, ring.stages[0].work).cost
        return forecast(cost, lent, counts, network, self.goal)

    def _placement(self, rings: Sequence[PlannedRing]) -> Plan:
        return Plan(self.goal, tuple(ring.forecast for ring in rings if ring.forecast is not None))


def _planner_of(planner: ModelPlanner, work: AssignedWork) -> ModelPlanner:
    """The planner for rings on which a model drafts as this work says."""
    why = work.drafter.refused if work.drafter is not None else ""
    return planner.without_drafter(why) if why else planner


def _device(node: Node) -> Device:
    assert node.profile is not None, "only measured nodes are planned"
    return node.profile.devices[0]


def _device_name(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"
