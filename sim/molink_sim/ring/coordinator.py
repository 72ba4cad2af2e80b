"""The coordinator's part: which ring serves a request, and when its tokens came out.

When a ring has lost a stage and goes on, its requests go on too, from the tokens that have come
here, as with `molink.coordinator.ring.client`. Those of a ring that has ended are computed
from their tokens by another one, or by the next.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from molink_scheduler.events import RequestCancelled, RequestSubmitted, SampledToken, StageEvent
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.resume import requests_to_resume
from molink_scheduler.routing.pace_estimator import UNKNOWN_PACE
from molink_scheduler.routing.ring_choice import Routing, choose_ring
from molink_scheduler.routing.ring_forecast import RingState
from molink_scheduler.token_ids import token_bytes
from molink_sim.clock import Clock
from molink_sim.network.link import Sent
from molink_sim.outcome import RequestOutcome
from molink_sim.ring.tail import TOKEN_ID
from molink_sim.scenario import RequestArrival

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
    requests: list[RequestOutcome] = field(init=False, default_factory=list)
    """All, in order of arrival; a request's number is its place."""
    _live: dict[int, _Live] = field(init=False, default_factory=dict)
    """Requests that have not ended, by number."""
    _prompts: dict[int, bytes] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.arrivals:
            self.clock.at(self.arrivals[0].at_s, self._arrived, self.arrivals[0])

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
            if token.finished:
                self._finish(request)
            elif (live := self._live.get(number)) is not None:
                live.held_tokens = request.input_tokens + len(request.token_times_s) - 1

    def is_done(self) -> bool:
        """Whether all have arrived and ended."""
        return not self._live and len(self.requests) == len(self.arrivals)

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
                live.number_anew()
                self._move(live)

    def ring_back(self, ring: int, epoch: int, submit: Callable[[Sent], None]) -> None:
        """Let a ring serve again, with nothing on it."""
        endpoint = self.rings[ring]
        endpoint.submit, endpoint.epoch, endpoint.is_up = submit, epoch, True
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
            live.outcome.ring = self._least_loaded(holding, live.outcome)
            self._submit(live)

    # -- requests --------------------------------------------------------------------------------

    def _arrived(self, arrival: RequestArrival) -> None:
        number = len(self.requests)
        outcome = RequestOutcome(
            number, 0, self.clock.now, arrival.input_tokens, arrival.output_tokens
        )
        outcome.ring = ring = self._choose_ring(outcome)
        self.requests.append(outcome)
        if number + 1 < len(self.arrivals):
            following = self.arrivals[number + 1]
            self.clock.at(max(self.clock.now, following.at_s), self._arrived, following)
        self._take(outcome, self.rings[ring])

    def _take(self, outcome: RequestOutcome, endpoint: RingEndpoint) -> None:
        live = _Live(outcome, outcome.number)
        if self._submission(live).request.tokens_max > endpoint.tokens_max:
            outcome.refused = True
        elif not endpoint.is_up:
            outcome.failed = True
        else:
            self._live[outcome.number] = live
            self._submit(live)

    def _submit(self, live: _Live) -> None:
        endpoint = self.rings[live.outcome.ring]
        endpoint.outstanding_tokens += live.tokens
        if not endpoint.is_paused:
            self._send(endpoint, self._submission(live))

    def _submission(self, live: _Live) -> RequestSubmitted:
        outcome = live.outcome
        prompt, sampling = self._prompt(outcome.input_tokens), SamplingParams(outcome.output_tokens)
        output = (TOKEN_ID,) * len(outcome.token_times_s)
        return RequestSubmitted(Request(live.request_id, prompt, sampling, output))

    def _send(self, endpoint: RingEndpoint, event: StageEvent) -> None:
        """Send a message to the head."""
        self.clock.at(
            self.clock.now + endpoint.one_way_s, endpoint.submit, Sent(endpoint.epoch, event)
        )

    def _choose_ring(self, outcome: RequestOutcome) -> int:
        """Least loaded ring of those that are up; the first of all when none is."""
        up = [ring for ring, endpoint in enumerate(self.rings) if endpoint.is_up]
        return self._least_loaded(up or range(len(self.rings)), outcome)

    def _least_loaded(self, rings: Sequence[int], outcome: RequestOutcome) -> int:
        """Prompts have no content here, so nothing is cached, and the load alone decides."""
        states = [
            RingState(UNKNOWN_PACE, outstanding_tokens=self.rings[ring].outstanding_tokens)
            for ring in rings
        ]
        asked = outcome.input_tokens, outcome.output_tokens
        return rings[choose_ring(Routing.LOAD, states, *asked)]

    def _finish(self, outcome: RequestOutcome) -> None:
        outcome.finished = True
        self._leave(outcome.number)

    def _leave(self, number: int) -> None:
        live = self._live.pop(number, None)
        if live is not None and not live.is_parked:
            self.rings[live.outcome.ring].outstanding_tokens -= live.tokens

    def _prompt(self, tokens: int) -> bytes:
        """Token ids without content, the same bytes for all prompts of a length."""
        if tokens not in self._prompts:
            self._prompts[tokens] = token_bytes((TOKEN_ID,)) * tokens
        return self._prompts[tokens]
