"""Service of a cluster for the API: whichever rings there are, as one `GenerationService`.

A request goes to the ring that is forecast to begin its answer soonest, or as the operator has it
(`molink_scheduler.routing`); one whose forecasts miss its targets is refused at once. It belongs to
no ring: its tokens are kept here, and when its ring ends it goes on in another, which computes them
again. No token is sent twice and none is lost, whether a PC was switched off or a ring made way for
a better one.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random

from molink.coordinator.requests.audit_queue import AuditQueue
from molink.coordinator.requests.intake import Intake
from molink.coordinator.requests.serving_ring import ServingRing
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.live_sequence import RequestStalledError
from molink.errors import ErrorGuard, MolinkError, OverloadedError, RingError, RowsRefusedError
from molink.findings.watch import ClusterWatch
from molink.report.cluster import ClusterReport
from molink.serving.answer_log import AnswerLog, EarlierAnswer, Ending
from molink.serving.answers.deadline import DEADLINE, at_deadline, until_deadline
from molink.serving.events import EventLedger
from molink.serving.model_card import ModelCard
from molink.serving.request_log import RequestLog
from molink.serving.service import GenerationRequest
from molink.serving.timeline import RequestTimeline
from molink.serving.token_events import TokenEvent
from molink.tasks import Signal

NEXT_RING_WAIT_S = 120.0
"""How long an accepted request waits for another ring: weights from disk and links take
seconds, a download of a replacement's layers minutes, and a user has gone by then."""

MOVES_MAX = 8
"""A request that has lost so many rings is failed: something about it may be what ends them."""

STALL_FACTOR = 2.0
"""Factor by which the time given to a request grows each time that it was starved: a prompt may
take any honest ring longer than the last deadline, and rings are not to hand it round for ever."""

WAITING_FOR_RING_MAX = 256
"""Newcomers that wait for a ring which is built anew; it will not begin more of them in time."""

INTAKE_PAUSED = (
    "The operator has paused the intake of requests: send yours again later. Those under way go on."
)


