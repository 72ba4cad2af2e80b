"""Keeps the rings as the nodes allow: builds, hands over, rebuilds, and says what it waits for.

One loop that looks at the node book whenever something has changed. It decides little itself: what
is best, and whether a change is worth its price, the planner says; how a ring comes and goes,
`ring_life`. What is decided here is the order: the leaving are let go before anybody is promoted,
and a newcomer loads while the ring that it will join still serves.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from molink.control.messages import NodeState
from molink.errors import StageError
from molink.runtime.cluster.assigner import Assigner
from molink.runtime.cluster.cluster_plan import ClusterPlan, PlannedRing, Planner
from molink.runtime.cluster.cluster_service import ClusterService
from molink.runtime.cluster.node_book import Node, NodeBook
from molink.runtime.cluster.progress import progress_sentence
from molink.runtime.cluster.ring_life import Door, RingLife, RingState
from molink.runtime.gathered import gathered

__all__ = ["ClusterManager", "ManagerSettings"]

TICK_S = 0.5
"""Silence is noticed this much late at most."""

SETTLE_S = 1.0
"""After the last change among the nodes: those who start together are planned for together."""

MEASURING_WAIT_S = 60.0
"""A node that has joined and not told its step times by then is planned without: it would hold up
everybody else. A slow PC loads its probe in ten seconds."""

CHANGE_PERIOD_S = 60.0
"""Between two changes that only make things better; losses are answered at once."""

REST_FIRST_S, REST_MAX_S = 60.0, 3600.0
"""For a node whose stage has failed; doubles with each failure."""

PRELOAD_BETTER_S = 3600.0
"""For a better plan nobody waits; a download over a home line takes half an hour."""

PRELOAD_LEAVING_S = 60.0
"""An owner who wants the PC back does not wait for somebody else's download."""

RETRY_S = 5.0
"""After a ring that failed: the same nodes may fail again, and again at once."""


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """What the operator asked for."""

    min_nodes: int = 1
    wire: str = "raw"


