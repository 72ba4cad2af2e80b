"""Plan of a cluster, its planners, and the cache from which the manager takes plans."""

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from molink.control.messages.payloads import AssignedWork
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.slowdown import Slowdown, StepsSeen
from molink.errors import ErrorGuard
from molink.report.cluster import RingForecast
from molink.report.shared_fields import report_of
from molink_scheduler.routing.ring_forecast import RingPace

if TYPE_CHECKING:
    from molink_scheduler.placement import Forecast, StageForecast

FRESH_S = 5.0
"""A plan that was not used so long is not used any more; the manager asks twice a second."""

RETRY_FIRST_S, RETRY_MAX_S = 5.0, 60.0
"""Seconds after a plan that could not be made: there is no memory for a process, perhaps. They
double until a plan can be made."""


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
    prompt_token_s: float = 0.0
    """Seconds of the forecast's time to first token for each token of its prompt; 0 without."""

    def moved(self, stages: Sequence[PlannedStage]) -> "PlannedRing":
        """The same ring with other nodes in some places, or with fewer places for the same layers.
        What was forecast of those before them still stands for them."""
        if self.forecast is None:
            return replace(self, stages=tuple(stages))
        moved = tuple(_moved(self.forecast.stages, stage) for stage in stages)
        return replace(self, stages=tuple(stages), forecast=replace(self.forecast, stages=moved))

    @property
    def users(self) -> int:
        """Users that it serves within the bound on TPOT."""
        return self.forecast.users if self.forecast is not None else 1

    @property
    def tokens_per_s(self) -> float:
        """Forecast of all users together; 0 without."""
        return self.forecast.tokens_per_s if self.forecast is not None else 0.0

    @property
    def pace(self) -> RingPace | None:
        """Forecast by which requests are sent to it; None without."""
        one = self.forecast
        if one is None or not self.prompt_token_s:
            return None
        prompt_tokens = round(one.ttft_s / self.prompt_token_s)
        return RingPace.planned(prompt_tokens, one.ttft_s, one.tpot_alone_s, one.tpot_s, one.users)

    @property
    def promised(self) -> RingForecast | None:
        """Forecast in figures, to be compared with what is served; None without."""
        one = self.forecast
        return None if one is None else report_of(RingForecast, one)


def _moved(forecasts: Sequence["StageForecast"], stage: PlannedStage) -> "StageForecast":
    """The forecast of a stage by those of the stages that have held its layers."""
    start, end = stage.work.layers
    parts = [one for one in forecasts if start <= one.layers[0] < end]
    own = next((one for one in parts if one.node_id == stage.node_id), parts[0])
    if len(parts) == 1:
        return replace(own, node_id=stage.node_id)
    slots = [one.state_slots for one in parts if one.state_slots is not None]
    kv_tokens = [one.kv_tokens for one in parts]
    return replace(
        own,
        layers=(start, end),
        weights_bytes=sum(one.weights_bytes for one in parts),
        kv_tokens=min([*kv_tokens, stage.work.kv_tokens or kv_tokens[0]]),
        used_bytes=sum(one.used_bytes for one in parts),
        step_s=sum(one.step_s for one in parts),
        busy_share=min(1.0, sum(one.busy_share for one in parts)),
        link_busy_share=parts[-1].link_busy_share,
        fetched_bytes=sum(one.fetched_bytes for one in parts),
        state_slots=min(slots, default=None),
    )


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

    @property
    def trouble(self) -> str:
        """What all of its rings serve without although it was asked for, in a sentence; empty:
        nothing."""

    async def plan(self, nodes: Sequence[Node]) -> ClusterPlan:
        """The best rings of these nodes, all of which are measured; may take seconds. Raises
        StageError when it cannot be made."""

    def slowdown(
        self, stage: PlannedStage, node: Node, rows: int, seen: StepsSeen
    ) -> Slowdown | None:
        """How a member's steps compare with what it has reported; None: it is not known yet.

        `rows`: of a decode micro-batch, at most.
        """

    def link_rates_mbps(self, nodes: Sequence[Node]) -> Sequence[float]:
        """Rate from each node of a ring to the next one, as a plan counts it before they serve; 0:
        not known."""

    def gains_by(self, ring: PlannedRing, place: int, node: Node, members: Sequence[Node]) -> bool:
        """Whether a ring would answer much sooner with another node in one place, by what is known
        of it and of the ring's members now."""

    def outgrown(self, ring: PlannedRing, node: Node) -> bool:
        """Whether a member's owner has set a cap in which its part of the ring does not fit."""

    def work_on(self, node: Node, work: AssignedWork, kv_tokens: int) -> AssignedWork | None:
        """A stage's work as another node would do it, with room for so many tokens, and without
        the model that drafts where that has none; None: that node has no room for it."""

    def undrafted(self, work: AssignedWork) -> AssignedWork:
        """The work without the model that drafts, which would come too late."""

    def fetch_s(self, node: Node, work: AssignedWork) -> float:
        """How long a node takes to fetch layers of which it has none, with the model that drafts on
        the first one."""

    def is_worth(
        self,
        present: Sequence[PlannedRing],
        plan: ClusterPlan,
        nodes: Sequence[Node],
        kept_tokens: Sequence[int],
    ) -> str:
        """Why the plan is worth the interruption; empty when it is not. `kept_tokens`: of how many
        tokens each present ring holds KV."""


@dataclass(slots=True)
class PlanCache:
    """Cache of plans, one for each purpose: made beside, and handed out while it still holds.

    The manager evaluates the cluster again and again; it cannot wait for a plan, and one that took
    seconds may be out of date. So a plan is invalid once a node that it uses has gone, or some
    seconds after it was made; newcomers are for the next one.
    """

    planner: Planner
    wake: asyncio.Event
    """Event that is set when a plan was made."""
    tasks: asyncio.TaskGroup
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Making a plan"))
    _entries: dict[Hashable, "_Entry"] = field(default_factory=dict)
    _retry_s: float = field(default_factory=lambda: RETRY_FIRST_S)

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
        """Make the plan of an entry, unless its facts have changed: an agent that has just started
        anew is there before its new profile. Then there is no plan, and the next waits for that.
        """
        is_same = entry.facts == _facts(nodes)
        with self.guard:
            entry.plan = await self.planner.plan(nodes) if is_same else None
        if entry.plan is not None or not is_same:
            self._retry_s = RETRY_FIRST_S
        else:
            retry_s, self._retry_s = self._retry_s, min(RETRY_MAX_S, 2 * self._retry_s)
            await asyncio.sleep(retry_s)
        entry.made_at = _now()
        self.wake.set()


@dataclass(slots=True)
class _Entry:
    """Plan in the making, or made."""

    facts: frozenset[tuple[object, ...]]
    """Facts from which the plan is made."""
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
