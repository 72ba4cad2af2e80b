"""Queue of a shadow: it computes the rows that come, in the order in which they come.

A shadow computes the KV of a stage that serves, behind it, and passes nothing on. Its rows come
from the stage before, whenever the line has room, so a request may be released while rows of it
still wait for the device; on the ring itself the head sees to it that this never happens. Then all
that comes later waits as well, until that request can be forgotten: a request that was preempted
comes again under the same number, and must find no KV.

What cannot be computed here is dropped: the ring does not depend on a shadow, and what that lacks
is replayed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from molink_scheduler.events import (
    BatchArrived,
    BookOrder,
    Refuse,
    ReleaseArrived,
    RunBatch,
    SendRelease,
    StageEvent,
)
from molink_scheduler.stage.queue import StageQueue


@dataclass(slots=True)
class ShadowQueue(StageQueue):
    """Source of a shadow's work."""

    _waiting: deque[StageEvent] = field(init=False, default_factory=deque)
    """Events since a release that must wait, in order of arrival."""

    def handle(self, event: StageEvent, now: float) -> Sequence[BookOrder | Refuse]:
        """Queue rows, or forget a request, as soon as all before is done."""
        if isinstance(event, BatchArrived) and not event.batch.replay:
            return (Refuse("a shadow is sent replayed rows only"),)
        if not self._waiting and not self._must_wait(event):
            return super(ShadowQueue, self).handle(event, now)
        self._waiting.append(event)
        return ()

    def next_batch(
        self, link_bytes_per_s: float, now: float
    ) -> tuple[list[BookOrder], RunBatch | None]:
        """The next rows, and the requests that can be forgotten now."""
        return self._take_waiting(now), self.order.next_batch(now)

    def _take_waiting(self, now: float) -> list[BookOrder]:
        decisions: list[BookOrder] = []
        while self._waiting and not self._must_wait(self._waiting[0]):
            found = super(ShadowQueue, self).handle(self._waiting.popleft(), now)
            decisions += (one for one in found if isinstance(one, SendRelease))
        return decisions

    def _must_wait(self, event: StageEvent) -> bool:
        match event:
            case ReleaseArrived(release):
                return self.book.release_objection(release) is not None
            case _:
                return False