@dataclass(slots=True)
class ClusterManager:
    """The loop and what it has built."""

    settings: ManagerSettings
    book: NodeBook
    planner: Planner
    service: ClusterService
    assigner: Assigner
    new_door: Callable[[int], Door]
    """For a ring of this epoch."""
    lives: list[RingLife] = field(default_factory=list)
    plan: ClusterPlan = field(default_factory=lambda: ClusterPlan(()))
    """The latest, with the reasons of standbys."""
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _signature: object = None
    _settled_since: float = field(default_factory=time.monotonic)
    _not_before: float = 0.0
    """No plan until then: a ring has failed."""
    _improved_at: float = 0.0
    _handing_over: set[int] = field(default_factory=set)
    """Numbers of rings whose replacement is being prepared."""
    _next_ring: int = 0
    last_failure: str = ""
    """Why the latest ring has failed; empty when it has not."""
    _failures: dict[str, int] = field(default_factory=dict)
    _resting: dict[str, float] = field(default_factory=dict)
    """Nodes that are left out, and until when."""
    _fruitless: object = None
    """What a plan was made for that brought no ring: the same again would bring none either."""
    _background: set[asyncio.Future[None]] = field(default_factory=set)

    def noticed(self, node_id: str) -> None:
        """A node has said something, or has gone."""
        stages = [stage for life in self.lives for stage in life.stages]
        for stage in (*stages, *self.assigner.preloading):
            if stage.node.node_id == node_id:
                stage.notice()
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled; then every ring is drained at once and its nodes stand by."""
        try:
            while True:
                self.step(time.monotonic())
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._changed.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def step(self, now: float) -> None:
        """Look at everything once."""
        self._bury(now)
        self._watch_settling(now)
        self._let_go()
        if now >= self._not_before and self._is_settled(now):
            self._build(now)
            self._release_strays()
        self.service.progress = progress_sentence(
            list(self.book), self.lives, self.plan, self.nodes_wanted, self.last_failure
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
    def free(self) -> list[Node]:
        """Nodes that a plan may use now."""
        members = self.members
        now = time.monotonic()
        return [
            node
            for node in self.book
            if node.may_serve
            and node.node_id not in members
            and self._resting.get(node.node_id, 0.0) <= now
        ]

    def _bury(self, now: float) -> None:
        for life in [life for life in self.lives if life.state is RingState.ENDED]:
            self.lives.remove(life)
            self._tasks.pop(life.number, None)
            self._handing_over.discard(life.number)
            if life.failure:
                self.last_failure = life.failure
                self._let_rest(life, now)
            else:
                self.last_failure = ""

    def _let_rest(self, life: RingLife, now: float) -> None:
        """Whose stage has failed is left out for a while, longer each time: nobody else can know
        that its disk is full."""
        failed = [stage.node for stage in life.stages if stage.failed]
        for node in failed:
            count = self._failures.get(node.node_id, 0)
            self._failures[node.node_id] = count + 1
            self._resting[node.node_id] = now + min(REST_MAX_S, REST_FIRST_S * 2**count)
        if not failed and all(stage.node.is_here for stage in life.stages):
            self._not_before = now + RETRY_S

    def _watch_settling(self, now: float) -> None:
        """A change among those who are here starts the wait anew."""
        signature = {
            (node.node_id, node.is_measured, node.wants) for node in self.book if node.is_here
        }
        if signature != self._signature:
            self._signature, self._settled_since = signature, now

    def _is_settled(self, now: float) -> bool:
        waited_s = now - self._settled_since
        joining = any(node.state is NodeState.JOINING for node in self.book if node.is_here)
        first = not self._next_ring  # Later one that cannot measure must not delay a repair.
        return waited_s >= (MEASURING_WAIT_S if joining and first else SETTLE_S)

    # -- leaving ---------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Rings with a member that wants to leave, or to lend less, are replaced, or drained where
        they cannot be."""
        for life in self.lives:
            leaving = [stage.node for stage in life.stages if self._leaves(life, stage.node)]
            if not leaving or life.number in self._handing_over:
                continue
            if life.state is not RingState.SERVING:
                life.drain()
                continue
            self._handing_over.add(life.number)
            staying = [stage.node for stage in life.stages if stage.node.may_serve]
            plan = self.planner.plan([*staying, *self.free])
            self._start_task(self._hand_over([life], plan, PRELOAD_LEAVING_S))

    def _leaves(self, life: RingLife, node: Node) -> bool:
        return node.wants != "serve" or self.planner.outgrown(life.plan, node)

    async def _hand_over(
        self, lives: Sequence[RingLife], plan: ClusterPlan, within_s: float
    ) -> None:
        """Let newcomers of the plan load while the rings serve, then end them; the next step plans
        with everybody, and finds them loaded."""
        try:
            members = self.members
            stages = [stage for ring in plan.rings for stage in self.assigner.stages(ring, 0)]
            coming = [stage for stage in stages if stage.node.node_id not in members]
            self.assigner.preloading += coming
            with suppress(StageError, TimeoutError):  # The next plan finds out by itself.
                async with asyncio.timeout(within_s):
                    await gathered(stage.load(lambda fraction: None) for stage in coming)
        finally:
            for life in lives:
                life.drain()

    # -- building --------------------------------------------------------------------------------

    def _build(self, now: float) -> None:
        free = self.free
        serving = [life for life in self.lives if life.state is not RingState.ENDED]
        if not serving and len(free) < self.nodes_wanted:
            return
        asked = frozenset((node.node_id, node.profile, node.paths_round) for node in free)
        if free and asked != self._fruitless:
            plan = self.planner.plan(free)
            self._fruitless = None if plan.rings else asked
            self._start(plan, keep_reasons=bool(serving))
        if free and serving and asked == self._fruitless:
            self._improve(serving, now)

    def _start(self, plan: ClusterPlan, *, keep_reasons: bool) -> None:
        if plan.rings or not keep_reasons:
            self.plan = plan
        for ring in plan.rings:
            self._begin(ring)

    def _improve(self, serving: Sequence[RingLife], now: float) -> None:
        """Would everybody together do so much better that an interruption pays?"""
        if now - self._improved_at < CHANGE_PERIOD_S or self._handing_over:
            return
        if any(life.state is not RingState.SERVING for life in serving):
            return
        self._improved_at = now
        nodes = [node for node in self.book if node.may_serve]
        self.plan = plan = self.planner.plan(nodes)
        if self.planner.is_worth([life.plan for life in serving], plan, nodes):
            self._handing_over |= {life.number for life in serving}
            self._start_task(self._hand_over(serving, plan, PRELOAD_BETTER_S))

    def _release_strays(self) -> None:
        """Once nothing is being handed over, whoever was loaded in vain stands by."""
        if self._handing_over:
            return
        self.assigner.preloading.clear()
        for node in self.assigner.strays(self.members):
            self._start_task(self.assigner.stand_by(node))

    def _begin(self, plan: PlannedRing) -> None:
        number, self._next_ring = self._next_ring, self._next_ring + 1
        stages = self.assigner.stages(plan, number)
        life = RingLife(
            number=number,
            plan=plan,
            stages=stages,
            door=self.new_door(stages[0].epoch),
            wire=self.settings.wire,
            service=self.service,
            stand_by=self.assigner.stand_by,
            changed=self._changed.set,
        )
        self.lives.append(life)
        self._tasks[number] = asyncio.create_task(life.live())

    def _start_task(self, work: Awaitable[None]) -> None:
        """Run beside the loop, held so that it is not collected."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
