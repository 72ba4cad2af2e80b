"""Number of decode micro-batches that circle the ring, and the most rows of the next one.

A running request belongs to no fixed group. Whenever the head's device is free and fewer than
`count` micro-batches are under way, the requests that are ready depart together, at most their even
share. So groups balance themselves as requests come and go, and a new count takes effect as batches
return: no request is moved while under way, and no token is lost. Who is left behind goes with the
next micro-batch, once; groups that stayed uneven rather cost everybody the difference in each cycle
(docs/decisions/0097). Fixed membership was tried first; it needed code to move requests between
groups and left groups uneven until another request joined.
"""

from dataclasses import dataclass, field

from molink_scheduler.batch import MICRO_BATCH_COUNT_MAX


@dataclass(slots=True)
class MicroBatches:
    """Slots of the decode micro-batches on one ring: which are taken, and how many there are."""

    count: int
    """How many may circle at a time; may be changed while some do."""
    _under_way: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MICRO_BATCH_COUNT_MAX:
            raise ValueError(
                f"the micro-batch count must be 1 to {MICRO_BATCH_COUNT_MAX}, got {self.count}"
            )

    def free_slot(self) -> int | None:
        """A slot for another micro-batch, None when `count` are out."""
        if len(self._under_way) >= self.count:
            return None
        return next(slot for slot in range(self.count) if slot not in self._under_way)

    def share(self, running_count: int, ready_count: int) -> int:
        """Requests that the next micro-batch takes along, of `ready_count` that could go, when
        `running_count` decode in all."""
        return min(ready_count, -(-running_count // self.count))

    def departed(self, slot: int) -> None:
        """A micro-batch took this slot."""
        self._under_way.add(slot)

    def returned(self, slot: int) -> None:
        """Free a slot whose micro-batch came back; one that was not under way changes nothing."""
        self._under_way.discard(slot)
