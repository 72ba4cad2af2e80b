"""Supervisor of one ring, from its plan to its end: load, join, serve, drain.

`run` is a task of its own; the manager drains or cancels it, and sees in `state` how far it is.
However it ends, its members stand by, unless they were assigned something else since.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from molink.coordinator.cell.lending import Lenders
from molink.coordinator.nodes.node import Node
from molink.coordinator.planning.cluster_plan import PlannedRing, PlannedStage
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.serving_ring import ServingRing
from molink.coordinator.ring.agent_stage import AgentStage, why_not_needed
from molink.coordinator.ring.cache_use import CacheSources
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.ring import Ring
from molink.coordinator.ring.ring_watch import (
    on_grown_terms,
    watch_lenders,
    watch_rows,
    watch_silence,
)
from molink.coordinator.ring.stage_watch import StageFailure
from molink.coordinator.upkeep.neighbours import has_grown
from molink.coordinator.upkeep.recovery import Recovery, Resumption
from molink.coordinator.upkeep.ring_building import RingEndpoint, build_ring
from molink.coordinator.upkeep.ring_progress import ForecastPace, RingProgress, Stuck
from molink.coordinator.upkeep.take_over import KeptRing, RingKeeper
from molink.errors import ErrorGuard, LendersChangedError, MolinkError, RingError, StageError
from molink.serving.events import EventKind
from molink.stage_protocol.progress import StageProgress
from molink.tasks import background_tasks, gathered, unless
from molink_scheduler.routing.pace_estimator import PaceEstimator

log = logging.getLogger(__name__)

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
    RESUMING = "resuming"
    """It has lost a stage, and its requests wait for it to go on."""
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(slots=True)
class RingSupervisor:
    """One ring: planned, loading, serving or ended."""

    number: int
    plan: PlannedRing
    stages: Sequence[AgentStage]
    endpoint: RingEndpoint
    codec: str
    """Codec of the ring's links, as `--wire` names it."""
    service: ClusterService
    stand_by: Callable[[Node, int], Awaitable[None]]
    """Has a node hold nothing, if its last assignment was for this epoch."""
    wake: asyncio.Event
    """Set for the manager when something has changed."""
    recovery: Recovery
    mended: Callable[[StageFailure], object]
    """Takes a failure after which the ring may go on."""
    complained: Callable[[StageFailure], bool]
    """Takes a complaint about a neighbour's rows, of a ring that goes on; whether it had better
    not."""
    keeper: RingKeeper
    lenders: Lenders
    kept: KeptRing | None = None
    """The ring as an earlier coordinator has left it; None: it is built."""
    state: RingState = RingState.LOADING
    has_served: bool = False
    served_s: float = 0.0
    """For how long it has served so far, as the manager counts."""
    error: MolinkError | None = None
    """Why it has failed; None unless it has."""
    clock: Callable[[], float] = time.monotonic
    fractions: dict[int, float] = field(default_factory=dict)
    """Fraction of its loading that each stage has done, by its index."""
    _planned_at: float = field(init=False)
    _drain: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: ServingRing | None = None
    """Since it takes requests."""
    _sources: CacheSources = field(default_factory=CacheSources)

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
        if self.state not in (RingState.DRAINING, RingState.ENDED):
            self.state = RingState.DRAINING
            self._drain.set()

    async def run(self) -> None:
        """Run until it is drained, lost or cancelled; a failure is kept in `error`."""
        try:
            if self.kept is not None:
                resumption = await self._take_over(self.kept)
                await self._serve(resumption.ring, resumption)
            elif (ring := await self._build()) is not None:
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
            self._note("ring_ended", f"has ended: {self.error or why_not_needed(self.stages)}")
            self.keeper.drop(self.number)
            self.lenders.give_back(stage.node.node_id for stage in self.stages)
            self.service.not_expected(self.number)
            await asyncio.shield(self._release())
            self.wake.set()

    async def _build(self) -> Ring | None:
        """The ring; None when it was to be drained before it stood."""
        await unless(self._drain, self.lenders.borrow(self.stages))
        self.plan = self.plan.moved(_places(self.stages))
        terms = await self.endpoint.open(self.stages)
        building = build_ring(self.stages, terms, self._progressed, self.endpoint.reroute)
        return await unless(self._drain, building)

    def _progressed(self, index: int, fraction: float) -> None:
        self.fractions[index] = fraction
        self.wake.set()

    async def _take_over(self, kept: KeptRing) -> Resumption:
        """The next epoch of a ring that was left. Raises MolinkError or TimeoutError."""
        self.lenders.adopt(self.stages)
        terms = await self.endpoint.open(self.stages)
        ring = Ring(self.stages, replace(terms, ring=kept.terms), kept.requests_link)
        client = self.endpoint.client(ring)
        client.pause()
        client.codec = kept.codec
        for one in self.keeper.requests.get(self.number, ()):
            client.adopt(one)
        self._serving = self._serving_ring(client)
        if (begun := self.recovery.begin(ring, with_coordinator=True)) is None:
            raise StageError("Too little is left of it to take it over.")
        self.state = RingState.RESUMING
        self._go_to(begun)
        async with asyncio.timeout(self.recovery.left_s):
            return await self.recovery.run(begun, client, "The coordinator was started anew.")

    def _go_to(self, ring: Ring) -> None:
        """Note in which places the ring stands from now on."""
        staying = {stage.node.node_id for stage in ring.stages}
        self.lenders.give_back({stage.node.node_id for stage in self.stages} - staying)
        self.stages = ring.stages
        self.plan = self.plan.moved(_places(ring.stages))

    async def _serve(self, ring: Ring, resumption: Resumption | None = None) -> None:
        """Serve until it is drained, over as many epochs as it takes. Raises MolinkError when it is
        lost. `resumption`: with which it is taken over."""
        try:
            while True:
                try:
                    await self._serve_epoch(ring, resumption)
                    return
                except (StageError, RingError) as error:
                    resumption = await self._resumption(ring, error)
                    ring = resumption.ring
        finally:
            if self._serving is not None and self._serving in self.service.rings:
                self._serving.client.end("The ring has ended.")
                self.service.remove(self._serving)

    async def _serve_epoch(self, ring: Ring, resumption: Resumption | None) -> None:
        """Serve until it is drained. Raises StageError or RingError when a stage is lost."""
        async with background_tasks() as tasks:
            tasks.create_task(ring.watch())
            tasks.create_task(
                watch_silence(ring, self.recovery.is_lost, self._note, lambda: self.clock())
            )
            tasks.create_task(watch_rows(ring, self.complained, self._note))
            tasks.create_task(watch_lenders(ring))
            tasks.create_task(self.lenders.serve(self.number, ring.stages))
            tasks.create_task(self.endpoint.watch(ring))
            if self._serving is None or resumption is None:
                client = await self._connected(ring)
                self._run_client(client, tasks)
                await self._begin_serving(client)
            else:
                client = self._serving.client
                await self._enter_epoch(client, ring, resumption)
                self._run_client(client, tasks)
            self.keeper.keep(self.number, self.plan, ring, client.codec)
            await self._until_drained(client)

    def _run_client(self, client: RingClient, tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(client.run())
        tasks.create_task(self._watch_progress(client))

    async def _begin_serving(self, client: RingClient) -> None:
        """Check the ring's codec, which its client's first answers do, and take requests."""
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            await client.choose_codec(self.codec)
        codec = client.codec
        self._note("codec", f"sends activations {codec.codec}: {codec.reason}")
        self._serving = self._serving_ring(client)
        self._take_requests()
        elapsed_s = self.clock() - self._planned_at
        self._note("ring_serving", f"serves, {elapsed_s:.1f} s after it was planned")

    async def _enter_epoch(self, client: RingClient, ring: Ring, resumption: Resumption) -> None:
        async with asyncio.timeout(self.recovery.left_s):
            await self.endpoint.begin_epoch(ring)
        self._resume(client, resumption)
        if not self.has_served:
            self._take_requests()

    async def _resumption(self, ring: Ring, error: MolinkError) -> Resumption:
        """The ring's next epoch. Raises the error that has ended this one when there is none. Of
        what a quarantined node has computed nothing is kept: others' KV was made of its rows."""
        client = self._serving.client if self._serving is not None else None
        is_spoilt = any(stage.node.quarantined for stage in ring.stages)
        if client is None or client.unready_reason is not None or is_spoilt:
            raise error
        parts_lost = isinstance(error, LendersChangedError)
        ring = client.ring = on_grown_terms(ring)
        while (begun := self.recovery.begin(ring, parts_lost=parts_lost)) is not None:
            client.pause()
            self._note_losses(ring, begun, str(error))
            if self.state is RingState.SERVING:
                self.state = RingState.RESUMING
            ring = begun
            self._go_to(ring)
            with suppress(StageError, TimeoutError):
                async with asyncio.timeout(self.recovery.left_s):
                    return await self.recovery.run(ring, client, str(error))
        raise error

    def _note_losses(self, ring: Ring, begun: Ring, reason: str) -> None:
        """What another node replaces has failed; what its own node loads again may be forgiven."""
        staying = {stage.node.node_id for stage in begun.stages}
        for stage in ring.stages:
            if stage.is_lost:
                self._note("stage_lost", f"has lost {stage.name} and goes on: {reason}", stage.name)
            if stage.failure is not None and stage.node.node_id in staying:
                self.mended(stage.failure)
        for stage in begun.stages:
            if has_grown(stage) and stage.loaded is None:
                first, end = stage.layers
                wide = f"layers {first} to {end - 1}, with what was lost beside its own"
                self._note("plan", f"goes on with {stage.name} for {wide}")

    def _resume(self, client: RingClient, resumption: Resumption) -> None:
        reason, requests = resumption.reason, resumption.requests
        client.whole_card = self.endpoint.fitting(resumption.ring)
        client.resume(resumption.ring, requests, reason)
        elapsed_s, loading_s = self.recovery.succeeded(resumption.ring)
        kept = len(requests.listed - requests.missing)
        if self.state is RingState.RESUMING:
            self.state = RingState.SERVING
        times = f"{elapsed_s:.1f} s after a loss, {loading_s:.1f} of them to load"
        holding = f"with the KV of {kept} requests, {requests.behind_tokens} tokens behind"
        self._note("ring_resumed", f"goes on {times}, {holding}: {reason}")
        self.wake.set()

    async def _connected(self, ring: Ring) -> RingClient:
        """Raises StageError when the head does not answer: our own line carries all heartbeats."""
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                return await self.endpoint.connect(ring)
        except RingError as error:
            raise self.stages[0].fail(f"{self.stages[0].name}: {error}") from None

    async def _watch_progress(self, client: RingClient) -> None:
        """Wait until the ring stands, then raise StageError."""
        forecast, progress = self.plan.forecast, RingProgress(ForecastPace())
        if forecast is not None:
            progress.pace = ForecastPace(forecast.tpot_s, self.plan.prompt_token_s)
        while True:
            now = self.clock()
            healths = [stage.health for stage in self.stages]
            stages = [one.progress if one is not None else StageProgress() for one in healths]
            if (stuck := progress.update(client.served(), stages, now)) is not None:
                raise self._stuck(stuck)
            if healths[0] is not None:
                client.note_prompts(healths[0], now)
            has_other = partial(self.service.has_other, client)
            with suppress(RingError):  # Without a link to its head, once it goes on.
                client.update_capacity(has_other, may_grow=self.lenders.may_lend(self.stages))
                if self._sources.update(stage.node for stage in self.stages):
                    client.clear_cache()
            client.give_up_stalled(now, has_other, stages[-1])
            if client.forecaster.watch.is_habit(now):
                raise self._stuck(Stuck.starving(len(stages)))
            short = [one for one in self.stages if one.health and one.health.host_is_short]
            client.short_of_memory = short[0].name if short else ""
            if short:
                client.shed_newest(has_other)
            await asyncio.sleep(PROGRESS_PERIOD_S)

    def _stuck(self, stuck: Stuck) -> StageError:
        stage = self.stages[stuck.stage]
        about = self.stages[stuck.about] if stuck.about is not None else None
        if about is None:
            stage.is_given_up = True
            return stage.stuck(f"{stage.name} stands still: {stuck.reason}.")
        reason = f"{stage.name} with {about.name} stands still: {stuck.reason}."
        return stage.fail(reason, about.node.node_id)

    def _serving_ring(self, client: RingClient) -> ServingRing:
        client.forecaster.pace = PaceEstimator(self.plan.pace)
        return ServingRing(self.number, client, self.plan.tokens_per_s, self.plan.promised)

    def _take_requests(self) -> None:
        assert self._serving is not None, "its client is connected"
        if not self._drain.is_set():
            self.state = RingState.SERVING
        self.has_served = True
        self.service.add(self._serving)
        self.service.not_expected(self.number)
        self.wake.set()

    async def _until_drained(self, client: RingClient) -> None:
        """Wait until it is drained, and those that run have ended."""
        assert self._serving is not None, "it takes requests"
        await self._drain.wait()
        self._serving.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await client.until_idle()

    def _note(self, kind: EventKind, what: str, node: str = "") -> None:
        self.service.events.add(kind, f"ring {self.number} {what}", node=node, ring=self.number)

    async def _release(self) -> None:
        """Close our ends, and have everybody stand by, whatever else fails."""
        guard = ErrorGuard(f"Ending ring {self.number}")
        with guard:
            await self.endpoint.close()
        await gathered(self._let_go(stage.node, guard) for stage in self.stages)

    async def _let_go(self, node: Node, guard: ErrorGuard) -> None:
        with guard:
            await self.stand_by(node, self.epoch)


def _places(stages: Sequence[AgentStage]) -> list[PlannedStage]:
    return [PlannedStage(stage.node.node_id, stage.work) for stage in stages]
