"""Bounded queues: no more is under way on a ring, or waits for a link, than the limits allow."""

from typing import Any

from molink_scheduler.batch import Batch, BatchClass
from molink_scheduler.events import BatchReturned, RunBatch, StageEvent
from molink_scheduler.head.scheduler import HeadScheduler
from molink_sim.checkers.checker import Checker, Place, RingLife
from molink_sim.scenario import Scenario

MESSAGES_WAITING_MAX = 4096
"""Messages that may wait on one link: `TRANSFERS_WAITING_MAX` of
`molink.transport.link.paced_link`, where reaching it is an error."""


class BoundedQueues(Checker):
    """Limit on what the head has under way, and on what waits for each link."""

    name = "bounded queues"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._waiting: dict[Place, int] = {}
        self._returns_seen: dict[int, BatchReturned] = {}
        """Returned batches, by identity: copies may follow."""
        self._decoding: dict[RingLife, set[int]] = {}
        """Micro-batches that decode on the ring."""
        self._planned: dict[RingLife, dict[int, int]] = {}
        self._returned: dict[RingLife, dict[int, int]] = {}
        """Prompt tokens of a request that have left the head, and that were back."""

    def ring_started(self, life: RingLife) -> None:
        """Count from nothing under way."""
        self._waiting |= dict.fromkeys(life.places, 0)
        self.went_on(life)

    def link_opened(self, place: Place) -> None:
        """Begin anew: nothing waits for the link."""
        self._waiting[place] = 0

    def went_on(self, life: RingLife) -> None:
        """Begin anew: nothing is under way."""
        self._decoding[life], self._planned[life], self._returned[life] = set(), {}, {}

    def offered(self, place: Place, message: Any, batch_class: BatchClass, size_bytes: int) -> None:
        """Count one more message that waits for the link."""
        self._waiting[place] += 1
        if self._waiting[place] > MESSAGES_WAITING_MAX:
            self.mistake(f"{self._waiting[place]} messages wait on the link of {place}")

    def delivered(self, place: Place, message: Any) -> None:
        """Count one message less that waits."""
        self._waiting[place] -= 1

    def taken(self, place: Place, message: StageEvent) -> None:
        """A batch is back; a copy changes nothing."""
        if isinstance(message, BatchReturned) and id(message) not in self._returns_seen:
            self._returns_seen[id(message)] = message
            if message.batch_class is BatchClass.DECODE:
                self._decoding[place.life].discard(message.micro_batch)
            for span in message.spans:
                returned = self._returned[place.life]
                returned[span.request_id] = max(span.end, returned.get(span.request_id, 0))

    def started(self, place: Place, run: RunBatch) -> None:
        """The head sends something round."""
        if place.index == 0 and isinstance(place.life.head, HeadScheduler):
            if run.batch.batch_class is BatchClass.DECODE:
                self._start_decode(place.life, run.batch.micro_batch)
            else:
                self._prefill(place.life, run.batch, place.life.head)

    def _start_decode(self, life: RingLife, micro_batch: int) -> None:
        decoding = self._decoding[life]
        if micro_batch in decoding:
            self.mistake(f"ring {life.number} had two micro-batches in place {micro_batch}")
        decoding.add(micro_batch)
        count_max = self._count_max(life)
        if len(decoding) > count_max:
            self.mistake(
                f"{len(decoding)} micro-batches circled on ring {life.number}, at most {count_max}"
            )

    def _count_max(self, life: RingLife) -> int:
        return self.scenario.system.micro_batches or 2 * len(life.places)

    def _prefill(self, life: RingLife, batch: Batch, head: HeadScheduler) -> None:
        planned, returned = self._planned[life], self._returned[life]
        for admission in batch.admissions:
            request_id = admission.request_id
            planned[request_id] = returned[request_id] = admission.kept_tokens
        for span in batch.spans:
            planned[span.request_id] = span.end
            if batch.replay:  # For the head alone: it never comes back.
                returned[span.request_id] = span.end
        rows = sum(max(0, end - returned.get(request, 0)) for request, end in planned.items())
        if rows > head.settings.prefill_tokens_in_flight_max:
            self.mistake(f"{rows} prompt tokens were under way on ring {life.number}")
