"""A manager of rings in one process, over agents that answer at once."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count

from molink.control.messages.assignment import Extend, Hold, Load, Stop
from molink.control.messages.payloads import (
    StageFact,
    StageLink,
)
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.cluster_plan import ClusterPlan, PlannedRing, PlannedStage
from molink.coordinator.planning.readiness import Readiness
from molink.coordinator.reports.cluster_report import service_report
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.ring.cache_use import CacheUse
from molink.coordinator.ring.forecaster import RingForecaster
from molink.coordinator.ring.live_sequence import Served
from molink.coordinator.ring.ring import JoinTerms
from molink.coordinator.upkeep import manager as manager_module
from molink.coordinator.upkeep import ring_health
from molink.coordinator.upkeep.assigner import Assigner
from molink.coordinator.upkeep.blame import Blame
from molink.coordinator.upkeep.manager import ClusterManager
from molink.coordinator.upkeep.ring_supervisor import RingState
from molink.coordinator.upkeep.settings import ManagerSettings
from molink.coordinator.upkeep.take_over import RingKeeper
from molink.errors import MolinkError, RingError
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink.stage_protocol.messages import StageLoaded
from molink.tasks import background_tasks
from molink_scheduler.codec_choice import CodecDecision, choose_codec
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.request import SamplingParams
from tests.coordinator.examples import HERE, PROFILE, WORK

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
REPORT = StageHealth(0, 1.0, 0.5, 200, None, None, 0, RAW, RAW, 0, None, None, 0.1, 0.01, ())
HEALTH = asdict(REPORT)
LOADED = asdict(StageLoaded(5000, 5001, "cpu", "float32", 64, 1))


@dataclass
class EvenPlanner:
    """As many rings of `size` nodes as there are nodes for; `worth` says whether to rebuild."""

    size: int
    worth: str = ""
    shrunk: set = field(default_factory=set)
    slowdowns: dict = field(default_factory=dict)
    small: set = field(default_factory=set)
    """Nodes without room for what another one has held."""
    fetches: dict = field(default_factory=dict)
    drafter_fetch_s: float = 2.0
    """Time to fetch the first layers with the model that drafts."""
    drafter: object = None
    rates: dict = field(default_factory=dict)
    """Of links, in Mbps, by their senders."""
    no_better: set = field(default_factory=set)
    """Nodes in whose hands a ring would be no quicker."""
    plans: int = 0
    kv_tokens: int | None = None

    async def plan(self, nodes):
        self.plans += 1
        names = sorted(node.node_id for node in nodes)
        rings = [names[at : at + self.size] for at in range(0, len(names), self.size)]
        whole = [self._ring(ring) for ring in rings if len(ring) == self.size]
        left = {name: "one too many" for ring in rings if len(ring) < self.size for name in ring}
        return ClusterPlan(tuple(whole), left, "" if whole else "2 GiB are missing.")

    def link_rates_mbps(self, nodes):
        return [self.rates.get(node.node_id, 0.0) for node in nodes]

    def gains_by(self, ring, place, node, members):
        return node.node_id not in self.no_better

    def outgrown(self, ring, node):
        return node.node_id in self.shrunk

    def work_on(self, node, work, kv_tokens):
        return None if node.node_id in self.small else replace(work, kv_tokens=kv_tokens)

    def undrafted(self, work):
        drafter = work.drafter and work.drafter.model_copy(update={"refused": "too late"})
        return replace(work, drafter=drafter)

    def fetch_s(self, node, work):
        if work.drafter is not None and not work.drafter.refused and work.layers[0] == 0:
            return self.drafter_fetch_s
        return self.fetches.get(node.node_id, 1.0)

    def slowdown(self, stage, node, rows, seen):
        return self.slowdowns.get(node.node_id)

    def is_worth(self, present, plan, nodes, kept_tokens):
        return self.worth

    def _ring(self, names):
        works = (
            replace(WORK, layers=(i, i + 1), kv_tokens=self.kv_tokens, drafter=self.drafter)
            for i in range(len(names))
        )
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
    counts: Served = field(default_factory=lambda: Served(0, 0, 0, 0.0))
    tokens: asyncio.Queue = field(default_factory=asyncio.Queue)
    has_other: object = None
    stall_factor: float = 0.0
    codec: CodecDecision = field(default_factory=lambda: choose_codec("raw", None))
    survives: bool = False
    """Whether it can wait for its ring to go on; else it ends with its first epoch."""
    listed: tuple = ()
    went_on: list = field(default_factory=list)
    adopted: list = field(default_factory=list)
    short_of_memory: str = ""
    cleared: int = 0
    """How often its cache was."""
    shed: list = field(default_factory=list)
    """Names of the PCs for whose memory requests were given up."""
    forecaster: RingForecaster = field(default_factory=RingForecaster)
    cache_use: CacheUse = field(default_factory=CacheUse)

    def __post_init__(self):
        self.idle.set()

    def state_for(self, request, tokens_per_s):
        state = self.forecaster.state(request, (), tokens_per_s)
        return replace(state, outstanding_tokens=self.outstanding_tokens)

    async def run(self):
        try:
            raise await self.lost
        finally:
            if not self.survives:
                self.end("The ring has ended.")

    def end(self, reason):
        self.unready_reason = reason
        self.tokens.put_nowait(None)

    def pause(self):
        pass

    def to_resume(self):
        return self.listed

    def clear_cache(self):
        self.cleared += 1

    def adopt(self, request):
        self.adopted.append(request)
        self.listed += ((request.log.before.place.request_id, request.log.before.held_tokens),)

    def resume(self, ring, requests, reason):
        self.ring = ring
        self.went_on.append((ring.epoch, requests.listed, requests.missing))

    async def choose_codec(self, wanted):
        pass

    async def until_idle(self):
        await self.idle.wait()

    def cluster(self):
        return {"model": "m"}

    def served(self):
        return self.counts

    def update_capacity(self, has_other, *, may_grow):
        """All offer what they have loaded."""

    def note_prompts(self, head, now):
        pass

    def give_up_stalled(self, now, has_other, tail):
        self.has_other = has_other

    def shed_newest(self, has_other):
        self.shed.append(self.short_of_memory)

    async def generate(self, request, output=(), stall_factor=1.0):
        self.seen.append((request, output))
        self.stall_factor = stall_factor
        self.idle.clear()
        try:
            while True:
                token = await self.tokens.get()
                if isinstance(token, MolinkError):
                    raise token
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

    def admit(self, stages):
        self.world.admitted.append(stages[-1].node.node_id)

    async def reroute(self, routes):
        return routes

    async def reroute_one(self, link):
        return link

    async def connect(self, ring):
        return self.client(ring)

    def client(self, ring):
        lost = asyncio.get_running_loop().create_future()
        client = FakeClient(ring, lost, survives=self.world.survives)
        self.world.clients.append(client)
        return client

    async def begin_epoch(self, ring):
        pass

    def fitting(self, ring):
        return CARD

    async def watch(self, ring):
        await asyncio.Event().wait()

    async def close(self):
        self.closed = True


class World:
    """A manager, and agents that do at once what they are told."""

    def __init__(self, settings, blame, size, tasks, keeper, numbers):
        self.book = NodeBook()
        self.service = ClusterService(CARD, service_report)
        self.clients = []
        self.endpoints = []
        self.survives = False
        self.missing = {}
        """Requests that the stages of nodes cannot go on with."""
        self.told = []
        self.admitted = []
        """Tails whose links the coordinator has accepted."""
        self.allowed = {}
        self.shadows = {}
        """Where the shadows are to which nodes send, and in which epoch."""
        self.asked = {}
        """Whom each node shall measure."""
        self.numbers = numbers
        self.stuck = set()
        self.broken = set()
        """Nodes whose stages cannot be."""
        self.slow = set()
        """Nodes that begin a download and do not go on with it."""
        self.deaf = set()
        """Nodes that load and never answer on their links; those who call them say so."""
        self.loads = {}
        """What nodes report of a loaded stage, beside the usual."""
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
            blame,
            keeper,
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

    async def lead_to_shadow(self, node, epoch, link):
        self.shadows[node.node_id] = (epoch, link and link.to)

    async def assign(self, node, assignment):
        assignment = assignment.model_copy(update={"revision": next(self.numbers)})
        node.assignment = assignment
        self.told.append((node.node_id, assignment))
        command = assignment.command
        if node.node_id in self.stuck or isinstance(command, Hold):
            return
        if isinstance(command, Stop):
            fact = StageFact(revision=assignment.revision, kind="stopped")
        elif node.node_id in self.broken:
            fact = StageFact(revision=assignment.revision, kind="failed", message="disk full")
        elif isinstance(command, Load | Extend) and node.node_id in self.slow:
            fact = StageFact(revision=assignment.revision, kind="downloading", fraction=0.01)
        elif isinstance(command, Load | Extend):
            line = LOADED | self.loads.get(node.node_id, {})
            fact = StageFact(revision=assignment.revision, kind="loaded", line=line)
        elif node.node_id in self.deaf:
            return
        elif about := next((link.to for link in command.links if link.to in self.deaf), ""):
            failed = {"kind": "failed", "message": "got no answer", "about": about}
            fact = StageFact(revision=assignment.revision, **failed)
        else:
            missing = self.missing.get(node.node_id, ())
            fact = StageFact(revision=assignment.revision, kind="ready", missing=missing)
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
async def world(monkeypatch, size, blame=None, keeper=None, numbers=None, **settings):
    monkeypatch.setattr(ring_health, "PERIOD_S", 0.0)
    monkeypatch.setattr(manager_module, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(manager_module, "CHANGE_PERIOD_S", 0.0)
    async with background_tasks() as tasks:
        keeper = keeper or RingKeeper()
        blame, numbers = blame or Blame(), numbers or count(1)
        made = World(ManagerSettings(**settings), blame, size, tasks, keeper, numbers)
        tasks.create_task(made.manager.run())
        yield made


def request(tokens=3):
    return GenerationRequest((1, 2), SamplingParams(max_tokens=tokens))


async def collect(answer):
    return [token async for event in answer for token in event.token_ids]
