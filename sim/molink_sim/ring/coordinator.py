"""The coordinator's part: which ring serves a request, and when its tokens came out.

When a ring has lost a stage and goes on, its requests go on too, from the tokens that have come
here, as with `molink.coordinator.ring.client`. Those of a ring that has ended are computed
from their tokens by another one, or by the next.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random

from molink_scheduler.batch import Admission
from molink_scheduler.events import RequestCancelled, RequestSubmitted, SampledToken, StageEvent
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.resume import requests_to_resume
from molink_scheduler.routing.admission import RingAdmission
from molink_scheduler.routing.ring_choice import choose_ring
from molink_scheduler.token_ids import token_bytes
from molink_sim.clock import Clock
from molink_sim.network.link import Sent
from molink_sim.outcome import RequestOutcome
from molink_sim.ring.outlook import RingOutlook
from molink_sim.ring.session_replay import SessionReplay
from molink_sim.ring.tail import TOKEN_ID
from molink_sim.scenario import EntrySpec, RequestArrival

LOSSES_MAX = 8
"""Losses that a request survives, as in `ring_client`: after more it may be what ends the rings."""

IDS_PER_LIFE = 1 << 20
"""A request that is computed anew is a new one for its ring: its id is larger by so much."""


def request_number(request_id: int) -> int:
    """The place in order of arrival of a request that a ring knows by this id."""
    return request_id % IDS_PER_LIFE


@dataclass(slots=True)
class RingEndpoint:
    """A ring as the coordinator sees it."""

    submit: Callable[[Sent], None]
    """Hands a message to the head, as it arrives there."""
    one_way_s: float
    tokens_max: int
    """Largest request that the ring's KV can hold."""
    keeps_states: bool
    """Whether layers keep states, which cannot go back: then no request goes on where it is."""
    survivors_stay: bool
    outlook: RingOutlook
    """What is known of the ring, for who comes next."""
    admission: RingAdmission
    epoch: int = 0
    outstanding_tokens: int = 0
    """Tokens of requests that have not ended, prompt and all that they may generate."""
    is_up: bool = True
    """False from its end until the next one is there."""
    is_paused: bool = False
    """Whether it has lost a stage and does not go on yet."""


@dataclass(slots=True)
class _Live:
    """A request that has not ended."""

    outcome: RequestOutcome
    request_id: int
    prompt: bytes
    held_tokens: int = 0
    """First tokens of the request of which all stages surely hold KV."""
    is_parked: bool = False
    """Whether no ring is there for it."""

    @property
    def tokens(self) -> int:
        return self.outcome.input_tokens + self.outcome.output_tokens

    def number_anew(self) -> None:
        self.request_id += IDS_PER_LIFE
        self.held_tokens = 0


