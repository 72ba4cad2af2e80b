"""Plan of a cluster, its planners, and the cache from which the manager takes plans.

Is it time to plan? Nodes that start together are planned for together, once the paths between
them are measured.

Nodes settle first, for a moment at most. A first plan waits for nodes that have just come, for
those that still time a layer, and for those that still measure the paths to each other: a link that
was not measured is only guessed. Each of these waits has an end, so that no single PC holds up the
others. A repair waits for nothing: users do. While a ring serves, what may come to it has time, and
waits for the paths.

Pure: times are arguments, in seconds on a clock that never jumps.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from molink.control.messages.payloads import AssignedWork, NodeState
from molink.coordinator.nodes.node_book import Node
from molink.coordinator.nodes.slowdown import Slowdown, StepsSeen
from molink.errors import ErrorGuard
from molink.report.cluster import RingForecast
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
        if one is None:
            return None
        return RingForecast(
            one.users, one.tpot_s, one.tpot_alone_s, one.ttft_s, one.tokens_per_s, one.bottleneck
        )


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
        """A stage's work as another node would do it, with room for so many tokens; None: that
        node has no room for it."""

    def fetch_s(self, node: Node, layers: tuple[int, int]) -> float:
        """How long a node takes to fetch layers of which it has none."""

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


SETTLE_S, SETTLE_MAX_S = 1.0, 3.0
"""Seconds after the last change of which nodes are there and lent; and at most, after the first:
among a thousand nodes something always changes, and one may change on purpose."""

CHANGES_MAX, CHANGES_WITHIN_S = 8, 60.0
"""Times that one node may come, go, or change its wish within so long: owners who try out a limit
do so a few times a minute."""

MEASURING_WAIT_S = 60.0
"""A node that has joined and not reported its step times by then is planned without: it would hold
up all others. A slow PC loads its probe in ten seconds."""

PATHS_WAIT_S = 20.0
"""Seconds after the last newcomer has timed its layer. The paths are measured meanwhile and are
usually known first: a PC with twelve neighbours needs a second and a half for each."""

Asked = Callable[[Node, Sequence[Node]], Set[str]]
"""Ids of the nodes that the first one shall measure, of all that are there."""


@dataclass(slots=True)
class RestlessNodes:
    """Watch over nodes that come and go, or change their wish, more often than anybody means to."""

    _seen: dict[str, int] = field(default_factory=dict)
    """Changes of each that were taken in."""
    _changed_at: dict[str, deque[float]] = field(default_factory=dict)
    """The latest times at which each has changed."""

    def update(self, nodes: Sequence[Node], now: float) -> list[str]:
        """Take in which nodes are there; the ids of those that have just changed too often."""
        found = []
        for node in nodes:
            count = node.changes - self._seen.get(node.node_id, 0)
            self._seen[node.node_id] = node.changes
            if count and self._changed(node.node_id, min(count, CHANGES_MAX), now):
                found.append(node.node_id)
        return found

    def _changed(self, node_id: str, count: int, now: float) -> bool:
        """Whether so many more changes are too many; then they are counted anew."""
        times = self._changed_at.setdefault(node_id, deque(maxlen=CHANGES_MAX))
        times.extend([now] * count)
        is_restless = len(times) == CHANGES_MAX and now - times[0] <= CHANGES_WITHIN_S
        if is_restless:
            del self._changed_at[node_id]
        return is_restless


@dataclass(slots=True)
class Readiness:
    """Judge of whether to plan now, by which nodes are there and what they have reported."""

    asked_of: Asked
    settle_s: float = SETTLE_S
    _lending: frozenset[tuple[str, str]] = frozenset()
    _lending_since: float = 0.0
    _unsettled_since: float | None = None
    """When the first of the changes came since nodes were last settled; None: they are."""
    _measured_at: dict[str, float] = field(default_factory=dict)
    """When each node was first seen to have timed its layer."""
    _news_at: float = 0.0
    """When the lent nodes, or those that have timed their layer, were last seen to change."""
    _silent: set[str] = field(default_factory=set)
    """Nodes whose paths are not waited for any more, until they have reported them."""

    def update(self, nodes: Sequence[Node], now: float) -> None:
        """Take in which nodes are there."""
        here = [node for node in nodes if node.is_here]
        lending = frozenset((node.node_id, node.wants) for node in here)
        if lending != self._lending:
            self._lending, self._lending_since, self._news_at = lending, now, now
            if self._unsettled_since is None:
                self._unsettled_since = now
        measured = {node.node_id for node in here if node.is_measured}
        if measured != self._measured_at.keys():
            known = self._measured_at
            self._measured_at = {name: known.get(name, now) for name in measured}
            self._news_at = now

    def is_time(self, nodes: Sequence[Node], now: float, *, first: bool, serving: bool) -> bool:
        """Whether to plan now, after an `update`.

        `first`: there has been no ring yet; `serving`: one serves users meanwhile.
        """
        if not (first or serving):
            return True
        if not self._is_settled(now):
            return False
        if first and self._is_timing(nodes, now):
            return False
        return not self.nodes_still_measuring(nodes, now)

    def _is_settled(self, now: float) -> bool:
        if now - self._lending_since >= self.settle_s:
            self._unsettled_since = None
            return True
        since = self._unsettled_since
        return since is not None and now - since >= SETTLE_MAX_S

    def _is_timing(self, nodes: Sequence[Node], now: float) -> bool:
        joining = any(node.state is NodeState.JOINING for node in nodes if node.is_here)
        return joining and now - self._news_at < MEASURING_WAIT_S

    def nodes_still_measuring(self, nodes: Sequence[Node], now: float) -> list[Node]:
        """The nodes whose paths to others are still waited for."""
        lent = {node.node_id for node in nodes if node.may_serve}
        return [
            node
            for node in nodes
            if node.node_id in lent and self._is_awaited(node, nodes, lent, now)
        ]

    def _is_awaited(self, node: Node, nodes: Sequence[Node], lent: Set[str], now: float) -> bool:
        unknown = (self.asked_of(node, nodes) & lent) - node.paths.keys()
        if not unknown:
            self._silent.discard(node.node_id)
            return False
        known_at = max(self._measured_at.get(name, now) for name in (node.node_id, *unknown))
        if now - known_at >= PATHS_WAIT_S:
            self._silent.add(node.node_id)
        return node.node_id not in self._silent
