"""Client of one ring: hands requests to its head, and turns its tail's tokens into text.

It is not on the path of a round: the tail sends each token to the head, which starts the next
round, and a copy here for the user.

When the ring loses a stage and goes on (`pause`, `resume`), its sequences wait. Each goes on from
the tokens that have come here, which all survivors have computed: a token that was drawn and has
not come is drawn again, the same.

What the tail says is checked before anything is made of it: tokens of a request that nobody made,
outside of the vocabulary, or more than were asked for end the ring, and the tail is to blame. Its
requests go on in the next ring. To drop such a message was rejected: users would wait for ever.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import assert_never

from molink.coordinator.ring.cache_use import CacheUse
from molink.coordinator.ring.codec_check import checked_codec
from molink.coordinator.ring.forecaster import RingForecaster
from molink.coordinator.ring.lent_room import lent_stages
from molink.coordinator.ring.links import HeadLost, HeadSilent, RingClientLinks, TailRefused
from molink.coordinator.ring.live_sequence import (
    LiveSequence,
    RequestStalledError,
    Served,
    newest_to_shed,
    note_prompts,
)
from molink.coordinator.ring.ring import Ring
from molink.coordinator.ring.room_watch import RoomWatch, resumable, terms_now
from molink.coordinator.ring.round_tokens import (
    RoundTokens,
    events_for,
    objection,
    take_prompt_tokens,
    tokens_of,
)
from molink.errors import MolinkError, OverloadedError, RingError, StageError
from molink.serving.answer_log import Place
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent
from molink.stage_protocol.health import StageHealth
from molink.stage_protocol.progress import StageProgress
from molink.wire.frames import Cancel, ChangeCache, ClearCache, Sampled, SetCodec, Submit
from molink_scheduler.codec_choice import CodecDecision, choose_codec
from molink_scheduler.recovery.instructions import ResumeRequests
from molink_scheduler.routing.ring_forecast import RingState

LOSSES_MAX = 8
"""A request that has met so many losses of a stage is failed: it may be what ends them."""

REQUESTS_MAX = 4096
"""Sequences accepted at a time, running and waiting, whatever the forecast of their wait is."""


@dataclass(slots=True)
class RingClient:
    """A `GenerationService` over one ring, while `run` runs."""

    whole_card: ModelCard
    """The model as the ring holds it with all places that its stages have had."""
    ring: Ring
    links: RingClientLinks
    head_silent: Callable[[], None]
    """Called when the head acknowledges nothing and another path to it is wanted."""
    unready_reason: str | None = None
    codec: CodecDecision = field(default_factory=lambda: choose_codec("raw", None))
    """How activations are packed, and why."""
    tokens_sent: int = 0  # To users since the start.
    forecaster: RingForecaster = field(init=False)
    """By which newcomers are sent here or elsewhere."""
    _live: dict[int, LiveSequence] = field(default_factory=dict)
    _next_request_id: int = 1
    _room: RoomWatch = field(default_factory=RoomWatch)
    cache_use: CacheUse = field(default_factory=CacheUse)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no sequence runs or waits."""
    short_of_memory: str = ""  # Name of the PC whose memory runs short.
    is_paused: bool = False
    """Whether the ring has lost a stage and does not go on yet."""
    _is_clear_due: bool = False
    """Whether the ring is to forget what it has cached as soon as it goes on."""
    _adopted: set[int] = field(default_factory=set)
    """Sequences of an earlier coordinator, for which nobody waits yet."""

    def __post_init__(self) -> None:
        self._idle.set()
        self.forecaster = RingForecaster.of(self.ring.terms.ring)

    @property
    def card(self) -> ModelCard:
        """The model as the ring lets requests in now."""
        return self._room.card(self.whole_card)

    def state_for(self, request: GenerationRequest, tokens_per_s: float) -> RingState:
        """State of the ring that a request sent now would find."""
        return self.forecaster.state(request, self._live.values(), tokens_per_s)

    async def run(self) -> None:
        """Hand out tokens until cancelled. Raises StageError when the head is lost, RingError when
        our own links have failed; then what runs fails and what comes is refused."""
        try:
            while True:
                match await self.links.next_event():
                    case Sampled() as message:
                        self._take_sampled(message)
                        await asyncio.sleep(0)  # What waits here is no reader's delay.
                    case TailRefused():
                        raise self._tail_error("what no ring's last stage sends")
                    case HeadSilent():
                        self.head_silent()
                    case HeadLost(reason, is_ours):
                        raise RingError(reason) if is_ours else self.ring.stages[0].fail(reason)
                    case other:
                        assert_never(other)
        except Exception:
            self.end("The ring has ended.")
            raise

    async def until_idle(self) -> None:
        """Wait until no sequence runs or waits."""
        await self._idle.wait()

    @property
    def outstanding_tokens(self) -> int:
        """Tokens of all sequences: prompts and all that they may generate."""
        return sum(live.tokens for live in self._live.values())

    def served(self) -> Served:
        """What the ring has brought its users."""
        return Served.of(self._live.values(), self.tokens_sent, self.forecaster.round_s)

    def note_prompts(self, head: StageHealth, now: float) -> None:
        """Take what the head reports of its prompts into the timelines."""
        note_prompts(self._live, head, now)

    def update_capacity(self, has_other: Callable[[int], bool], *, may_grow: bool = True) -> None:
        """Pass the stages' offers on to the head, unless the ring is paused. Where it may not grow,
        requests that no longer fit move if the cluster `has_other`, else they are refused."""
        if self.is_paused:
            return
        now, look = time.monotonic(), self._room.look
        for live in look(self.ring, self._live, self.links.send, now, may_grow=may_grow):
            error = live.too_long(self.card)
            stalled = RequestStalledError(str(error))
            self._give_up(live, stalled if has_other(live.tokens) else error, on_ring=True)

    def give_up_stalled(
        self, now: float, has_other: Callable[[int], bool], tail: StageProgress
    ) -> None:
        """Fail the sequences for which nothing has come for so long that another ring is better;
        `has_other`: whether there is one for so many tokens. Without, they keep their place, but
        for those that the head starves, as the `tail` and other requests tell."""
        terms = terms_now(self.ring.terms.ring, self.ring.stages)
        self.forecaster.lenders_changed(lent_stages(self.ring.stages), self._live.values())
        starved = self.forecaster.starved(self._live.values(), terms, tail, now)
        for live in self._live.values():
            is_starved = live.request_id in starved
            can_move = (is_starved or live.is_overdue(now)) and has_other(live.tokens)
            if can_move or is_starved:
                live.give_up(now, can_move=can_move)

    def shed_newest(self, has_other: Callable[[int], bool]) -> None:
        """Give up the newest request of the lowest priority, unless it is the only one: the PC that
        is `short_of_memory` would end the stage, and with it all of them for a while."""
        if (newest := newest_to_shed(self._live.values())) is None:
            return
        why = f"The memory of {self.short_of_memory} runs short: send the request again later."
        error = RequestStalledError(why) if has_other(newest.tokens) else RingError(why)
        self._give_up(newest, error, on_ring=True)

    async def generate(
        self, request: GenerationRequest, output: tuple[int, ...] = (), stall_factor: float = 1.0
    ) -> AsyncGenerator[TokenEvent, None]:
        """Stream one sequence; closing the generator cancels it on the ring.

        `output` is what another ring has generated of it: those tokens are computed again and not
        sent again. `stall_factor`: how many times as long as usual it may wait."""
        live = self._adopted_one(request) or self._submit(request, output, stall_factor)
        try:
            while True:
                event = await live.next_event()
                if event.finish_reason is not None:
                    self._forget(live)
                yield event
                if event.finish_reason is not None:
                    return
                self._read_on(live)
        finally:
            if self._forget(live) and self.unready_reason is None and not self.is_paused:
                with suppress(RingError):  # `run` hears of it too.
                    self.links.send(Cancel(live.request_id))

    def adopt(self, request: GenerationRequest) -> None:
        """Go on with what an earlier coordinator had this ring compute, once `resume` is called."""
        before = request.log.before if request.log is not None else None
        assert before is not None and before.place is not None, "a ring has computed it"
        live = self._submit(request, before.token_ids, 1.0, before.place.request_id)
        live.held_tokens = before.held_tokens
        self._next_request_id = max(self._next_request_id, live.request_id + 1)
        self._adopted.add(live.request_id)

    def _adopted_one(self, request: GenerationRequest) -> LiveSequence | None:
        """What was adopted of a request, once."""
        for live in filter(None, map(self._live.get, self._adopted)):
            if live.log is request.log:
                self._adopted.discard(live.request_id)
                return live
        return None

    def pause(self) -> None:
        """Take no more tokens and send nothing, until the ring goes on."""
        self.is_paused = True

    def to_resume(self) -> tuple[tuple[int, int], ...]:
        """The sequences that can go on, and of how many tokens of each the stages hold KV."""
        return resumable(self._live, terms_now(self.ring.terms.ring, self.ring.stages))

    def resume(self, ring: Ring, requests: ResumeRequests, reason: str) -> None:
        """Submit all sequences in the ring's next epoch. Those listed keep their KV, unless a stage
        is missing it; others are computed anew. The cache keeps what all stages hold."""
        now = time.monotonic()
        self.ring, self.is_paused = ring, False
        self._room.send_capacity(ring, self.links.send)
        if requests.cached is not None:
            retained = requests.cached
            self.links.send(ChangeCache(retained.emptied if self._is_clear_due else retained))
        self.forecaster.cache_lost()
        self._set_codec(self.codec.codec)
        resumed = (requests.listed & self._live.keys()) - requests.missing
        for request_id in requests.listed - resumed:
            self.links.send(Cancel(request_id))
        for live in list(self._live.values()):
            self._resume_sequence(live, reason, now, on_ring=live.request_id in resumed)
        if self._is_clear_due:  # Of requests that have been submitted again nothing is cached.
            self.clear_cache()

    def _resume_sequence(
        self, live: LiveSequence, reason: str, now: float, *, on_ring: bool
    ) -> None:
        live.losses += 1
        if (error := live.cannot_go_on(self.ring.terms.ring, LOSSES_MAX)) is not None:
            self._give_up(live, error, on_ring=on_ring)
            return
        if not on_ring:
            self._number_anew(live)
        live.held_tokens, live.moved_at = 0, now
        self._note_place(live)
        if live.timeline is not None:
            live.timeline.resumed(reason, now)
        if not live.on_hold:
            self._send(live)

    def _number_anew(self, live: LiveSequence) -> None:
        """Make it a new request for the ring, of which nothing is held."""
        del self._live[live.request_id]
        self.forecaster.sequence_left(live, time.monotonic(), has_ended=False)
        before = live.request_id
        live.begin_anew(self._take_number())
        if before in self._adopted:
            self._adopted = self._adopted - {before} | {live.request_id}
        self._live[live.request_id] = live

    def _give_up(self, live: LiveSequence, error: MolinkError, *, on_ring: bool) -> None:
        live.enqueue(error)
        if on_ring and not self.is_paused:
            self.links.send(Cancel(live.request_id))
        self._forget(live)

    async def choose_codec(self, wanted: str) -> None:
        """Take a codec, checked with the model's own text as far as `wanted` asks for."""
        self.codec = await checked_codec(self, self._set_codec, self.ring, wanted)
        self._set_codec(self.codec.codec)
        self.cache_use = CacheUse()  # What was checked were no users' prompts.

    def clear_cache(self) -> None:
        """Let the ring forget what it has cached; where it cannot hear of it, once it goes on."""
        self.forecaster.cache_lost()
        self._is_clear_due = True
        if not self.is_paused:
            self.links.send(ClearCache())
            self._is_clear_due = False

    def _set_codec(self, codec: str) -> None:
        self.links.send(SetCodec(codec))

    @property
    def requests_live(self) -> int:
        """Requests that it computes or that wait for it."""
        return len(self._live)

    def end(self, reason: str) -> None:
        """Fail what runs, and refuse what comes."""
        self.unready_reason = reason
        for live in self._live.values():
            live.enqueue(RingError(reason))

    def _submit(
        self,
        request: GenerationRequest,
        output: tuple[int, ...],
        stall_factor: float,
        number: int | None = None,
    ) -> LiveSequence:
        if self.unready_reason is not None:
            raise RingError(self.unready_reason)
        if len(self._live) >= REQUESTS_MAX:
            busy = f"The server is busy with {REQUESTS_MAX} requests: try again later."
            raise OverloadedError(busy)
        number = self._take_number() if number is None else number
        live = LiveSequence.of(number, request, output, stall_factor, self.card, time.monotonic())
        live.check_cut(self.ring.terms.ring)
        if (offer := live.offer(request.handed)) is not None and not self.is_paused:
            self.links.send(ChangeCache(offer))
        self._send(live)
        self._idle.clear()
        self._live[live.request_id] = live
        self._note_place(live)
        return live

    def _send(self, live: LiveSequence) -> None:
        """Have the ring compute a sequence, from the tokens that have come; while the ring is
        paused, once it goes on."""
        if not self.is_paused:
            self.links.send(Submit(live.request))
        self.forecaster.sequence_sent(live, self._live.values(), time.monotonic())

    def _hold(self, live: LiveSequence) -> None:
        """Have the ring forget a sequence whose reader is too slow; its tokens are kept here."""
        live.hold()
        if not self.is_paused:
            self.links.send(Cancel(live.request_id))
        self._number_anew(live)

    def _read_on(self, live: LiveSequence) -> None:
        """Its reader has taken an event: go on if it was too slow and has read what there was."""
        if live.on_hold and live.events.empty():
            live.on_hold, live.moved_at = False, time.monotonic()
            self._send(live)
            self._note_place(live)

    def _note_place(self, live: LiveSequence) -> None:
        """Keep on disk where the sequence is computed from now on."""
        if live.log is not None:
            number = self.ring.stages[0].assignment.ring
            live.log.submitted(Place(number, live.request_id, live.generated_tokens))

    def _take_number(self) -> int:
        self._next_request_id += 1
        return self._next_request_id - 1

    def _forget(self, live: LiveSequence) -> bool:
        """False for a sequence that has ended before."""
        was_live = self._live.pop(live.request_id, None) is not None
        if was_live:
            self.forecaster.sequence_left(live, time.monotonic(), has_ended=True)
        if not self._live:
            self._idle.set()
        return was_live

    def _take_sampled(self, message: Sampled) -> None:
        """Hand tokens out; those of requests that have ended are dropped. Raises StageError when
        they cannot be what was asked for."""
        now, rounds = time.monotonic(), tokens_of(message)
        next_id, vocabulary_size = self._next_request_id, self.card.vocabulary_size
        if (why := take_prompt_tokens(message, self._live, next_id, vocabulary_size)) is not None:
            raise self._tail_error(why)
        self._note_waits(message.waits, now)
        if (why := objection(rounds, self._live, next_id, vocabulary_size)) is not None:
            raise self._tail_error(why)
        for tokens in rounds:
            if (live := self._live.get(tokens.request_id)) is not None:
                self._hand_out(tokens, live, now)

    def _hand_out(self, tokens: RoundTokens, live: LiveSequence, now: float) -> None:
        self.tokens_sent += len(tokens.samples)
        for event in events_for(tokens, live, self.card.eos_token_ids, now):
            live.enqueue(event)
        self.forecaster.round_came(live, len(tokens.samples), tokens.rows, now)
        if live.is_behind and not tokens.is_end:
            self._hold(live)

    def _note_waits(self, waits: Iterable[tuple[int, float, int]], now: float) -> None:
        for request_id, waited_s, cached_tokens in waits:
            if (live := self._live.get(request_id)) is not None:
                self.forecaster.was_cached(live, cached_tokens)
                live.answered(waited_s, cached_tokens, self.cache_use, now)

    def _tail_error(self, what: str) -> StageError:
        """The end of the ring for something that its tail sent, which is held against it."""
        tail = self.ring.stages[-1]
        return tail.fail(f"{tail.name} has sent {what}.")