@dataclass(slots=True)
class Coordinator:
    """Requests in, tokens out."""

    clock: Clock
    rings: list[RingEndpoint]
    arrivals: list[RequestArrival]
    """Requests to come, in order of time."""
    entry: EntrySpec
    sessions: SessionReplay
    random: Random
    """What `random` routing draws from."""
    at_once_max: int | None = None
    """Requests under way; who comes beyond is sent when another has ended."""
    requests: list[RequestOutcome] = field(init=False, default_factory=list)
    """All, in order of arrival; a request's number is its place."""
    _live: dict[int, _Live] = field(init=False, default_factory=dict)
    """Requests that have not ended, by number."""
    _prompts: dict[int, bytes] = field(init=False, default_factory=dict)
    _held: deque[RequestArrival] = field(init=False, default_factory=deque)
    """Arrivals that are not sent yet."""

    def __post_init__(self) -> None:
        if self.arrivals:
            self.clock.at(self.arrivals[0].at_s, self._next_arrived, 0)
        for arrival in self.sessions.first():
            self.clock.at(arrival.at_s, self._arrived, arrival)

    @property
    def unfinished(self) -> int:
        """Requests that have come and not ended."""
        return len(self._live)

    def takes(self, ring: int, epoch: int) -> bool:
        """Whether it takes what a ring sends in this epoch."""
        endpoint = self.rings[ring]
        return endpoint.is_up and not endpoint.is_paused and endpoint.epoch == epoch

    def sampled(self, tokens: tuple[SampledToken, ...]) -> None:
        """The tail's copy of its tokens is here."""
        now = self.clock.now
        for token in tokens:
            number = request_number(token.request_id)
            request = self.requests[number]
            request.token_times_s.append(now)
            live, endpoint = self._live.get(number), self.rings[request.ring]
            endpoint.outlook.token_came(number, now)
            if token.finished:
                self._finish(request)
            elif live is not None:
                live.held_tokens = request.input_tokens + len(request.token_times_s) - 1
                if live.held_tokens == request.input_tokens:
                    self._answer(live, endpoint)

    def is_done(self) -> bool:
        """Whether all have arrived and ended."""
        asked = len(self.arrivals) + self.sessions.asked_count
        return not self._live and len(self.requests) == asked

    def admitted(self, admissions: tuple[Admission, ...]) -> None:
        """A head has begun requests, with what was cached of them."""
        for admission in admissions:
            outcome = self.requests[request_number(admission.request_id)]
            if not outcome.token_times_s:
                outcome.cached_tokens = admission.cached_tokens
                outlook = self.rings[outcome.ring].outlook
                outlook.was_cached(outcome.number, admission.cached_tokens)

    # -- losses ----------------------------------------------------------------------------------

    def pause(self, ring: int) -> None:
        """A ring has lost a stage: take no more of its tokens and send nothing until it goes on."""
        self.rings[ring].is_paused = True

    def to_resume(self, ring: int) -> tuple[tuple[int, int], ...]:
        """The requests of a ring that can go on where they are, as `Resume` lists them."""
        endpoint = self.rings[ring]
        if endpoint.keeps_states:
            return ()
        held = {live.request_id: live.held_tokens for live in self._live_on(ring)}
        return requests_to_resume(held, endpoint.tokens_max)

    def go_on(
        self,
        ring: int,
        epoch: int,
        listed: tuple[tuple[int, int], ...],
        missing: Collection[int],
    ) -> None:
        """All stages are in the next epoch: those that were `listed` go on where they are, but for
        those that some stage is `missing`; others are computed anew."""
        endpoint = self.rings[ring]
        endpoint.epoch, endpoint.is_paused = epoch, False
        endpoint.outlook.mirror.clear()
        resumed = dict(listed).keys() - missing
        for request_id in dict(listed).keys() & missing:
            self._send(endpoint, RequestCancelled(request_id))
        for live in self._live_on(ring):
            if self._has_met_enough(live):
                if live.request_id in resumed:
                    self._send(endpoint, RequestCancelled(live.request_id))
                continue
            if live.request_id not in resumed:
                live.number_anew()
            live.held_tokens = 0
            self._send(endpoint, self._submission(live))

    def ring_lost(self, ring: int) -> None:
        """A ring has ended: what runs there goes to another one, or waits for the next; of systems
        whose survivors do not stay it ends with an error."""
        endpoint = self.rings[ring]
        endpoint.is_up, endpoint.is_paused = False, False
        for live in self._live_on(ring):
            if not endpoint.survivors_stay:
                self._fail(live)
            elif not self._has_met_enough(live):
                endpoint.outstanding_tokens -= live.tokens
                endpoint.outlook.left(live.outcome.number, 0)
                live.number_anew()
                self._move(live)

    def ring_back(self, ring: int, epoch: int, submit: Callable[[Sent], None]) -> None:
        """Let a ring serve again, with nothing on it."""
        endpoint = self.rings[ring]
        endpoint.submit, endpoint.epoch, endpoint.is_up = submit, epoch, True
        endpoint.outlook.mirror.clear()
        for live in [live for live in self._live.values() if live.is_parked]:
            self._move(live)

    def _live_on(self, ring: int) -> list[_Live]:
        return [
            live for live in self._live.values() if live.outcome.ring == ring and not live.is_parked
        ]

    def _has_met_enough(self, live: _Live) -> bool:
        """Count one more loss; whether the request has failed."""
        live.outcome.losses += 1
        if live.outcome.losses <= LOSSES_MAX:
            return False
        self._fail(live)
        return True

    def _fail(self, live: _Live) -> None:
        live.outcome.failed = True
        self._leave(live.outcome.number)

    def _move(self, live: _Live) -> None:
        """Submit a request to a ring that is up and has room for it, or let it wait for one."""
        holding = [
            ring
            for ring, endpoint in enumerate(self.rings)
            if endpoint.is_up and endpoint.tokens_max >= live.tokens
        ]
        live.is_parked = not holding
        if holding:
            live.outcome.ring = self._best(holding, live.outcome, live.prompt)
            self._submit(live)

    # -- requests --------------------------------------------------------------------------------

    def _next_arrived(self, index: int) -> None:
        self._arrived(self.arrivals[index])
        if index + 1 < len(self.arrivals):
            at_s = max(self.clock.now, self.arrivals[index + 1].at_s)
            self.clock.at(at_s, self._next_arrived, index + 1)

    def _arrived(self, arrival: RequestArrival) -> None:
        if self.at_once_max is not None and len(self._live) >= self.at_once_max:
            self._held.append(arrival)
            return
        lengths = arrival.input_tokens, arrival.output_tokens
        outcome = RequestOutcome(len(self.requests), 0, self.clock.now, *lengths)
        outcome.session = arrival.session
        prompt = arrival.prompt or self._prompt(arrival.input_tokens)
        outcome.ring = self._choose_ring(outcome, prompt)
        self.requests.append(outcome)
        self._take(_Live(outcome, outcome.number, prompt), self.rings[outcome.ring])

    def _take(self, live: _Live, endpoint: RingEndpoint) -> None:
        outcome = live.outcome
        if self._submission(live).request.tokens_max > endpoint.tokens_max:
            outcome.refused = True
        elif not endpoint.is_up:
            outcome.failed = True
        elif not self._admits(live, endpoint):
            outcome.refused = True
        else:
            self._live[outcome.number] = live
            self._submit(live)
            return
        self._follow(outcome)

    def _admits(self, live: _Live, endpoint: RingEndpoint) -> bool:
        state = endpoint.outlook.state(live.prompt, endpoint.outstanding_tokens)
        asked = live.outcome.input_tokens, self.entry.targets
        return endpoint.admission.decide(state, *asked).admitted

    def _answer(self, live: _Live, endpoint: RingEndpoint) -> None:
        """A first token has come: refuse the rest where the ring is to, at this point."""
        state = endpoint.outlook.state(b"", endpoint.outstanding_tokens)
        if not endpoint.admission.goes_on(state, self.entry.targets):
            live.outcome.refused = True
            self._send(endpoint, RequestCancelled(live.request_id))
            self._leave(live.outcome.number)

    def _follow(self, outcome: RequestOutcome) -> None:
        """A request has ended, one way or another: its session goes on, or the next one begins."""
        if outcome.session is not None:
            now, answered = self.clock.now, outcome.finished
            following = self.sessions.following(outcome.session, now, answered=answered)
            if following is not None:
                self.clock.at(following.at_s, self._arrived, following)
        if self._held:
            self._arrived(self._held.popleft())

    def _submit(self, live: _Live) -> None:
        endpoint = self.rings[live.outcome.ring]
        endpoint.outlook.sent(live.outcome.number, live.prompt, self.clock.now)
        endpoint.outstanding_tokens += live.tokens
        if not endpoint.is_paused:
            self._send(endpoint, self._submission(live))

    def _submission(self, live: _Live) -> RequestSubmitted:
        outcome = live.outcome
        output = (TOKEN_ID,) * len(outcome.token_times_s)
        sampling = SamplingParams(outcome.output_tokens)
        return RequestSubmitted(Request(live.request_id, live.prompt, sampling, output))

    def _send(self, endpoint: RingEndpoint, event: StageEvent) -> None:
        """Send a message to the head."""
        self.clock.at(
            self.clock.now + endpoint.one_way_s, endpoint.submit, Sent(endpoint.epoch, event)
        )

    def _choose_ring(self, outcome: RequestOutcome, prompt: bytes) -> int:
        """The best ring of those that are up; of all when none is."""
        up = [ring for ring, endpoint in enumerate(self.rings) if endpoint.is_up]
        return self._best(up or range(len(self.rings)), outcome, prompt)

    def _best(self, rings: Sequence[int], outcome: RequestOutcome, prompt: bytes) -> int:
        endpoints = [self.rings[ring] for ring in rings]
        states = [one.outlook.state(prompt, one.outstanding_tokens) for one in endpoints]
        asked, draw = (outcome.input_tokens, outcome.output_tokens), self.random.random()
        return rings[choose_ring(self.entry.routing, states, *asked, draw)]

    def _finish(self, outcome: RequestOutcome) -> None:
        outcome.finished = True
        live = self._live.get(outcome.number)
        if live is not None:
            answer = token_bytes((TOKEN_ID,)) * (outcome.output_tokens - 1)
            self.rings[outcome.ring].outlook.computes(live.prompt + answer)
        self._leave(outcome.number)

    def _leave(self, number: int) -> None:
        live = self._live.pop(number, None)
        if live is None:
            return
        endpoint, outcome = self.rings[live.outcome.ring], live.outcome
        if not live.is_parked:
            endpoint.outstanding_tokens -= live.tokens
            endpoint.outlook.left(number, len(outcome.token_times_s) * outcome.finished)
        self._follow(outcome)

    def _prompt(self, tokens: int) -> bytes:
        """Token ids without content, the same bytes for all prompts of a length."""
        if tokens not in self._prompts:
            self._prompts[tokens] = token_bytes((TOKEN_ID,)) * tokens
        return self._prompts[tokens]
