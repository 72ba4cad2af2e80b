"""The manager's loop over nodes that answer at once: rings come, go and are handed over."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace

import pytest

from molink.control.messages.payloads import (
    NodeHealth,
    NodeWish,
    PathMeasured,
    PathReport,
    StageFact,
    StageLink,
)
from molink.coordinator.members.node_book import AS_REPORTED, NodeBook, Slowdown
from molink.coordinator.members.ring import JoinTerms
from molink.coordinator.planning.cluster_plan import (
    ClusterPlan,
    PlannedRing,
    PlannedStage,
    Readiness,
)
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.rings import manager as manager_module
from molink.coordinator.rings import ring_health
from molink.coordinator.rings.manager import ClusterManager, ManagerSettings
from molink.coordinator.rings.ring_health import KEPT_S, FailureBackoff, SlowdownMonitor
from molink.coordinator.rings.ring_supervisor import Assigner, RingState
from molink.errors import FrameError, RingError, StageError
from molink.serving.service import GenerationRequest, ModelCard, TokenEvent
from molink.stage_protocol.messages import PackingHealth, StageHealth, StageLoaded
from molink.tasks import background_tasks
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.request import SamplingParams
from tests.coordinator.examples import HERE, PROFILE, WORK, no_report

TERMS = JoinTerms(
    RingTerms(),
    StageLink(
        to="coordinator",
        public_key="k" * 40,
        addresses=("127.0.0.1:1",),
        port_name="sampled-1",
    ),
)
CARD = ModelCard("m", 0, 100, 64, (), None)
LAYERS = 4
ANNA_AND_BERT = {"a" * 16, "b" * 16}
RAW = PackingHealth("raw", 0, 0, 0.0)
HEALTH = asdict(
    StageHealth(0, 1.0, 0.5, 200, None, None, 0, RAW, RAW, 0, None, None, 0.1, 0.01, ())
)


@dataclass
class EvenPlanner:
    """As many rings of `size` nodes as there are nodes for; `worth` says whether to rebuild."""

    size: int
    worth: str = ""
    shrunk: set = field(default_factory=set)
    slowdowns: dict = field(default_factory=dict)
    plans: int = 0

    async def plan(self, nodes):
        self.plans += 1
        names = sorted(node.node_id for node in nodes)
        rings = [names[at : at + self.size] for at in range(0, len(names), self.size)]
        whole = [self._ring(ring) for ring in rings if len(ring) == self.size]
        left = {name: "one too many" for ring in rings if len(ring) < self.size for name in ring}
        return ClusterPlan(tuple(whole), left, "" if whole else "2 GiB are missing.")

    def outgrown(self, ring, node):
        return node.node_id in self.shrunk

    def slowdown(self, stage, node, rows, seen):
        return self.slowdowns.get(node.node_id)

    def is_worth(self, present, plan, nodes):
        return self.worth

    def _ring(self, names):
        works = (replace(WORK, layers=(i, i + 1)) for i in range(len(names)))
        return PlannedRing(tuple(map(PlannedStage, names, works)))


@dataclass
class FakeClient:
    """Yields one token for each that is put into `tokens`; `lost` may be given an error."""

    ring: object
    lost: asyncio.Future
    card: ModelCard = CARD
    unready_reason: str | None = None
    outstanding_tokens: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list = field(default_factory=list)
    tokens: asyncio.Queue = field(default_factory=asyncio.Queue)

    def __post_init__(self):
        self.idle.set()

    async def run(self):
        try:
            raise await self.lost
        finally:
            self.unready_reason = "The ring has ended."
            self.tokens.put_nowait(None)

    async def choose_codec(self, wanted):
        pass

    async def until_idle(self):
        await self.idle.wait()

    def cluster(self):
        return {"model": "m"}

    async def generate(self, request, output=()):
        self.seen.append((request, output))
        self.idle.clear()
        try:
            while True:
                token = await self.tokens.get()
                if token is None:
                    raise RingError(self.unready_reason)
                last = len(output) + 1 == request.sampling.max_tokens
                output = (*output, token)
                yield TokenEvent((token,), str(token), finish_reason="length" if last else None)
                if last:
                    return
        finally:
            self.idle.set()


@dataclass
class FakeEndpoint:
    world: "World"
    closed: bool = False

    async def open(self, stages):
        self.world.endpoints.append(self)
        return TERMS

    async def reroute(self, routes):
        return routes

    async def connect(self, ring):
        client = FakeClient(ring, asyncio.get_running_loop().create_future())
        self.world.clients.append(client)
        return client

    async def watch(self, ring):
        await asyncio.Event().wait()

    async def close(self):
        self.closed = True


class World:
    """A manager, and agents that do at once what they are told."""

    def __init__(self, settings, backoff, size, tasks):
        self.book = NodeBook()
        self.service = ClusterService(CARD, no_report)
        self.clients = []
        self.endpoints = []
        self.told = []
        self.allowed = {}
        self.asked = {}
        """Whom each node shall measure."""
        self.numbers = iter(range(1, 10**6))
        self.stuck = set()
        self.broken = set()
        """Nodes whose stages cannot be."""
        assigner = Assigner(self.book, self, "c" * 40, self.numbers.__next__)
        self.planner = EvenPlanner(size)
        self.manager = ClusterManager(
            settings,
            self.book,
            self.planner,
            self.service,
            assigner,
            lambda epoch: FakeEndpoint(self),
            Readiness(lambda node, nodes: self.asked.get(node.node_id, set()), settle_s=0.0),
            tasks,
            backoff,
        )

    def join(self, *names):
        for name in names:
            self.book.node(name).public_key = "k" * 40
            self.say(name, HERE.model_copy(update={"name": name}))
            self.say(name, PROFILE)

    def say(self, name, message):
        self.book.take(name, message, 0.0)
        self.book.wake(self.book.node(name))

    async def allow_links(self, node, keys):
        self.allowed[node.node_id] = keys

    async def assign(self, node, assignment):
        assignment = assignment.model_copy(update={"revision": next(self.numbers)})
        node.assignment = assignment
        self.told.append((node.node_id, assignment))
        if node.node_id in self.stuck:
            return
        if assignment.work is None:
            fact = StageFact(revision=assignment.revision, kind="stopped")
        elif node.node_id in self.broken:
            fact = StageFact(revision=assignment.revision, kind="failed", message="disk full")
        elif assignment.join is None:
            line = asdict(StageLoaded(5000, 5001, "cpu", "float32", 64, 1))
            fact = StageFact(revision=assignment.revision, kind="loaded", line=line)
        else:
            fact = StageFact(revision=assignment.revision, kind="ready")
        asyncio.get_running_loop().call_soon(self.say, node.node_id, fact)

    async def until(self, condition):
        """Let the loop run until a condition holds."""
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0)
                self.book.changed.set()

    @property
    def serving(self):
        return [ring for ring in self.manager.rings if ring.state is RingState.SERVING]

    def members(self):
        return [sorted(stage.node.node_id for stage in ring.stages) for ring in self.serving]


@asynccontextmanager
async def world(monkeypatch, size, backoff=None, **settings):
    monkeypatch.setattr(ring_health, "PERIOD_S", 0.0)
    monkeypatch.setattr(manager_module, "RETRY_S", 0.0)
    monkeypatch.setattr(manager_module, "CHANGE_PERIOD_S", 0.0)
    async with background_tasks() as tasks:
        made = World(ManagerSettings(**settings), backoff or FailureBackoff(), size, tasks)
        tasks.create_task(made.manager.run())
        yield made


def request(tokens=3):
    return GenerationRequest((1, 2), SamplingParams(max_tokens=tokens))


async def test_rings_are_built_when_enough_nodes_are_there(monkeypatch):
    async with world(monkeypatch, size=2, min_nodes=3) as w:
        assert "No PC has joined" in w.service.unready_reason
        w.join("a", "b")
        await w.until(lambda: "2 of at least 3" in w.service.progress)
        assert not w.told
        w.join("c", "d")
        await w.until(lambda: len(w.serving) == 2)
        assert w.members() == [["a", "b"], ["c", "d"]]
        assert w.service.unready_reason is None


async def test_the_first_plan_waits_for_the_ways_and_says_so(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.asked = {one: ANNA_AND_BERT - {one} for one in ANNA_AND_BERT}
        w.join(*ANNA_AND_BERT)
        await w.until(lambda: "2 of them still measuring the ways" in w.service.progress)
        assert not w.told
        for one in ANNA_AND_BERT:
            (other,) = ANNA_AND_BERT - {one}
            path = PathMeasured(to=other, path="direct", rtt_ms=1, rate_mbps=20)
            w.say(one, PathReport(round=1, paths=(path,)))
        await w.until(lambda: w.serving)


async def test_each_stage_is_told_where_the_next_one_listens(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        at = PROFILE.model_copy(update={"addresses": ("10.0.0.7:4000", "8.8.8.8:4000")})
        w.join("a", "b")
        w.say("b", at)
        await w.until(lambda: w.serving)
        joins = {name: told for name, told in w.told if told.join is not None}
        assert joins["a"].next_link.addresses == ("10.0.0.7:5000", "8.8.8.8:5000")
        assert joins["a"].coordinator_link is None
        assert joins["b"].next_link.to == "a"
        assert joins["b"].coordinator_link.to == "coordinator"
        assert w.allowed["a"] == (w.book.node("b").public_key, "c" * 40)


async def test_a_node_that_nobody_needs_stands_by_with_the_reason(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.serving)
        assert w.manager.plan.standbys == {"c": "one too many"}


async def test_a_lost_node_ends_its_ring_and_the_others_form_a_new_one(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.members() == [["a", "b"]])
        answer = w.service.generate(request())
        w.clients[0].tokens.put_nowait(11)
        assert (await anext(answer)).token_ids == (11,)
        w.say("a", HERE.model_copy(update={"name": "a", "online": False}))
        w.clients[0].lost.set_result(RingError("a is lost."))
        rest = asyncio.create_task(collect(answer))
        await w.until(lambda: w.members() == [["b", "c"]])
        await w.until(lambda: w.clients[1].seen)
        assert w.clients[1].seen[0][1] == (11,), "what was told goes along"
        w.clients[1].tokens.put_nowait(12)
        w.clients[1].tokens.put_nowait(13)
        assert await rest == [12, 13]
        assert w.endpoints[0].closed


async def collect(answer):
    return [token async for event in answer for token in event.token_ids]


async def test_a_node_that_leaves_is_replaced_and_its_ring_ends_what_it_was_doing(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b", "c")
        await w.until(lambda: w.serving)
        answer = asyncio.create_task(collect(w.service.generate(request(1))))
        await w.until(lambda: w.clients[0].seen)
        w.say("a", NodeWish(wish="leave"))
        await w.until(lambda: ("c", True) in [(n, t.work is not None) for n, t in w.told])
        assert w.members() == [["a", "b"]] or not w.serving, "c loads while a and b serve"
        await w.until(lambda: w.manager.rings[0].state is RingState.DRAINING)
        w.clients[0].tokens.put_nowait(7)
        assert await answer == [7]
        await w.until(lambda: w.members() == [["b", "c"]])
        assert w.book.node("a").assignment.work is None
        loads = [told for name, told in w.told if name == "c" and told.work and not told.join]
        assert len(loads) == 2, "what has loaded meanwhile is kept for the next ring"
        assert all(told.work is not None for name, told in w.told if name == "c")


async def test_without_a_replacement_the_ring_is_drained_and_says_what_is_missing(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        w.say("a", NodeWish(wish="pause"))
        await w.until(lambda: not w.manager.rings)
        await w.until(lambda: "missing" in w.service.progress)
        with pytest.raises(RingError, match="missing"):
            await anext(w.service.generate(request()))
        w.say("a", NodeWish(wish="serve"))
        await w.until(lambda: w.members() == [["a", "b"]])


async def test_a_ring_is_built_anew_when_a_member_lends_less_than_it_holds(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        w.planner.shrunk.add("a")
        w.say("a", PROFILE)
        await w.until(lambda: not w.serving)
        w.planner.shrunk.clear()
        await w.until(lambda: w.members() == [["a", "b"]])
        assert len(w.clients) == 2


async def test_a_look_that_fails_is_not_the_last_one(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        w.planner.shrunk = None
        await w.until(lambda: w.manager.guard.counts[TypeError])
        w.planner.shrunk = {"a"}
        await w.until(lambda: not w.serving)


async def test_a_report_that_cannot_be_read_is_counted_once_and_not_shown(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        w.join("a")
        await w.until(lambda: w.serving)
        (stage,) = w.serving[0].stages
        for change in ({}, {"requests_running": "x"}, {"decode_step_s": 10**400}):
            report = NodeHealth(
                incarnation="a" * 12, state="serving", uptime_s=1, stage=HEALTH | change
            )
            w.say("a", report)
            assert stage.health == StageHealth(**HEALTH | {"packed": RAW, "unpacked": RAW})
        w.say("a", PROFILE)
        assert stage.health == StageHealth(**HEALTH | {"packed": RAW, "unpacked": RAW})
        assert w.book.refusals.counts == {FrameError: 2}


async def test_a_better_plan_for_all_is_taken_only_when_it_is_worth_it(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        first = w.serving[0]
        w.planner.size = 3
        w.join("c")
        await w.until(lambda: w.manager.plan.rings and len(w.manager.plan.rings[0].stages) == 3)
        assert w.serving == [first]
        w.planner.worth = "twice the users"
        await w.until(lambda: w.members() == [["a", "b", "c"]])


async def test_a_member_that_is_found_slow_has_everybody_planned_for_anew(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("a", "b")
        await w.until(lambda: w.serving)
        health = NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=HEALTH)
        w.planner.slowdowns["a"] = AS_REPORTED
        w.say("a", health)
        await w.until(lambda: w.serving[0].stages[0].health is not None)
        w.manager.step(time.monotonic())
        assert w.planner.plans == 1, "nobody is free, and nobody is slow"
        w.planner.slowdowns["a"] = Slowdown(9.0, 9.0)
        await w.until(lambda: w.planner.plans == 2)
        assert w.book.node("a").slowdown == Slowdown(9.0, 9.0)
        w.manager.step(time.monotonic())
        assert w.planner.plans == 2, "once for each that is found out"


async def test_who_serves_no_more_is_believed_again_after_an_hour(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        w.join("a")
        await w.until(lambda: w.serving)
        w.planner.slowdowns["a"] = Slowdown(9.0, 9.0)
        w.say("a", NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1, stage=HEALTH))
        watch, nodes = SlowdownMonitor(w.planner), list(w.book)
        assert watch.slow_nodes(w.manager.rings, nodes, 1000.0) == {"a"}
        assert watch.slow_nodes([], nodes, 1000.0 + KEPT_S) == {"a"}
        assert watch.slow_nodes([], nodes, 1001.0 + KEPT_S) == set()


async def test_a_stage_that_fails_ends_the_ring_and_it_is_tried_again(monkeypatch):
    async with world(monkeypatch, size=1, backoff=FailureBackoff(0.0, 0.0)) as w:
        w.join("a")
        await w.until(lambda: w.serving)
        revision = w.book.node("a").assignment.revision
        w.clients[0].lost.set_result(RingError("a: out of memory"))
        w.say("a", StageFact(revision=revision, kind="failed", message="out of memory"))
        await w.until(lambda: len(w.clients) == 2 and w.serving)
        assert w.members() == [["a"]]
        assert w.book.node("a").assignment.revision > revision


async def test_a_node_whose_stage_fails_is_left_out_and_the_others_serve(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.broken.add("a")
        w.join("a", "b", "c")
        await w.until(lambda: w.members() == [["b", "c"]])
        loads = [told for name, told in w.told if name == "a" and told.work is not None]
        assert len(loads) == 1, "it is not tried again at once"
        assert "disk full" in w.manager.last_failure


async def test_a_request_that_came_before_any_ring_is_refused_with_the_reason(monkeypatch):
    async with world(monkeypatch, size=1) as w:
        with pytest.raises(RingError, match="No PC has joined"):
            await anext(w.service.generate(request()))


async def test_nodes_that_were_loaded_in_vain_are_let_go(monkeypatch):
    async with world(monkeypatch, size=2) as w:
        w.join("x")
        w.say("x", StageFact(revision=999, kind="ready"))
        w.planner.size = 9
        await w.until(lambda: w.told)
        name, told = w.told[0]
        assert name == "x"
        assert told.work is None


async def test_a_first_ring_that_must_stand_ends_the_manager_and_a_later_one_does_not(monkeypatch):
    with pytest.raises(StageError, match="a: disk full"):
        async with world(monkeypatch, size=1, first_must_stand=True) as w:
            w.broken.add("a")
            w.join("a")
            await w.until(lambda: False)
    async with world(monkeypatch, size=1, first_must_stand=True) as w:
        w.join("a")
        await w.until(lambda: w.serving)
        w.clients[0].lost.set_result(RingError("The link is lost."))
        await w.until(lambda: len(w.clients) == 2 and w.serving)
