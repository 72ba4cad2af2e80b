"""Supervisor of one ring, from its plan to its end: load, join, serve, drain.

`run` is a task of its own; the manager drains or cancels it, and sees in `state` how far it is.
However it ends, its members stand by, unless they were assigned something else since.

From a planned ring to one that has joined: all stages load, then all join.

Nothing is started here: nodes get assignments, and report when they have carried them out.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Protocol

from molink.control.messages.payloads import Assignment, StageLink
from molink.coordinator.members.node_book import Node, NodeBook
from molink.coordinator.members.ring import AgentStage, JoinTerms, NodeCommands, Ring
from molink.coordinator.members.stage_watch import LoadLimits
from molink.coordinator.planning.cluster_plan import PlannedRing
from molink.coordinator.requests.cluster_service import ClusterService, ServingRing
from molink.coordinator.requests.ring_client import RingClient
from molink.coordinator.rings.ring_progress import RingPace, RingProgress, Stuck
from molink.errors import ErrorGuard, MolinkError, RingError, StageError
from molink.serving.events import EventKind
from molink.stage_protocol.messages import StageLoaded, StageProgress
from molink.tasks import background_tasks, gathered, unless

__all__ = [
    "Assigner",
    "RingEndpoint",
    "RingRoutes",
    "RingState",
    "RingSupervisor",
    "build_ring",
    "link_to",
]

ADDRESSES_MAX = 16
"""Of a link, as messages allow."""


@dataclass(frozen=True, slots=True)
class Assigner:
    """Maker of stages on a book's nodes."""

    book: NodeBook
    commands: NodeCommands
    coordinator_key: str
    """CURVE public key, Z85."""
    next_epoch: Callable[[], int]
    """Rises over all starts of this coordinator."""
    limits: LoadLimits = field(default_factory=LoadLimits)

    def stages(self, plan: PlannedRing, ring: int) -> list[AgentStage]:
        """The stages of a ring in a new epoch, none of them assigned yet."""
        nodes = [self.book.nodes[stage.node_id] for stage in plan.stages]
        epoch = self.next_epoch()
        return [
            AgentStage(
                node=node,
                assignment=Assignment(
                    revision=0,
                    ring=ring,
                    epoch=epoch,
                    stage=index,
                    stages=len(nodes),
                    work=stage.work,
                ),
                neighbours=(nodes[index - 1].public_key, self.coordinator_key),
                commands=self.commands,
                limits=self.limits,
                pc_downloading_at=partial(self.book.last_download, node.pc),
                pc_made_wait_at=partial(self.book.last_wait, node.pc),
            )
            for index, (node, stage) in enumerate(zip(nodes, plan.stages, strict=True))
        ]

    async def stand_by(self, node: Node, epoch: int | None = None) -> None:
        """Have a node hold nothing; with an epoch only if that is its last assignment's."""
        assignment = node.assignment
        if epoch is not None and (assignment is None or assignment.epoch != epoch):
            return
        await self.commands.assign(node, Assignment(revision=0, reason="No ring needs it now."))


@dataclass(frozen=True, slots=True)
class RingRoutes:
    """Every link of a ring: where its sender is to connect."""

    requests: StageLink
    """The coordinator to the head."""
    next_of: tuple[StageLink, ...]
    """Each stage to the one after it, the tail to the head."""
    sampled: StageLink
    """The tail to the coordinator."""


Reroute = Callable[[RingRoutes], Awaitable[RingRoutes]]
"""Leads links through something between, once it is known where they end."""


async def build_ring(
    stages: Sequence[AgentStage],
    terms: JoinTerms,
    progressed: Callable[[int, float], None],
    reroute: Reroute,
) -> Ring:
    """Load and join all stages. Raises StageError or UserError when one cannot."""

    def report(index: int) -> Callable[[float], None]:
        return lambda fraction: progressed(index, fraction)

    async with _deadline(BUILD_TIMEOUT_S, stages, _has_loaded, "has not loaded its layers"):
        loaded = await gathered(stage.load(report(index)) for index, stage in enumerate(stages))
    capacity = min(stage.kv_tokens_capacity for stage in loaded)
    slots = [stage.state_slots for stage in loaded if stage.state_slots is not None]
    routes = await reroute(_routes(stages, loaded, terms.coordinator))
    ring = replace(
        terms.ring,
        kv_tokens_capacity=capacity,
        state_slots=min(slots, default=None),
        micro_batch_candidates=tuple(range(1, 2 * len(stages) + 1)),
    )
    async with _deadline(JOIN_S, stages, _has_joined, "has not joined its ring"):
        await gathered(
            stage.join(ring, to_next, routes.sampled if stage is stages[-1] else None)
            for stage, to_next in zip(stages, routes.next_of, strict=True)
        )
    return Ring(stages, replace(terms, ring=ring), routes.requests)


