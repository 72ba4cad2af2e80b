"""Prefill is not starved: decode goes first, but not for ever, on no device and on no link."""

from dataclasses import dataclass
from typing import Any

from molink_scheduler.batch import BatchClass
from molink_scheduler.events import BatchArrived, BatchReturned, RunBatch, StageEvent
from molink_scheduler.link.priority_queues import DECISIONS_MAX
from molink_scheduler.timing.steps import DECODES_BEFORE_PREFILL_MAX
from molink_sim.checkers.checker import Checker, Place, RingLife
from molink_sim.scenario import Scenario

DECODES_MAX = 3 * DECODES_BEFORE_PREFILL_MAX
"""Decode steps in a row while prefill waits for the device: a run of them between the layers of a
step, one before the next, and one more while `PrefillBudget` waits for decode that is due."""


@dataclass(slots=True)
class _Prompt:
    """A prompt as its head knows it."""

    tokens: int
    planned: int = 0
    returned: int = 0

    @property
    def is_waiting(self) -> bool:
        """Whether more of it could leave, and nothing of it is on the way."""
        return self.returned == self.planned < self.tokens


class PrefillServed(Checker):
    """Limit on the decode that passes prefill which waits."""

    name = "prefill not starved"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._prompts: dict[RingLife, dict[int, _Prompt]] = {}
        self._waiting_rows: dict[Place, int] = {}
        """Arrived at the stage and not computed."""
        self._passed: dict[Place, int] = {}
        """Decode steps since prefill's last turn on the device."""
        self._unsent_bytes: dict[Place, int] = {}
        """Bytes of prefill that wait on each link."""
        self._passed_on_link: dict[Place, int] = {}

    def ring_started(self, life: RingLife) -> None:
        """Count from nothing waiting."""
        self.went_on(life)
        for place in life.places:
            self.link_opened(place)

    def link_opened(self, place: Place) -> None:
        """Begin anew: nothing waits for the link."""
        self._unsent_bytes[place] = self._passed_on_link[place] = 0

    def went_on(self, life: RingLife) -> None:
        """Begin anew: nothing has arrived."""
        self._prompts[life] = {}
        for book in (self._waiting_rows, self._passed):
            book.update(dict.fromkeys(life.places, 0))

    def taken(self, place: Place, message: StageEvent) -> None:
        """Prefill has arrived, or is back at the head."""
        if isinstance(message, BatchArrived) and message.batch.batch_class is BatchClass.PREFILL:
            self._waiting_rows[place] += message.batch.tokens
        elif isinstance(message, BatchReturned):
            prompts = self._prompts[place.life]
            for span in message.spans:
                if (prompt := prompts.get(span.request_id)) is not None:
                    prompt.returned = max(prompt.returned, span.end)

    def released(self, place: Place, request_id: int) -> None:
        """Forget a prompt that waits no more, or starts over."""
        if place.index == 0:
            self._prompts[place.life].pop(request_id, None)

    def started(self, place: Place, run: RunBatch) -> None:
        """A turn of either class on the device."""
        if run.batch.batch_class is BatchClass.PREFILL:
            self._passed[place] = 0
            self._compute_prefill(place, run)
        elif self._is_prefill_waiting(place):
            self._passed[place] += 1
            if self._passed[place] > DECODES_MAX:
                self.mistake(f"{self._passed[place]} decode steps passed prefill at {place}")
        else:
            self._passed[place] = 0

    def offered(self, place: Place, message: Any, batch_class: BatchClass, size_bytes: int) -> None:
        """Prefill waits for the link."""
        if batch_class is BatchClass.PREFILL:
            self._unsent_bytes[place] += size_bytes

    def carried(self, place: Place, batch_class: BatchClass, size_bytes: int) -> None:
        """A turn of either class on the link."""
        if batch_class is BatchClass.PREFILL:
            left_bytes = self._unsent_bytes[place] - size_bytes
            self._unsent_bytes[place] = max(0, left_bytes)  # It may be repeated.
            self._passed_on_link[place] = 0
        elif self._unsent_bytes[place] > 0:
            self._passed_on_link[place] += 1
            if self._passed_on_link[place] > DECISIONS_MAX:
                passed = self._passed_on_link[place]
                self.mistake(f"{passed} decode batches passed prefill on the link of {place}")

    def _compute_prefill(self, place: Place, run: RunBatch) -> None:
        if place.index:
            self._waiting_rows[place] -= run.batch.tokens
            return
        prompts = self._prompts[place.life]
        for admission in run.batch.admissions:
            tokens = admission.prompt_tokens + len(admission.output)
            kept = admission.kept_tokens
            prompts[admission.request_id] = _Prompt(tokens, kept, kept)
        for span in run.batch.spans:
            prompts[span.request_id].planned = span.end

    def _is_prefill_waiting(self, place: Place) -> bool:
        if place.index:
            return self._waiting_rows[place] > 0
        return any(prompt.is_waiting for prompt in self._prompts[place.life].values())