@dataclass(slots=True)
class ClusterService:
    """Service over all rings of a cluster."""

    model: ModelCard
    report: Callable[["ClusterService"], ClusterReport]
    """Maker of the report on the service and the rest of the cluster."""
    intake: Intake = field(default_factory=Intake)
    progress: str = "No PC has joined yet: start an agent with the printed command."
    """Reason why nothing serves, while nothing does; kept by the manager of the rings."""
    handed_over: str = ""
    """The reason in its place while all PCs were handed to another coordinator."""
    standbys: Mapping[str, str] = field(default_factory=dict)
    """Reasons why nodes hold nothing, by node; kept by the manager of the rings too."""
    rings: list[ServingRing] = field(default_factory=list)
    intake_paused: bool = False
    draws: Random = field(default_factory=Random)
    """Source of the draws of `Routing.RANDOM`."""
    expected: set[int] = field(default_factory=set)
    """Numbers of the rings of an earlier coordinator that are still to be taken over."""
    request_log: RequestLog = field(default_factory=RequestLog)
    events: EventLedger = field(default_factory=EventLedger)
    watch: ClusterWatch = field(default_factory=ClusterWatch)
    """What stands out; fed by whoever tells the cluster's news."""
    audits: AuditQueue = field(default_factory=AuditQueue)
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Going on with a request"))
    _changed: Signal = field(default_factory=Signal)
    _has_served: bool = False
    """Whether there has been a ring."""
    _newcomers_waiting: int = 0
    """Newcomers that wait for a ring that is built anew."""

    def __post_init__(self) -> None:
        self.request_log.watch(self.audits.closed)

    @property
    def card(self) -> ModelCard:
        """The model, at most as long as the ring with the most memory can hold."""
        cards = (ring.client.card for ring in self.rings if ring.is_open)
        return max(cards, key=lambda card: card.model_len_max, default=self.model)

    @property
    def unready_reason(self) -> str | None:
        """Why requests are refused; None while a ring is open and the intake is."""
        if self.intake_paused:
            return INTAKE_PAUSED
        serves = any(ring.is_open for ring in self.rings)
        return None if serves else self.handed_over or self.progress

    @property
    def overload(self) -> OverloadedError | None:
        """Why a newcomer is refused where every open ring takes no more."""
        return self.intake.overload(self._answering)

    def set_intake(self, *, paused: bool) -> None:
        """Refuse new requests, or take them again."""
        self.intake_paused = paused
        self._changed.send()

    def clear_caches(self) -> None:
        """Let all rings forget what they have cached."""
        for ring in self.rings:
            with suppress(RingError):  # The link to its head is lost: it does so when it goes on.
                ring.client.clear_cache()

    def add(self, ring: ServingRing) -> None:
        """Send requests to a ring, too."""
        self.rings.append(ring)
        self._has_served = True
        self._changed.send()

    def remove(self, ring: ServingRing) -> None:
        """Send it no more."""
        self.rings.remove(ring)
        self._changed.send()

    def has_other(self, client: RingClient, tokens: int) -> bool:
        """Whether a ring beside this client's takes requests of so many tokens."""
        return any(
            ring.client is not client and ring.client.card.model_len_max >= tokens
            for ring in self._answering
        )

    async def until_ready(self) -> None:
        """Wait until a ring is open."""
        while self.unready_reason is not None:
            await self._changed.wait()

    async def until_taken(self) -> None:
        """Wait until a newcomer may ask: at once, or when the ring is there again that is built
        anew. Raises RingError when it would wait longer than newcomers may, OverloadedError when
        too many wait in all rings."""
        if self._may_wait_for_ring:
            self._newcomers_waiting += 1
            try:
                async with asyncio.timeout(self.intake.wait_s_max):
                    await self.until_ready()
            except TimeoutError:
                pass  # The reason says how far it is.
            finally:
                self._newcomers_waiting -= 1
        if self.unready_reason is not None:
            raise RingError(self.unready_reason)
        if (overload := self.overload) is not None:
            raise overload

    @property
    def _may_wait_for_ring(self) -> bool:
        is_built_anew = self._has_served and not any(ring.is_open for ring in self.rings)
        has_room = self._newcomers_waiting < WAITING_FOR_RING_MAX
        return is_built_anew and not (self.intake_paused or self.handed_over) and has_room

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        """Stream one sequence over as many rings as it takes; closing the generator cancels it."""
        timeline = request.timeline or self._timeline(request)
        timeline.targets = request.targets.or_else(self.intake.targets)
        asked = replace(request, timeline=timeline, targets=timeline.targets)
        self.audits.choose(timeline, sum(ring.is_open for ring in self.rings))
        if request.log is not None:
            request.log.begin()
        with self.request_log.following(timeline), _end_kept(request.log):
            async with aclosing(self._over_rings(asked, timeline)) as all_events:
                async for event in until_deadline(all_events, request.deadline_at):
                    if request.log is not None:
                        request.log.took(event)
                    if event.finish_reason is not None:
                        now = timeline.last_token_at or time.monotonic()
                        reason = DEADLINE if at_deadline(event) else event.finish_reason
                        timeline.finished(reason, now)
                    yield event

    async def _over_rings(
        self, request: GenerationRequest, timeline: RequestTimeline
    ) -> AsyncGenerator[TokenEvent, None]:
        before = request.log.before if request.log is not None else None
        if self.intake_paused and before is None:
            raise RingError(INTAKE_PAUSED)
        output = before.token_ids if before is not None else ()
        avoided: ServingRing | None = None
        stall_factor, was_refused = 1.0, False
        for moves in range(MOVES_MAX):
            ring = await self._adopting(before) if moves == 0 else None
            if ring is None:
                accepted = moves > 0 or before is not None
                ring = await self._next_ring(
                    request, timeline, len(output), avoided, accepted=accepted
                )
            timeline.submitted(ring.number, ring.stages, time.monotonic())
            sent = request
            if not output:
                sent = await self.intake.roles.prefilled(ring, request, self.rings)
            try:
                async with aclosing(ring.client.generate(sent, output, stall_factor)) as events:
                    async for event in events:
                        output += event.token_ids
                        if event.finish_reason is not None:
                            tokens = request.prompt_token_ids + output
                            salt = request.cache_salt
                            self.audits.answered(timeline, tokens, ring.number, salt)
                        yield event
                return
            except RequestStalledError as error:  # 1. Another ring, which gets more time.
                avoided, stall_factor = ring, STALL_FACTOR * stall_factor
                self._note_move(timeline, ring, error)
            except RowsRefusedError as error:  # 2. Once more, elsewhere.
                most = len(request.prompt_token_ids) + request.sampling.max_tokens
                if was_refused or not self.has_other(ring.client, most):
                    raise
                avoided, was_refused = ring, True
                self._note_move(timeline, ring, error)
            except RingError as error:  # 3. The ring is lost: the next one.
                if ring.client.unready_reason is None:
                    raise
                self._note_move(timeline, ring, error)
        raise RingError(f"The request's ring was lost {MOVES_MAX} times: send it again later.")

    async def finish_earlier(self, request: GenerationRequest) -> None:
        """Go on with a request of an earlier coordinator: its client may read the answer later."""
        with self.guard, suppress(MolinkError):  # It is kept with the answer.
            async with aclosing(self.generate(request)) as events:
                async for _ in events:
                    pass

    async def _adopting(self, before: EarlierAnswer | None) -> ServingRing | None:
        """The ring that holds KV of a request of an earlier coordinator; None: there is none."""
        number = before.place.ring if before is not None and before.place is not None else None
        while number in self.expected:
            await self._changed.wait()
        rings = (ring for ring in self.rings if before is not None and ring.number == number)
        return next(rings, None)

    def not_expected(self, number: int) -> None:
        """A ring of an earlier coordinator was taken over, or cannot be."""
        self.expected.discard(number)
        self._changed.send()

    def _note_move(self, timeline: RequestTimeline, ring: ServingRing, error: MolinkError) -> None:
        timeline.moved(str(error), time.monotonic())
        which = f"request {timeline.arrival.request_id}"
        text = f"{which} leaves ring {ring.number} after {timeline.tokens} tokens: {error}"
        self.events.add("request_moved", text, ring=ring.number)

    def _timeline(self, request: GenerationRequest) -> RequestTimeline:
        prompt_tokens, max_tokens = len(request.prompt_token_ids), request.sampling.max_tokens
        return RequestTimeline(self.model.name, prompt_tokens, max_tokens, request.key_id)

    def cluster(self) -> ClusterReport:
        """Report on rings and nodes, as they are now."""
        return self.report(self)

    @property
    def devices(self) -> dict[str, str]:
        """Device of each node that serves."""
        stages = [stage for ring in self.rings for stage in ring.client.ring.stages]
        return {stage.node.node_id: stage.loaded.device for stage in stages if stage.loaded}

    @property
    def _answering(self) -> list[ServingRing]:
        """Open rings that requests are given to."""
        return self.intake.roles.answering([ring for ring in self.rings if ring.is_open])

    def _open_rings(self, tokens: int) -> list[ServingRing]:
        """Open rings that can hold so many tokens; if none can, all: one of them refuses."""
        rings = self._answering
        holding = [ring for ring in rings if ring.client.card.model_len_max >= tokens]
        return holding or rings

    async def _next_ring(
        self,
        request: GenerationRequest,
        timeline: RequestTimeline,
        output_tokens: int,
        avoided: ServingRing | None,
        *,
        accepted: bool,
    ) -> ServingRing:
        rings = await self._rings_for(request, avoided, accepted=accepted)
        draw = self.draws.random()
        return self.intake.choose(rings, request, timeline, output_tokens, draw, accepted=accepted)

    async def _rings_for(
        self, request: GenerationRequest, avoided: ServingRing | None, *, accepted: bool
    ) -> list[ServingRing]:
        """Rings that can take a request, others than `avoided` if there are. A request that a ring
        has accepted waits for the next ring; a new request is refused while there is none."""
        deadline = time.monotonic() + NEXT_RING_WAIT_S
        tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
        while not (rings := self._open_rings(tokens)):
            if not accepted and not self.rings:
                raise RingError(self.handed_over or self.progress)
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                raise RingError(self.handed_over or self.progress) from None
        others = [ring for ring in rings if ring is not avoided]
        return [ring for ring in others if ring.number not in request.avoids] or others or rings


@contextmanager
def _end_kept(log: AnswerLog | None) -> Iterator[None]:
    """Keep on disk how an answer has ended that did not end by itself."""
    try:
        yield
    except BaseException as error:
        if log is not None:
            why = str(error) if isinstance(error, MolinkError) else ""
            log.ended(Ending(time.time(), None, None, why))
        raise