@asynccontextmanager
async def _deadline(
    within_s: float, stages: Sequence[AgentStage], is_done: Callable[[AgentStage], bool], what: str
) -> AsyncIterator[None]:
    """Bound on a block. Raises StageError when it is over, and blames all stages that are late."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except TimeoutError:
        late = [stage for stage in stages if not is_done(stage)]
        errors = [stage.fail(f"{stage.name} {what} within {within_s:.0f} s.") for stage in late]
        raise (errors or [StageError("The ring was not built in time.")])[0] from None


def _has_loaded(stage: AgentStage) -> bool:
    return stage.loaded is not None


def _has_joined(stage: AgentStage) -> bool:
    return stage.has_joined


def link_to(node: Node, port: int, port_name: str, relay: str) -> StageLink:
    """A link to a port of a node, at the hosts where it reports that it can be reached."""
    profile = node.profile
    assert profile is not None and node.public_key, "only measured members are in a ring"
    hosts = [address.rpartition(":")[0] for address in profile.addresses]
    addresses = tuple(dict.fromkeys(f"{host}:{port}" for host in hosts)) if profile.direct else ()
    return StageLink(
        to=node.node_id,
        public_key=node.public_key,
        addresses=addresses,
        port_name=port_name,
        relay=relay,
    )


def _routes(
    stages: Sequence[AgentStage], loaded: Sequence[StageLoaded], coordinator: StageLink
) -> RingRoutes:
    head_port, relay = loaded[0].coordinator_port, coordinator.relay
    assert head_port is not None, "what a head reports was checked"
    ports = [(stage.node, one.port) for stage, one in zip(stages, loaded, strict=True)]
    if len(stages) > 1:
        next_of = tuple(link_to(*port, "ring", relay) for port in (*ports[1:], ports[0]))
    else:
        next_of = (_link_to_itself(*ports[0]),)
    return RingRoutes(link_to(stages[0].node, head_port, "requests", relay), next_of, coordinator)


def _link_to_itself(node: Node, port: int) -> StageLink:
    """Of a ring of one PC."""
    link = link_to(node, port, "ring", "")
    addresses = (f"127.0.0.1:{port}", *link.addresses)[:ADDRESSES_MAX]
    return link.model_copy(update={"addresses": addresses})


log = logging.getLogger(__name__)

BUILD_TIMEOUT_S = 3600.0
"""Loading includes a download over a home line: 5 GB at 20 Mbps take 35 minutes."""

JOIN_S = 120.0
"""From loaded to joined: a node looks for a path to the next one for a minute at most, and waits
for an answer there for less; then it says so itself."""

OPEN_TIMEOUT_S = 180.0
"""From joined to serving: a path to the head, and the check of a codec over slow links."""

PROGRESS_PERIOD_S = 1.0
"""Between two looks whether a ring moves on; its stages report once a second."""

DRAIN_S = 30.0
"""Running answers may end where they are; what is left then goes on in another ring."""


class RingState(StrEnum):
    """Progress of a ring, from loading to its end."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    ENDED = "ended"


class RingEndpoint(Protocol):
    """The coordinator's ends of the links to one ring."""

    async def open(self, stages: Sequence[AgentStage]) -> JoinTerms:
        """Listen for the tail; what the stages are to join with."""

    async def reroute(self, routes: RingRoutes) -> RingRoutes:
        """The links as they shall be used, once it is known where they end."""

    async def watch(self, ring: Ring) -> None:
        """Keep both links of a ring that has joined going, until cancelled. Raises StageError when
        one cannot go on."""

    async def connect(self, ring: Ring) -> RingClient:
        """Open the link to the head, while `watch` runs. Raises RingError."""

    async def close(self) -> None:
        """Close both links; a second call does nothing."""


