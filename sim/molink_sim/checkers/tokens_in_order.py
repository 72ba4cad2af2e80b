"""Tokens in order: computed one after the other at every stage, drawn one after the other.

A stage that computed position 9 before position 8 would attend to garbage; a tail that drew one
position twice would send its user a token twice.
"""

from itertools import pairwise

from molink_scheduler.batch import Batch, Span
from molink_scheduler.events import RunBatch
from molink_sim.checkers.checker import Checker, Epoch, Place
from molink_sim.outcome import RequestOutcome
from molink_sim.scenario import Scenario
from molink_sim.simulate import World

__all__ = ["TokensInOrder"]


class TokensInOrder(Checker):
    """Order of the positions that stages compute and the tail draws."""

    name = "tokens in order"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._computed: dict[Place, dict[int, int]] = {}
        """Positions that a stage has computed of a request since its admission."""
        self._draws_at: dict[int, int] = {}
        """The position whose logits yield a request's next token."""

    def ring_started(self, epoch: Epoch) -> None:
        """Count from nothing computed."""
        self._computed |= {place: {} for place in epoch.places}

    def released(self, place: Place, request_id: int) -> None:
        """It starts over, or ends."""
        self._computed[place].pop(request_id, None)

    def started(self, place: Place, run: RunBatch) -> None:
        """Each span continues its request."""
        computed = self._computed[place]
        self._admit(run.batch, computed)
        for span in run.batch.spans:
            if computed.get(span.request_id) != span.start:
                self.mistake(
                    f"{place} computed request {span.request_id} from {span.start} on "
                    f"and had {computed.get(span.request_id)}"
                )
            computed[span.request_id] = span.end
            if span.samples and place is place.epoch.places[-1]:
                self._draw(span)

    def ended(self, world: World) -> None:
        """Users got all of their tokens, one after the other."""
        for request in world.coordinator.requests:
            self._check_answer(request)

    def _admit(self, batch: Batch, computed: dict[int, int]) -> None:
        for admission in batch.admissions:
            computed[admission.request_id] = 0
            self._draws_at.setdefault(admission.request_id, admission.prompt_tokens)

    def _draw(self, span: Span) -> None:
        expected = self._draws_at.get(span.request_id)
        if span.end != expected:
            self.mistake(
                f"request {span.request_id} drew a token after {span.end} tokens "
                f"and {expected} were due"
            )
        self._draws_at[span.request_id] = span.end + 1

    def _check_answer(self, request: RequestOutcome) -> None:
        times_s, name = request.token_times_s, f"request {request.number}"
        if len(times_s) > request.output_tokens:
            self.mistake(f"{name} got {len(times_s)} tokens and asked for {request.output_tokens}")
        if request.finished and len(times_s) < request.output_tokens:
            self.mistake(f"{name} finished with {len(times_s)} of {request.output_tokens} tokens")
        if any(first > second for first, second in pairwise([request.arrived_s, *times_s])):
            self.mistake(f"{name} got tokens before its time")
