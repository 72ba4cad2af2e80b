"""Way of a head from one capacity to another, while its ring serves.

A lower one counts at once: the ledger then has less than none free, so nobody is admitted or grows.
What is cached and in nobody's use goes first, then the newest requests of the lowest priority,
until the rest fits; these wait and are computed again. What is under way cannot be taken back, so
that may take a round. When all fits, the stages are told, behind the orders that made it fit
(`kv.capacity`). A higher one counts at once, too, because all stages have the places by then.

Pure.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from molink_scheduler.events import BookOrder, CapacityChosen, RoomOffered, SendCapacity
from molink_scheduler.head.kv_book import KvBook
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.capacity import RingCapacity, StageRoom


@dataclass(slots=True)
class ChangingCapacity:
    """Capacity of a ring, and what is said of it that stages have not been told yet."""

    book: KvBook
    room: StageRoom
    """Blocks that the head has itself."""
    _untold: RingCapacity | None = field(init=False, default=None)

    def changed(self, event: CapacityChosen | RoomOffered) -> list[BookOrder]:
        """Count with another capacity, or offer other places of the head's own, from now on; stages
        hear of it with the next batch (`orders`)."""
        if isinstance(event, RoomOffered):
            self.room.offer(event.blocks)
        else:
            self.book.ledger.resize(event.capacity.blocks)
            self._untold = event.capacity
        return []

    def fit(
        self,
        sequences: Collection[Sequence],
        settle: Callable[[Sequence], list[BookOrder]],
    ) -> list[BookOrder]:
        """Preempt those for whom a lower capacity has no room; `settle` releases one of which
        nothing is under way."""
        orders: list[BookOrder] = []
        while (victim := self._victim(sequences)) is not None:
            victim.preempting = True
            orders += settle(victim)
        return orders

    def _victim(self, sequences: Collection[Sequence]) -> Sequence | None:
        """The request that has to give its blocks back next, besides those that are about to; None:
        all fits, or will."""
        ledger = self.book.ledger
        if self._untold is None or ledger.blocks_free >= 0:
            return None
        self.book.cache.make_room(0, "")
        held = [one for one in sequences if ledger.blocks_of(one.request_id)]
        coming = sum(ledger.blocks_of(one.request_id) for one in held if one.stopping)
        if self.book.blocks_available + coming >= 0:
            return None
        going_on = (one for one in held if not one.stopping)
        return max(going_on, key=lambda one: one.request.order, default=None)

    def orders(self) -> list[SendCapacity]:
        """What stages are told now, behind all other orders: nothing before all fits."""
        if self._untold is None or self.book.ledger.blocks_free < 0:
            return []
        told, self._untold = self._untold, None
        self.room.counted(told)
        return [SendCapacity(told.for_next, self.room.blocks)]