@dataclass(slots=True)
class RingSupervisor:
    """One ring: planned, loading, serving or ended."""

    number: int
    plan: PlannedRing
    stages: Sequence[AgentStage]
    endpoint: RingEndpoint
    codec: str
    """As `--wire`."""
    service: ClusterService
    stand_by: Callable[[Node, int], Awaitable[None]]
    """Has a node hold nothing, if its last assignment was for this epoch."""
    wake: asyncio.Event
    """Set for the manager when something has changed."""
    state: RingState = RingState.LOADING
    has_served: bool = False
    served_s: float = 0.0
    """For how long it has served so far, as the manager counts."""
    error: MolinkError | None = None
    """Why it has failed; None unless it has."""
    clock: Callable[[], float] = time.monotonic
    fractions: dict[int, float] = field(default_factory=dict)
    """Of each stage's loading."""
    _planned_at: float = field(init=False)
    _drain: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._planned_at = self.clock()

    @property
    def epoch(self) -> int:
        """Number of this ring in all its messages."""
        return self.stages[0].epoch

    @property
    def loaded_share(self) -> float:
        """How far loading is, on average."""
        return sum(self.fractions.values()) / len(self.stages)

    def drain(self) -> None:
        """Take no more requests, let those that run end, then end."""
        if self.state in (RingState.LOADING, RingState.SERVING):
            self.state = RingState.DRAINING
            self._drain.set()

    async def run(self) -> None:
        """Until it is drained, lost or cancelled; a failure is kept in `error`."""
        try:
            ring = await self._build()
            if ring is not None:
                await self._serve(ring)
        except TimeoutError:
            self.error = StageError("It took too long to load or to answer.")
        except MolinkError as error:
            self.error = error
        except Exception as error:  # What a node reports may be impossible in new ways.
            log.exception("ring %d has failed", self.number)
            self.error = StageError(f"It stopped on {type(error).__name__}.")
        finally:
            self.state = RingState.ENDED
            self._note("ring_ended", f"has ended: {self.error or 'it is not needed any more.'}")
            await asyncio.shield(self._release())
            self.wake.set()

    async def _build(self) -> Ring | None:
        """The ring; None when it was to be drained before it stood."""
        terms = await self.endpoint.open(self.stages)
        building = build_ring(self.stages, terms, self._progressed, self.endpoint.reroute)
        return await unless(self._drain, building)

    def _progressed(self, index: int, fraction: float) -> None:
        self.fractions[index] = fraction
        self.wake.set()

    async def _serve(self, ring: Ring) -> None:
        """Until it is drained. Raises StageError or RingError when it is lost."""
        async with background_tasks() as tasks:
            tasks.create_task(ring.watch())
            tasks.create_task(self.endpoint.watch(ring))
            client = await self._connected(ring)
            tasks.create_task(client.run())
            tasks.create_task(self._watch_progress(client))
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await client.choose_codec(self.codec)
            self._note("codec", f"packs activations as {client.codec.codec}: {client.codec.reason}")
            await self._take_requests(client)

    async def _connected(self, ring: Ring) -> RingClient:
        """Raises StageError when the head does not answer: the coordinator's own line carries the
        heartbeats of all, or its ring would have ended already."""
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                return await self.endpoint.connect(ring)
        except RingError as error:
            raise self.stages[0].fail(f"{self.stages[0].name}: {error}") from None

    async def _watch_progress(self, client: RingClient) -> None:
        """Until the ring stands, then raises StageError."""
        forecast, progress = self.plan.forecast, RingProgress(RingPace())
        if forecast is not None:
            progress.pace = RingPace(forecast.tpot_s, self.plan.prompt_token_s)
        while True:
            now = self.clock()
            healths = [stage.health for stage in self.stages]
            stages = [one.progress if one is not None else StageProgress() for one in healths]
            stuck = progress.update(client.served(), stages, now)
            if stuck is not None:
                raise self._stuck(stuck)
            if healths[0] is not None:
                client.note_prompts(healths[0], now)
            client.give_up_stalled(now, partial(self.service.has_other, client))
            await asyncio.sleep(PROGRESS_PERIOD_S)

    def _stuck(self, stuck: Stuck) -> StageError:
        stage = self.stages[stuck.stage]
        about = self.stages[stuck.about] if stuck.about is not None else None
        with_whom = f" with {about.name}" if about is not None else ""
        reason = f"{stage.name}{with_whom} stands still: {stuck.reason}."
        return stage.fail(reason, about.node.node_id if about is not None else "")

    async def _take_requests(self, client: RingClient) -> None:
        """Until drained, and those that run have ended."""
        serving = ServingRing(self.number, client, self.plan.tokens_per_s, self.plan.promised)
        if not self._drain.is_set():
            self.state = RingState.SERVING
        self.has_served = True
        elapsed_s = self.clock() - self._planned_at
        self._note("ring_serving", f"serves, {elapsed_s:.1f} s after it was planned")
        self.service.add(serving)
        self.wake.set()
        try:
            await self._drain.wait()
            serving.draining = True
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await client.until_idle()
        finally:
            self.service.remove(serving)

    def _note(self, kind: EventKind, what: str) -> None:
        self.service.events.add(kind, f"ring {self.number} {what}", ring=self.number)

    async def _release(self) -> None:
        """Close our ends, and have everybody stand by, whatever else fails."""
        guard = ErrorGuard(f"Ending ring {self.number}")
        with guard:
            await self.endpoint.close()
        await gathered(self._let_go(stage.node, guard) for stage in self.stages)

    async def _let_go(self, node: Node, guard: ErrorGuard) -> None:
        with guard:
            await self.stand_by(node, self.epoch)
