"""The coordinator's part: which ring serves a request, and when did its tokens come out?"""

from collections.abc import Callable
from dataclasses import dataclass, field

from molink_scheduler.events import RequestSubmitted, SampledToken, StageEvent
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.ring_choice import RingLoad, choose_ring
from molink_sim.clock import Clock
from molink_sim.outcome import RequestOutcome
from molink_sim.ring.tail import TOKEN_ID
from molink_sim.scenario import Arrival

__all__ = ["Coordinator", "RingEndpoint"]


@dataclass(slots=True)
class RingEndpoint:
    """A ring as the coordinator sees it."""

    submit: Callable[[StageEvent], None]
    """Hands a message to the head, as it arrives there."""
    one_way_s: float
    tokens_max: int
    """Largest request that the ring's KV can hold."""
    load: RingLoad = field(default_factory=RingLoad)
    is_up: bool = True
    """False while one of its nodes is gone."""


@dataclass(slots=True)
class Coordinator:
    """Requests in, tokens out."""

    clock: Clock
    rings: list[RingEndpoint]
    arrivals: list[Arrival]
    """In order of time."""
    requests: list[RequestOutcome] = field(init=False, default_factory=list)
    """All, in order of arrival; a request's number is its place."""
    unfinished: int = field(init=False, default=0)
    _rings_down: int = field(init=False, default=0)
    _loads: list[RingLoad] = field(init=False)
    _prompts: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._loads = [ring.load for ring in self.rings]
        if self.arrivals:
            self.clock.at(self.arrivals[0].at_s, self._arrived, self.arrivals[0])

    def sampled(self, tokens: tuple[SampledToken, ...]) -> None:
        """The tail's copy of its tokens is here."""
        now, requests = self.clock.now, self.requests
        for token in tokens:
            request = requests[token.request_id]
            request.token_times_s.append(now)
            if token.finished:
                self._finish(request)

    def ring_lost(self, ring: int) -> None:
        """A node is gone: what runs there ends with an error (no replay).

        As `molink.coordinator.requests.ring_client` does."""
        self.rings[ring].is_up = False
        self._rings_down += 1
        for request in self.requests:
            if request.ring == ring and not (request.finished or request.failed or request.refused):
                request.failed = True
                self._leave(request)

    def ring_back(self, ring: int, submit: Callable[[StageEvent], None]) -> None:
        """It serves again, with nothing on it."""
        endpoint = self.rings[ring]
        endpoint.submit, endpoint.is_up = submit, True
        self._rings_down -= 1

    def is_done(self) -> bool:
        """Whether all have arrived and ended."""
        return self.unfinished == 0 and len(self.requests) == len(self.arrivals)

    def _arrived(self, arrival: Arrival) -> None:
        number = len(self.requests)
        tokens = arrival.input_tokens + arrival.output_tokens
        ring = self._choose_ring(tokens)
        outcome = RequestOutcome(
            number, ring, self.clock.now, arrival.input_tokens, arrival.output_tokens
        )
        self.requests.append(outcome)
        if number + 1 < len(self.arrivals):
            following = self.arrivals[number + 1]
            self.clock.at(max(self.clock.now, following.at_s), self._arrived, following)
        self._submit(outcome, self.rings[ring])

    def _submit(self, outcome: RequestOutcome, endpoint: RingEndpoint) -> None:
        request = Request(
            outcome.number,
            self._prompt(outcome.input_tokens),
            SamplingParams(outcome.output_tokens),
        )
        if request.tokens_max > endpoint.tokens_max:
            outcome.refused = True
            return
        if not endpoint.is_up:
            outcome.failed = True
            return
        self.unfinished += 1
        endpoint.load.outstanding_tokens += outcome.input_tokens + outcome.output_tokens
        self.clock.at(
            self.clock.now + endpoint.one_way_s, endpoint.submit, RequestSubmitted(request)
        )

    def _choose_ring(self, tokens: int) -> int:
        """Among those that are up; the first when none is."""
        if self._rings_down in (0, len(self.rings)):
            return choose_ring(self._loads, tokens)
        up = [ring for ring, endpoint in enumerate(self.rings) if endpoint.is_up]
        return up[choose_ring([self._loads[ring] for ring in up], tokens)]

    def _finish(self, outcome: RequestOutcome) -> None:
        outcome.finished = True
        self._leave(outcome)

    def _leave(self, outcome: RequestOutcome) -> None:
        self.unfinished -= 1
        load = self.rings[outcome.ring].load
        load.outstanding_tokens -= outcome.input_tokens + outcome.output_tokens

    def _prompt(self, tokens: int) -> tuple[int, ...]:
        """Token ids without content, one tuple for all prompts of a length."""
        if tokens not in self._prompts:
            self._prompts[tokens] = (TOKEN_ID,) * tokens
        return self._prompts[tokens]
