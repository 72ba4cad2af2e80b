"""What the API serves: whichever rings there are, as one `GenerationService`.

A request goes to the ring that is forecast to begin its answer soonest, or as the operator has it
(`molink_scheduler.routing`); one whose forecasts miss its targets is refused at once. It belongs to
no ring: its tokens are kept here, and when its ring ends it goes on in another, which computes them
again. No token is sent twice and none is lost, whether a PC was switched off or a ring made way for
a better one.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from molink.config.settings import ServeSettings, UpSettings, targets_of
from molink.coordinator.requests.audit_queue import AuditQueue
from molink.coordinator.requests.ring_client import RequestStalledError, RingClient
from molink.errors import ErrorGuard, MolinkError, OverloadedError, RingError
from molink.serving.deadline import DEADLINE, at_deadline, until_deadline
from molink.serving.events import EventLedger
from molink.serving.kept_answer import AnswerLog, Ending, KeptAnswer
from molink.serving.service import GenerationRequest, ModelCard, TokenEvent
from molink.serving.timeline import RequestLog, RequestTimeline, StageLayers
from molink.tasks import Signal
from molink_scheduler.kv.prefix_tree import token_bytes
from molink_scheduler.routing.admission import NO_TARGETS, Targets, Verdict
from molink_scheduler.routing.ring_choice import Routing, choose_ring
from molink_scheduler.routing.ring_forecast import RingState, forecast_tpot_s, forecast_ttft_s
from molink_scheduler.waiting_line import WAIT_S

__all__ = ["ClusterService", "Intake", "ServingRing"]

NEXT_RING_WAIT_S = 120.0
"""How long an accepted request waits for another ring: weights from disk and links take
seconds, a download of a replacement's layers minutes, and a user has gone by then."""

MOVES_MAX = 8
"""A request that has lost so many rings is failed: something about it may be what ends them."""

STALL_PATIENCE = 2.0
"""Each time that a request was left lying it is given so many times as long: a prompt may take any
honest ring longer than the last deadline, and rings are not to hand it round for ever."""

INTAKE_PAUSED = (
    "The operator has paused the intake of requests: send yours again later. Those under way go on."
)

Report = Callable[[Mapping[str, str], Mapping[str, str]], dict[str, Any]]
"""Made with the reasons why nodes hold nothing, and the devices of those that serve."""


@dataclass(slots=True, eq=False)
class ServingRing:
    """Ring that takes requests, and its forecast."""

    number: int
    client: RingClient
    tokens_per_s: float
    """Forecast, by which rings are compared."""
    promised: Mapping[str, Any] | None = None
    """All of the forecast with which it was planned, for GET /cluster; None: it had none."""
    draining: bool = False
    """Takes no new requests; those that run end here."""

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return not self.draining and self.client.unready_reason is None

    def is_full(self, within_s: float, now: float) -> bool:
        """Whether it takes no more: those that wait would wait too long, all would become slow, or
        a PC's memory runs short."""
        is_short = self.client.short_of_memory and self.client.outstanding_tokens
        return bool(is_short) or self.client.prospects.line.is_full(within_s, now)

    @property
    def stages(self) -> tuple[StageLayers, ...]:
        """Its nodes and their layers, for the timelines of its requests."""
        return tuple(StageLayers(one.name, one.layers) for one in self.client.ring.stages)


@dataclass(frozen=True, slots=True)
class Intake:
    """Which newcomers are taken, and by which ring."""

    wait_s_max: float = WAIT_S
    """Those for whom a longer wait is forecast are refused..."""
    targets: Targets = NO_TARGETS
    """...and those for whom a later first token or slower tokens are; a request may have its
    own."""
    routing: Routing = Routing.MOLINK

    @classmethod
    def of(cls, settings: ServeSettings | UpSettings) -> "Intake":
        """As the operator has it."""
        targets = targets_of(settings.ttft_target_s, settings.tpot_target_ms)
        return cls(settings.queue_s, targets, Routing(settings.routing))


