"""Bounded queues: no more is under way on a ring, or waits for a link, than the limits allow."""

from typing import Any

from molink_scheduler.batch import Batch, BatchClass
from molink_scheduler.events import BatchReturned, RequestSubmitted, RunBatch, StageEvent
from molink_scheduler.head.scheduler import HeadScheduler
from molink_sim.checkers.checker import Checker, Life, Place
from molink_sim.scenario import Scenario

__all__ = ["MESSAGES_WAITING_MAX", "BoundedQueues"]

MESSAGES_WAITING_MAX = 4096
"""On one link: `TRANSFERS_WAITING_MAX` of `molink.transport.link.paced_link`, where reaching it is
an error."""


class BoundedQueues(Checker):
    """Counts what the head has sent round, and what each link is still to hand over."""

    name = "bounded queues"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._waiting: dict[Place, int] = {}
        self._heard: dict[int, BatchReturned] = {}
        """Returned batches, by identity."""
        self._circling: dict[Life, set[int]] = {}
        """Micro-batches that decode on the ring."""
        self._planned: dict[Life, dict[int, int]] = {}
        self._returned: dict[Life, dict[int, int]] = {}
        """Prompt tokens of a request that have left the head, and that were back."""

    def ring_started(self, life: Life) -> None:
        """Nothing is under way."""
        self._waiting |= dict.fromkeys(life.places, 0)
        self._circling[life], self._planned[life], self._returned[life] = set(), {}, {}

    def offered(self, place: Place, message: Any, batch_class: BatchClass, size_bytes: int) -> None:
        """One more waits."""
        self._waiting[place] += 1
        if self._waiting[place] > MESSAGES_WAITING_MAX:
            self.mistake(f"{self._waiting[place]} messages wait on the link of {place}")

    def taken(self, place: Place, message: StageEvent) -> None:
        """One fewer waits; a copy changes nothing."""
        if isinstance(message, RequestSubmitted) or id(message) in self._heard:
            return
        self._waiting[place.before] -= 1
        if isinstance(message, BatchReturned):
            self._heard[id(message)] = message
            if message.batch_class is BatchClass.DECODE:
                self._circling[place.life].discard(message.micro_batch)
            for span in message.spans:
                returned = self._returned[place.life]
                returned[span.request_id] = max(span.end, returned.get(span.request_id, 0))

    def started(self, place: Place, run: RunBatch) -> None:
        """The head sends something round."""
        if place.index == 0 and isinstance(place.life.head, HeadScheduler):
            if run.batch.batch_class is BatchClass.DECODE:
                self._circle(place.life, run.batch.micro_batch)
            else:
                self._prefill(place.life, run.batch, place.life.head)

    def _circle(self, life: Life, micro_batch: int) -> None:
        circling = self._circling[life]
        if micro_batch in circling:
            self.mistake(f"ring {life.number} had two micro-batches in place {micro_batch}")
        circling.add(micro_batch)
        count_max = self._count_max(life)
        if len(circling) > count_max:
            self.mistake(
                f"{len(circling)} micro-batches circled on ring {life.number}, at most {count_max}"
            )

    def _count_max(self, life: Life) -> int:
        return self.scenario.system.micro_batches or 2 * len(life.places)

    def _prefill(self, life: Life, batch: Batch, head: HeadScheduler) -> None:
        planned, returned = self._planned[life], self._returned[life]
        for admission in batch.admissions:
            planned[admission.request_id] = returned[admission.request_id] = 0
        for span in batch.spans:
            planned[span.request_id] = span.end
        rows = sum(max(0, end - returned.get(request, 0)) for request, end in planned.items())
        if rows > head.settings.prefill_tokens_in_flight_max:
            self.mistake(f"{rows} prompt tokens were under way on ring {life.number}")
