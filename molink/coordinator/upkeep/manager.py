"""Keeps the rings as the nodes allow: builds and replaces them, and shows what is missing.

One loop that evaluates the node book whenever something has changed. It decides little itself: what
is best, and whether a change is worth its price, the planner knows; when it is time to plan,
`readiness`; a supervisor runs each ring, and `handover` lets one follow another. What is decided
here is the order: nodes that want to leave are released before others are taken on.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from molink.coordinator.cell.lending import Lenders, NoLenders
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.nodes.slowdown import AS_REPORTED
from molink.coordinator.planning.cluster_plan import ClusterPlan, PlanCache, PlannedRing, Planner
from molink.coordinator.planning.readiness import Readiness, RestlessNodes
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.stage_watch import StageFailure
from molink.coordinator.upkeep.assigner import Assigner
from molink.coordinator.upkeep.blame import Blame
from molink.coordinator.upkeep.handover import Handover
from molink.coordinator.upkeep.recovery import Recovery
from molink.coordinator.upkeep.ring_building import RingEndpoint
from molink.coordinator.upkeep.ring_health import SlowdownMonitor, plan_sentence, progress_sentence
from molink.coordinator.upkeep.ring_supervisor import RingState, RingSupervisor
from molink.coordinator.upkeep.settings import ManagerSettings
from molink.coordinator.upkeep.slow.replacement import SlowReplacement
from molink.coordinator.upkeep.slow.slow_rings import SlowRings
from molink.coordinator.upkeep.standbys import Standbys
from molink.coordinator.upkeep.take_over import KeptRing, RingKeeper, TakeOver
from molink.errors import ErrorGuard, MolinkError

TICK_S = 0.5
"""Silence is noticed this much late at most."""

PAUSE_PER_STEP = 9.0
"""A step takes a thousand nodes' coordinator milliseconds, and something always changes there:
steps take a tenth of the time at most."""

CHANGE_PERIOD_S = 60.0
"""Between two changes that only make things better; losses are answered at once."""

SLOW_PERIOD_S = 5.0
"""The same where a member has just become slow: all of its ring's users wait for it, which is worse
than to lose it."""

RETRY_FIRST_S, RETRY_MAX_S = 5.0, 300.0
"""After a ring that failed and nobody is to blame for it: the same nodes may fail again, and again
at once. Doubles until a ring has served for a while."""

STEADY_S = 60.0
"""Service after which a ring is steady: what ends it then is not what ended the one before."""


@dataclass(slots=True)
class ClusterManager:
    """Loop that builds rings of a book's nodes."""

    settings: ManagerSettings
    book: NodeBook
    planner: Planner
    service: ClusterService
    assigner: Assigner
    new_endpoint: Callable[[int], RingEndpoint]
    """For a ring of this epoch."""
    readiness: Readiness
    tasks: asyncio.TaskGroup
    """In which rings run and plans are made."""
    blame: Blame = field(default_factory=Blame)
    keeper: RingKeeper = field(default_factory=RingKeeper)
    lenders: Lenders = field(default_factory=NoLenders)
    rings: list[RingSupervisor] = field(default_factory=list)
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("A step of the cluster's manager"))
    plan: ClusterPlan = field(default_factory=lambda: ClusterPlan(()))
    """The latest, with the reasons of standbys."""
    last_failure: str = ""
    """Why the latest ring has failed; empty when it has not."""
    _fatal: MolinkError | None = None
    """Why the first ring does not stand, where it must."""
    _not_before: float = 0.0
    """No plan until then: a ring has failed."""
    _retry_s: float = field(default_factory=lambda: RETRY_FIRST_S)
    _stepped_at: float | None = None
    _improved_at: float = 0.0
    _next_ring: int = 0
    _fruitless: object = None
    """What a plan was made for that brought no ring: the same again would bring none either."""
    _slow: frozenset[str] = frozenset()
    """Nodes that do far less than was planned with."""
    _unreplaced: frozenset[str] = frozenset()
    """Slow members of rings whose place nobody takes."""
    _known_slow: frozenset[str] = frozenset()
    """Slow nodes that were known when all nodes were last planned for."""
    _restless: RestlessNodes = field(default_factory=RestlessNodes)
    _plans: PlanCache = field(init=False)
    _handover: Handover = field(init=False)
    _standbys: Standbys = field(init=False)
    _slowdowns: SlowdownMonitor = field(init=False)
    _replacement: SlowReplacement = field(init=False)
    _take_over: TakeOver = field(init=False)

    def __post_init__(self) -> None:
        self._plans = PlanCache(self.planner, self.book.changed, self.tasks)
        self._handover = Handover(
            self.rings, self.book, self._plans, self.assigner, self.tasks, self._failed
        )
        self._standbys = Standbys(
            self.settings.standbys,
            self.settings.shadow,
            self.planner,
            self.assigner,
            lambda: [one for one in self.free(time.monotonic()) if one.slowdown == AS_REPORTED],
            self._failed,
            self.tasks,
        )
        self._slowdowns = SlowdownMonitor(self.planner)
        slow_rings = SlowRings(self._plans, self.blame, self.service)
        self._replacement = SlowReplacement(self.planner, self._standbys, self.blame, slow_rings)
        self._take_over = TakeOver(self.book, self.keeper.rings())
        numbers = {ring.number for ring in self._take_over.waiting}
        self.service.expected |= numbers
        self._next_ring = max(numbers, default=-1) + 1

    def _failed(self, failure: StageFailure) -> None:
        """Hold a failure against whom it is of, unless one of both is outdated: of two builds that
        do not understand each other neither does wrong."""
        if not any(self._is_outdated(one) for one in (failure.node_id, failure.about)):
            self.blame.failed(failure, time.monotonic())

    def _is_outdated(self, node_id: str) -> bool:
        node = self.book.nodes.get(node_id)
        return node is not None and node.outdated != ""

    async def run(self) -> None:
        """Run until cancelled. Raises why the first ring does not stand, where it must."""
        while True:
            self.book.changed.clear()
            began = time.monotonic()
            with self.guard:
                self.step(began)
            if self._fatal is not None:
                raise self._fatal
            await asyncio.sleep(PAUSE_PER_STEP * (time.monotonic() - began))
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self.book.changed.wait()

    def step(self, now: float) -> None:
        """Evaluate the nodes and the rings once, and act."""
        self._reap_ended(now)
        self._take_over_due(now)
        self._note_service(now)
        nodes, serving = list(self.book), bool(self._alive)
        active = [node for node in nodes if not self.blame.is_resting(node.node_id, now)]
        self._note_restless(nodes, now)
        self.readiness.update(active, now)
        self._note_slow(self._slowdowns.slow_nodes(self.rings, nodes, now))
        if not self._handover.under_way:
            self._unreplaced = self._replacement.update(self.rings, self._slow)
        self._handover.release_leaving(self.free(now))
        self._handover.pass_over_late(self.free(now))
        first = not self._next_ring
        is_time = self.readiness.is_time(active, now, first=first, serving=serving)
        is_time = is_time and now >= self._not_before and not self._take_over.waiting
        if is_time and self._build(now):
            self._handover.release_unused(self._standbys.holders)
        if not self._handover.under_way:
            self._standbys.update(self.rings)
        self._show_progress(nodes, now)

    def _show_progress(self, nodes: Sequence[Node], now: float) -> None:
        measuring = 0 if self.rings else len(self.readiness.nodes_still_measuring(nodes, now))
        self.service.progress = progress_sentence(
            nodes,
            self.rings,
            min_nodes=self.nodes_wanted,
            measuring_paths=measuring,
            failure=self.last_failure,
            shortage=self.plan.shortage,
            nobody=self.settings.nobody,
        )
        if self._take_over.waiting:
            self.service.progress = self._take_over.sentence()
        self.service.standbys = {**self.plan.standbys, **self.blame.reasons(now)}

    # -- what has ended and who is free ----------------------------------------------------------

    @property
    def nodes_wanted(self) -> int:
        """Count of nodes to wait for: as the operator asked, after a loss those that are left."""
        return 1 if self._next_ring else self.settings.min_nodes

    @property
    def _alive(self) -> list[RingSupervisor]:
        """Rings that have not ended, those that still load among them."""
        return [ring for ring in self.rings if ring.state is not RingState.ENDED]

    def free(self, now: float) -> list[Node]:
        """Nodes that a plan may use now."""
        members = self._handover.members | self._take_over.node_ids
        return [
            node
            for node in self.book
            if node.may_serve
            and node.node_id not in members
            and not self.blame.is_resting(node.node_id, now)
        ]

    def _note_service(self, now: float) -> None:
        """Whoever serves is forgiven in time."""
        elapsed_s = now - (self._stepped_at if self._stepped_at is not None else now)
        self._stepped_at = now
        for ring in self.rings:
            if ring.state is RingState.SERVING:
                ring.served_s += elapsed_s
                self.blame.served((stage.node.node_id for stage in ring.stages), elapsed_s, now)

    def _note_restless(self, nodes: Sequence[Node], now: float) -> None:
        """Leave out who changes all the time: no plan would hold. What it does while it rests
        harms nobody, and is taken in then: after an hour it would all count as new."""
        for node_id in self._restless.update(nodes, now):
            if self.blame.is_resting(node_id, now):
                continue
            name = self.book.nodes[node_id].name
            reason = f"{name} comes and goes, or changes its wish, several times a minute."
            self._failed(StageFailure(node_id, reason))

    def _note_slow(self, slow: frozenset[str]) -> None:
        for node in (self.book.nodes[node_id] for node_id in slow - self._slow):
            text = f"{node.name} {' and '.join(node.slowdown.clauses)}"
            self.service.events.add("node_slow", text, node=node.name)
        self._slow = slow

    def _reap_ended(self, now: float) -> None:
        for ring in [ring for ring in self.rings if ring.state is RingState.ENDED]:
            self.rings.remove(ring)
            self._handover.ended(ring)
            self.last_failure = str(ring.error or "")
            for stage in ring.stages:
                self._blame(ring, stage, now)
            if ring.error is not None:
                self._back_off(ring, ring.error, now)

    def _blame(self, ring: RingSupervisor, stage: AgentStage, now: float) -> None:
        """Hold against a stage's node what it has done to its ring. A link that failed because an
        end of it was stopped in order is held against nobody."""
        node, failure, left = stage.node, stage.failure, stage.has_left
        ends = (failure.node_id, failure.about) if failure is not None and failure.about else ()
        is_excused = any(one.has_left for one in ring.stages if one.node.node_id in ends)
        if failure is not None and not is_excused:
            self._failed(failure)
        elif ring.error is not None and (left or (ring.has_served and not node.is_here)):
            self.blame.left(node.node_id, stage.name, now, announced=left)

    def _back_off(self, ring: RingSupervisor, error: MolinkError, now: float) -> None:
        """Put off the next ring where nobody is to blame: it may happen again at once."""
        if self.settings.first_must_stand and ring.number == 0 and not ring.has_served:
            self._fatal = error
        if ring.served_s >= STEADY_S:
            self._retry_s = RETRY_FIRST_S
        is_blamed = any(stage.failure is not None for stage in ring.stages)
        if not is_blamed and all(stage.node.is_here for stage in ring.stages):
            self._put_off(now)

    def _put_off(self, now: float) -> None:
        self._not_before = now + self._retry_s
        self._retry_s = min(RETRY_MAX_S, 2 * self._retry_s)

    # -- building --------------------------------------------------------------------------------

    def _build(self, now: float) -> bool:
        """Start rings of the nodes that are free; False while a plan for them is being made."""
        free, serving = self.free(now), self._alive
        if not serving and len(free) < self.nodes_wanted:
            return True
        asked = frozenset((one.node_id, one.profile, one.paths_round, one.slowdown) for one in free)
        cannot = not serving and (not free or asked == self._fruitless)
        if cannot and self.blame.pardon(now):
            self._put_off(now)
            return True
        if free and asked != self._fruitless:
            plan = self._plans.take("rings of the free", free)
            if plan is None:
                return False
            if serving and len(plan.standbys) < self.settings.standbys:
                plan = replace(plan, rings=())  # Those who stand by for the rings that serve.
            self._fruitless = None if plan.rings else asked
            self._start(plan, keep_reasons=bool(serving))
        unused = bool(free) and asked == self._fruitless
        if serving and (unused or not self._unreplaced <= self._known_slow):
            self._improve(serving, now)
        return True

    def _start(self, plan: ClusterPlan, *, keep_reasons: bool) -> None:
        if plan.rings or not keep_reasons:
            self.plan = plan
        for ring in plan.rings:
            self._begin(ring)

    def _improve(self, serving: Sequence[RingSupervisor], now: float) -> None:
        """Would all nodes together do so much better that an interruption pays? A ring that serves
        is not risked for a node that has failed lately, nor while they are stopped by turns."""
        is_known = self._unreplaced <= self._known_slow
        period_s = CHANGE_PERIOD_S if is_known else SLOW_PERIOD_S
        if now - self._improved_at < period_s or self._handover.under_way:
            return
        if is_known and self.blame.are_stopped(now):
            return
        served = {ring.number: ring.client.served() for ring in self.service.rings}
        if any(ring.state is not RingState.SERVING for ring in serving):
            return
        if any(one.interrupted for one in served.values()):
            return  # What survivors hold is not dealt anew while streams wait for it.
        members = {stage.node.node_id for ring in serving for stage in ring.stages}
        nodes = [
            node
            for node in self.book
            if node.may_serve
            and (node.node_id in members or not self.blame.failed_lately(node.node_id, now))
        ]
        plan = self._plans.take("rings of all", nodes)
        if plan is None:
            return
        self._improved_at, self._known_slow, self.plan = now, self._unreplaced, plan
        kept = [served[ring.number].held_tokens for ring in serving]
        if why := self.planner.is_worth([ring.plan for ring in serving], plan, nodes, kept):
            self.service.events.add("plan", f"the rings are to be replaced by better ones: {why}")
            self._handover.improve(serving, plan)

    def _take_over_due(self, now: float) -> None:
        """Take rings of an earlier coordinator over whose nodes are here; give others up."""
        ready, late = self._take_over.take_due(now)
        for ring in ready:
            stages = self.assigner.stages(ring.plan, ring.number)
            self._run(ring.number, ring.plan, ring.restored(stages), ring)
        for ring in late:
            self.keeper.drop(ring.number)
            self.service.not_expected(ring.number)
            self._not_taken_over(ring)

    def _not_taken_over(self, ring: KeptRing) -> None:
        missing = len(ring.node_ids - {node.node_id for node in self.book if node.is_here})
        text = f"ring {ring.number} is not taken over: {missing} of its PCs did not come back"
        self.service.events.add("ring_ended", text, ring=ring.number)

    def _begin(self, plan: PlannedRing) -> None:
        number, self._next_ring = self._next_ring, self._next_ring + 1
        stages = self.assigner.stages(plan, number)
        self._run(number, plan, stages)
        self.service.events.add("plan", plan_sentence(number, plan, stages), ring=number)

    def _run(
        self,
        number: int,
        plan: PlannedRing,
        stages: Sequence[AgentStage],
        kept: KeptRing | None = None,
    ) -> None:
        endpoint, files = self.new_endpoint(stages[0].epoch), self.settings.recoveries
        ring = RingSupervisor(
            number=number,
            plan=plan,
            stages=stages,
            endpoint=endpoint,
            codec=self.settings.codec,
            service=self.service,
            stand_by=self.assigner.stand_by,
            wake=self.book.changed,
            recovery=Recovery(
                endpoint, self.assigner.next_epoch, self._standbys, files.note_of(number)
            ),
            mended=lambda failure: self.blame.mended(failure.node_id, time.monotonic()),
            complained=lambda failure: self.blame.complained(failure, time.monotonic()),
            keeper=self.keeper,
            lenders=self.lenders,
            kept=kept,
        )
        self.rings.append(ring)
        self.tasks.create_task(ring.run())