@dataclass(slots=True)
class ClusterService:
    """Service over all rings of a cluster."""

    model: ModelCard
    report: Report
    """What GET /cluster shows beside the rings."""
    intake: Intake = field(default_factory=Intake)
    progress: str = "No PC has joined yet: start an agent with the printed command."
    """Why nothing serves, while nothing does; kept by the manager of the rings..."""
    standbys: Mapping[str, str] = field(default_factory=dict)
    """...as are the reasons why nodes hold nothing."""
    rings: list[ServingRing] = field(default_factory=list)
    intake_paused: bool = False
    draws: Random = field(default_factory=Random)
    """Of `Routing.RANDOM`."""
    expected: set[int] = field(default_factory=set)
    """Numbers of the rings of an earlier coordinator that are still to be taken over."""
    request_log: RequestLog = field(default_factory=RequestLog)
    events: EventLedger = field(default_factory=EventLedger)
    audits: AuditQueue = field(default_factory=AuditQueue)
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Going on with a request"))
    _changed: Signal = field(default_factory=Signal)

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
        return None if any(ring.is_open for ring in self.rings) else self.progress

    @property
    def overload(self) -> OverloadedError | None:
        """Why a newcomer is refused where every open ring takes no more."""
        rings = [ring for ring in self.rings if ring.is_open]
        now = time.monotonic()
        if not rings or not all(ring.is_full(self.intake.wait_s_max, now) for ring in rings):
            return None
        lines = [ring.client.prospects.line for ring in rings]
        wait_s = max(1.0, min(line.wait_s(now) or WAIT_S for line in lines))
        waiting, running = (
            sum(line.waiting for line in lines),
            sum(line.running for line in lines),
        )
        return OverloadedError(
            f"{running} requests run and {waiting} wait, as many as can be answered in time: send "
            "yours again later.",
            wait_s,
        )

    def set_intake(self, *, paused: bool) -> None:
        """Refuse new requests, or take them again."""
        self.intake_paused = paused
        self._changed.send()

    def add(self, ring: ServingRing) -> None:
        """Send requests to a ring, too."""
        self.rings.append(ring)
        self._changed.send()

    def remove(self, ring: ServingRing) -> None:
        """Send it no more."""
        self.rings.remove(ring)
        self._changed.send()

    def has_other(self, client: RingClient, tokens: int) -> bool:
        """Whether a ring beside this client's takes requests of so many tokens."""
        return any(
            ring.is_open and ring.client is not client and ring.client.card.model_len_max >= tokens
            for ring in self.rings
        )

    async def until_ready(self) -> None:
        """Until a ring is open."""
        while self.unready_reason is not None:
            await self._changed.wait()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        """Stream one sequence over as many rings as it takes; closing the generator cancels it."""
        timeline = request.timeline or self._timeline(request)
        packed = token_bytes(request.prompt_token_ids)
        asked = replace(request, timeline=timeline, packed=packed)
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
        left: ServingRing | None = None
        patience = 1.0
        for moves in range(MOVES_MAX):
            ring = await self._adopting(before) if moves == 0 else None
            if ring is None:
                accepted = moves > 0 or before is not None
                rings = await self._rings_for(request, left, accepted=accepted)
                ring = self._choose(rings, request, timeline, len(output), accepted=accepted)
            timeline.submitted(ring.number, ring.stages, time.monotonic())
            try:
                async with aclosing(ring.client.generate(request, output, patience)) as events:
                    async for event in events:
                        output += event.token_ids
                        if event.finish_reason is not None:
                            tokens = request.prompt_token_ids + output
                            self.audits.answered(timeline, tokens, ring.number)
                        yield event
                return
            except RequestStalledError as error:
                left, patience = ring, STALL_PATIENCE * patience
                self._note_move(timeline, ring, error)
            except RingError as error:
                if ring.client.unready_reason is None:
                    raise
                self._note_move(timeline, ring, error)
        raise RingError(f"The request's ring was lost {MOVES_MAX} times: send it again later.")

    async def go_on(self, request: GenerationRequest) -> None:
        """Go on with a request of an earlier coordinator: its client may read the answer later."""
        with self.guard, suppress(MolinkError):  # It is kept with the answer.
            async with aclosing(self.generate(request)) as events:
                async for _ in events:
                    pass

    async def _adopting(self, before: KeptAnswer | None) -> ServingRing | None:
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

    def _note_move(self, timeline: RequestTimeline, ring: ServingRing, error: RingError) -> None:
        timeline.moved(str(error), time.monotonic())
        which = f"request {timeline.arrival.request_id}"
        text = f"{which} leaves ring {ring.number} after {timeline.tokens} tokens: {error}"
        self.events.add("request_moved", text, ring=ring.number)

    def _timeline(self, request: GenerationRequest) -> RequestTimeline:
        prompt_tokens, max_tokens = len(request.prompt_token_ids), request.sampling.max_tokens
        return RequestTimeline(self.model.name, prompt_tokens, max_tokens, request.key_id)

    def cluster(self) -> dict[str, Any]:
        """The body of GET /cluster: the first ring's figures at the top, as of a single ring, then
        all rings and nodes."""
        reports = [
            ring.client.cluster() | {"ring": ring.number, "forecast": ring.promised}
            for ring in self.rings
        ]
        first = reports[0] if reports else {"model": self.model.name, "stages": [], "links": []}
        own = {
            "rings": reports,
            "unready_reason": self.unready_reason,
            "intake_paused": self.intake_paused,
        }
        return first | own | self.report(self.standbys, self._devices())

    def _devices(self) -> dict[str, str]:
        """Of the nodes that serve."""
        stages = [stage for ring in self.rings for stage in ring.client.ring.stages]
        return {stage.node.node_id: stage.loaded.device for stage in stages if stage.loaded}

    def _open_rings(self, tokens: int) -> list[ServingRing]:
        """Open rings that can hold so many tokens; if none can, all: one of them refuses."""
        rings = [ring for ring in self.rings if ring.is_open]
        holding = [ring for ring in rings if ring.client.card.model_len_max >= tokens]
        return holding or rings

    async def _rings_for(
        self, request: GenerationRequest, left: ServingRing | None, *, accepted: bool
    ) -> list[ServingRing]:
        """Rings that can take a request, others than `left` if there are. One that a ring has
        accepted waits for the next ring; a new one is refused while there is none."""
        deadline = time.monotonic() + NEXT_RING_WAIT_S
        tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
        while not (rings := self._open_rings(tokens)):
            if not accepted and not self.rings:
                raise RingError(self.progress)
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                raise RingError(self.progress) from None
        return [ring for ring in rings if ring is not left] or rings

    def _choose(
        self,
        rings: Sequence[ServingRing],
        request: GenerationRequest,
        timeline: RequestTimeline,
        output_tokens: int,
        *,
        accepted: bool,
    ) -> ServingRing:
        """The ring for a request of which so many tokens are generated. Raises OverloadedError for
        one that no ring has accepted yet, when its targets are missed on all of them."""
        known = len(request.prompt_token_ids) + output_tokens
        met = [(ring, ring.client.met_by(request, ring.tokens_per_s)) for ring in rings]
        targets = request.targets.or_else(self.intake.targets)
        if targets != NO_TARGETS and not accepted:
            met = _admitting(met, request, targets)
        states = [state for _, state in met]
        left_tokens = request.sampling.max_tokens - output_tokens
        choice = choose_ring(self.intake.routing, states, known, left_tokens, self.draws.random())
        ring, state = met[choice.ring]
        if ring.client.prospects.pace.is_known:
            timeline.promised(forecast_ttft_s(state, known), forecast_tpot_s(state, known))
        return ring


