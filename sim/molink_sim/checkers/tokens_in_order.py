"""Tokens in order: computed one after the other at every stage, drawn one after the other.

Over the losses of stages too: a survivor goes on from a position that it holds, another stage
computes all from the first, and the tail draws what users have not had.

A stage that computed position 9 before position 8 would attend to garbage; a tail that drew one
position twice would send its user a token twice.
"""

from collections import Counter
from itertools import pairwise

from molink_scheduler.batch import Admission, Batch, Span
from molink_scheduler.events import RunBatch, SampledToken
from molink_scheduler.resume import Resume
from molink_sim.checkers.checker import Checker, Place, RingLife
from molink_sim.outcome import RequestOutcome
from molink_sim.ring.coordinator import request_number
from molink_sim.scenario import Scenario
from molink_sim.simulate import World


class TokensInOrder(Checker):
    """Order of the positions that stages compute and the tail draws."""

    name = "tokens in order"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._computed: dict[Place, dict[int, int]] = {}
        """Positions that a stage has computed of a request since its admission."""
        self._drafts: dict[Place, dict[int, int]] = {}
        """Number of drafts at the end of these, any of which may be computed again."""
        self._draws_at: dict[RingLife, dict[int, range]] = {}
        """Positions one of whose logits yields a request's next token: behind each of its drafts,
        as it may have come true."""
        self._had: Counter[int] = Counter()
        """Tokens of each request, by number, that the coordinator has taken."""

    def ring_started(self, life: RingLife) -> None:
        """Count from nothing computed."""
        self._computed |= {place: {} for place in life.places}
        self._drafts |= {place: {} for place in life.places}
        self._draws_at[life] = {}

    def joined(self, place: Place, resume: Resume) -> None:
        """Check that a stage goes on from what it keeps; what a shadow held is not looked into."""
        computed, kept = self._computed[place], dict(resume.keeps)
        for request_id, tokens in () if resume.fresh else kept.items():
            if computed.get(request_id, 0) < tokens:
                self.mistake(f"{place} keeps {tokens} tokens of request {request_id} it lacks")
        self._computed[place], self._drafts[place] = kept, {}

    def went_on(self, life: RingLife) -> None:
        """Forget tokens that were drawn and not taken: they are drawn again."""
        self._draws_at[life].clear()

    def sampled(self, life: RingLife, tokens: tuple[SampledToken, ...]) -> None:
        """Users have had these."""
        for token in tokens:
            self._had[request_number(token.request_id)] += 1

    def released(self, place: Place, request_id: int) -> None:
        """Forget a request that starts over, or ends."""
        self._computed[place].pop(request_id, None)
        self._drafts[place].pop(request_id, None)

    def started(self, place: Place, run: RunBatch) -> None:
        """Each span continues its request."""
        computed, drafts = self._computed[place], self._drafts[place]
        self._admit(place, run.batch, computed)
        for span in run.batch.spans:
            had, guessed = computed.get(span.request_id), drafts.pop(span.request_id, 0)
            if had is None or not had - guessed <= span.start <= had:
                self.mistake(
                    f"{place} computed request {span.request_id} from {span.start} on and had {had}"
                )
            computed[span.request_id] = span.end
            drafts[span.request_id] = len(span.drafts)
            if span.samples and place is place.life.places[-1]:
                self._draw(span, self._draws_at[place.life])

    def ended(self, world: World) -> None:
        """Users got all of their tokens, one after the other."""
        for request in world.coordinator.requests:
            self._check_answer(request)

    def _admit(self, place: Place, batch: Batch, computed: dict[int, int]) -> None:
        draws_at = self._draws_at[place.life]
        for admission in batch.admissions:
            request_id, kept = admission.request_id, admission.kept_tokens
            if kept and computed.get(request_id) != kept:
                self.mistake(f"{place} goes on with {kept} tokens of request {request_id}")
            computed[request_id] = kept
            if request_id not in draws_at:
                self._check_known(admission)
                known = admission.prompt_tokens + len(admission.output)
                draws_at[request_id] = range(known, known + 1)

    def _check_known(self, admission: Admission) -> None:
        """A request begins on a ring, or goes on, with the tokens that its user has had."""
        had, known = self._had[request_number(admission.request_id)], len(admission.output)
        if had != known:
            self.mistake(f"request {admission.request_id} goes on with {known} tokens, {had} came")

    def _draw(self, span: Span, draws_at: dict[int, range]) -> None:
        known, expected = span.known_end, draws_at.get(span.request_id, range(0))
        if known not in expected:
            self.mistake(
                f"request {span.request_id} drew a token after {known} tokens "
                f"and {list(expected)} were due"
            )
        draws_at[span.request_id] = range(known + 1, span.end + 2)

    def _check_answer(self, request: RequestOutcome) -> None:
        times_s, name = request.token_times_s, f"request {request.number}"
        if len(times_s) > request.output_tokens:
            self.mistake(f"{name} got {len(times_s)} tokens and asked for {request.output_tokens}")
        if request.finished and len(times_s) < request.output_tokens:
            self.mistake(f"{name} finished with {len(times_s)} of {request.output_tokens} tokens")
        if any(first > second for first, second in pairwise([request.arrived_s, *times_s])):
            self.mistake(f"{name} got tokens before its time")
