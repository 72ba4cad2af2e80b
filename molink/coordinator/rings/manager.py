"""Keeps the rings as the nodes allow: builds, hands over, rebuilds, and says what it waits for.

One loop that looks at the node book whenever something has changed. It decides little itself: what
is best, and whether a change is worth its price, the planner says; when it is time to plan,
`readiness`; how a ring comes and goes, `ring_life`; how one follows another, `handover`. What is
decided here is the order: the leaving are let go before anybody is promoted.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from molink.coordinator.members.node_book import Node, NodeBook
from molink.coordinator.planning.cluster_plan import ClusterPlan, PlannedRing, Planner
from molink.coordinator.planning.plan_cache import PlanCache
from molink.coordinator.planning.readiness import Readiness
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.rings.agent_stage import AgentStage
from molink.coordinator.rings.assigner import Assigner
from molink.coordinator.rings.failover import Failover
from molink.coordinator.rings.failure_backoff import FailureBackoff
from molink.coordinator.rings.progress import Waiting, progress_sentence
from molink.coordinator.rings.ring_supervisor import RingEndpoint, RingState, RingSupervisor
from molink.coordinator.rings.slowdown_monitor import SlowdownMonitor
from molink.errors import ErrorGuard

__all__ = ["ClusterManager", "ManagerSettings"]

TICK_S = 0.5
"""Silence is noticed this much late at most."""

PAUSE_TO_LOOK = 9.0
"""A look at everything takes a thousand nodes' coordinator milliseconds, and something always
changes there: looking takes a tenth of the time at most."""

CHANGE_PERIOD_S = 60.0
"""Between two changes that only make things better; losses are answered at once."""

RETRY_S = 5.0
"""After a ring that failed: the same nodes may fail again, and again at once."""


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """What the operator asked for."""

    min_nodes: int = 1
    codec: str = "raw"
    """As `--wire`."""


@dataclass(slots=True)
class ClusterManager:
    """The loop and what it has built."""

    settings: ManagerSettings
    book: NodeBook
    planner: Planner
    service: ClusterService
    assigner: Assigner
    new_door: Callable[[int], RingEndpoint]
    """For a ring of this epoch."""
    readiness: Readiness = field(default_factory=Readiness)
    lives: list[RingSupervisor] = field(default_factory=list)
    plan: ClusterPlan = field(default_factory=lambda: ClusterPlan(()))
    """The latest, with the reasons of standbys."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("A look at the cluster"))
    _stages: dict[str, AgentStage] = field(default_factory=dict)
    """Of the rings that live, by their nodes."""
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _not_before: float = 0.0
    """No plan until then: a ring has failed."""
    _improved_at: float = 0.0
    _next_ring: int = 0
    last_failure: str = ""
    """Why the latest ring has failed; empty when it has not."""
    _resting: FailureBackoff = field(default_factory=FailureBackoff)
    _fruitless: object = None
    """What a plan was made for that brought no ring: the same again would bring none either."""
    _handover: Failover = field(init=False)
    _desk: PlanCache = field(init=False)
    _watch: SlowdownMonitor = field(init=False)
    _slow: frozenset[str] = frozenset()
    """Who takes longer than it has told..."""
    _known_slow: frozenset[str] = frozenset()
    """...and who did when everybody was last planned for."""

    def __post_init__(self) -> None:
        self._desk = PlanCache(self.planner, self._changed.set)
        self._handover = Failover(self._desk, self.assigner, lambda: self.members)
        self._watch = SlowdownMonitor(self.planner)

    def noticed(self, node_id: str) -> None:
        """A node has said something, or has gone."""
        if node_id in self._stages:
            self._stages[node_id].notice()
        for stage in self.assigner.preloading:
            if stage.node.node_id == node_id:
                stage.notice()
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled; then every ring is drained at once and its nodes stand by."""
        try:
            while True:
                self._changed.clear()
                began = time.monotonic()
                with self.guard:
                    self.step(began)
                await asyncio.sleep(PAUSE_TO_LOOK * (time.monotonic() - began))
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._changed.wait()
        finally:
            await self._desk.close()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def step(self, now: float) -> None:
        """Look at everything once."""
        self._bury(now)
        nodes, serving = list(self.book), bool(self._serving)
        self.readiness.look(nodes, now)
        self._slow = self._watch.look(self.lives, nodes, now)
        self._handover.let_go(self.lives, self.free(now))
        first = not self._next_ring
        is_time = self.readiness.is_time(nodes, now, first=first, serving=serving)
        if now >= self._not_before and is_time:
            self._build(now)
            self._handover.release_strays()
        self._say_progress(nodes, now)

    def _say_progress(self, nodes: Sequence[Node], now: float) -> None:
        ways = 0 if self.lives else len(self.readiness.nodes_still_measuring(nodes, now))
        waiting = Waiting(self.nodes_wanted, ways)
        self.service.progress = progress_sentence(
            nodes, self.lives, self.plan, waiting, self.last_failure
        )

    # -- what has ended and who is free ----------------------------------------------------------

    @property
    def nodes_wanted(self) -> int:
        """To begin with as many as the operator asked for; after a loss whoever is left."""
        return 1 if self._next_ring else self.settings.min_nodes

    @property
    def members(self) -> set[str]:
        """Nodes of rings that live."""
        return {stage.node.node_id for life in self.lives for stage in life.stages}

    @property
    def _serving(self) -> list[RingSupervisor]:
        """Rings that live, those that still load among them."""
        return [life for life in self.lives if life.state is not RingState.ENDED]

    def free(self, now: float) -> list[Node]:
        """Nodes that a plan may use now."""
        members = self.members
        return [
            node
            for node in self.book
            if node.may_serve
            and node.node_id not in members
            and not self._resting.rests(node.node_id, now)
        ]

    def _bury(self, now: float) -> None:
        for life in [life for life in self.lives if life.state is RingState.ENDED]:
            self.lives.remove(life)
            self._tasks.pop(life.number, None)
            for stage in life.stages:
                self._stages.pop(stage.node.node_id, None)
            self._handover.ended(life)
            if life.failure:
                self.last_failure = life.failure
                self._let_rest(life, now)
            else:
                self.last_failure = ""

    def _let_rest(self, life: RingSupervisor, now: float) -> None:
        """Whose stage has failed is left out for a while."""
        failed = [stage.node for stage in life.stages if stage.failed]
        for node in failed:
            self._resting.has_failed(node.node_id, now)
        if not failed and all(stage.node.is_here for stage in life.stages):
            self._not_before = now + RETRY_S

    # -- building --------------------------------------------------------------------------------

    def _build(self, now: float) -> None:
        free, serving = self.free(now), self._serving
        if not serving and len(free) < self.nodes_wanted:
            return
        asked = frozenset((one.node_id, one.profile, one.paths_round, one.pace) for one in free)
        if free and asked != self._fruitless:
            plan = self._desk.plan("rings of the free", free)
            if plan is None:
                return
            self._fruitless = None if plan.rings else asked
            self._start(plan, keep_reasons=bool(serving))
        unused = bool(free) and asked == self._fruitless
        if serving and (unused or not self._slow <= self._known_slow):
            self._improve(serving, now)

    def _start(self, plan: ClusterPlan, *, keep_reasons: bool) -> None:
        if plan.rings or not keep_reasons:
            self.plan = plan
        for ring in plan.rings:
            self._begin(ring)

    def _improve(self, serving: Sequence[RingSupervisor], now: float) -> None:
        """Would everybody together do so much better that an interruption pays?"""
        if now - self._improved_at < CHANGE_PERIOD_S or self._handover.under_way:
            return
        if any(life.state is not RingState.SERVING for life in serving):
            return
        nodes = [node for node in self.book if node.may_serve]
        plan = self._desk.plan("rings of all", nodes)
        if plan is None:
            return
        self._improved_at, self._known_slow, self.plan = now, self._slow, plan
        if self.planner.is_worth([life.plan for life in serving], plan, nodes):
            self._handover.improve(serving, plan)

    def _begin(self, plan: PlannedRing) -> None:
        number, self._next_ring = self._next_ring, self._next_ring + 1
        stages = self.assigner.stages(plan, number)
        life = RingSupervisor(
            number=number,
            plan=plan,
            stages=stages,
            door=self.new_door(stages[0].epoch),
            codec=self.settings.codec,
            service=self.service,
            stand_by=self.assigner.stand_by,
            changed=self._changed.set,
        )
        self.lives.append(life)
        self._stages |= {stage.node.node_id: stage for stage in stages}
        self._tasks[number] = asyncio.create_task(life.live())