def _admitting(
    met: Sequence[tuple[ServingRing, RingState]], request: GenerationRequest, targets: Targets
) -> list[tuple[ServingRing, RingState]]:
    """Rings that are forecast to meet the targets, or whose pace nobody knows. Raises
    OverloadedError when there is none."""
    known, prompt_tokens = [], len(request.prompt_token_ids)
    for ring, state in met:
        prospects = ring.client.prospects
        if prospects.pace.is_known:
            verdict = prospects.admission.decide(state, prompt_tokens, targets, request.priority)
            known.append((ring, verdict))
    refusing = [ring for ring, verdict in known if not verdict.admitted]
    admitting = [(ring, state) for ring, state in met if ring not in refusing]
    if not admitting:
        raise _refusal([verdict for _, verdict in known], targets)
    return admitting


def _refusal(verdicts: Sequence[Verdict], targets: Targets) -> OverloadedError:
    """What somebody is told whose targets are missed on all rings, by the one that is the first to
    meet them."""
    soonest = min(verdicts, key=lambda verdict: (verdict.retry_after_s, verdict.ttft_s))
    forecasts, wanted = [], []
    if targets.ttft_s is not None:
        forecasts.append(f"the first token in {soonest.ttft_s:.1f} s")
        wanted.append(f"{targets.ttft_s:g} s (ttft_target_s)")
    if targets.tpot_s is not None:
        forecasts.append(f"further ones every {1000 * soonest.tpot_s:.0f} ms")
        wanted.append(f"{1000 * targets.tpot_s:g} ms (tpot_target_ms)")
    help_ = "send yours again later."
    if soonest.hopeless:
        help_ = "that would be missed without other users too: raise it, or send less."
    return OverloadedError(
        f"Forecast are {' and '.join(forecasts)}, and wanted at most {' and '.join(wanted)}: "
        f"{help_}",
        soonest.retry_after_s,
    )


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
