"""How many decode micro-batches circle the ring, and how large the next one may be.

A running request belongs to no fixed group. Whenever the head's device is free and fewer than
`count` micro-batches are out, those at home depart together, at most their even share. So groups
balance themselves as requests come and go, and a new count takes effect as batches return: nobody
is moved while under way, and no token is lost. Nobody is left at home for half a round either, only
because shares are even: the last free place takes one or two more. Fixed membership was tried
first; it needed code to move requests between groups and left groups uneven until somebody joined.
"""

from dataclasses import dataclass, field

__all__ = ["MICRO_BATCH_COUNT_MAX", "MicroBatches"]

MICRO_BATCH_COUNT_MAX = 64
"""Twice the longest ring that we expect; beyond it every micro-batch is nearly empty."""

UNEVEN_SHARE = 0.25
"""How far a micro-batch may grow over its even share rather than leave somebody behind."""


@dataclass(slots=True)
class MicroBatches:
    """The places on the ring that decode micro-batches may take."""

    count: int
    """How many may circle at a time; may be changed while some do."""
    _circling: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MICRO_BATCH_COUNT_MAX:
            raise ValueError(
                f"the micro-batch count must be 1 to {MICRO_BATCH_COUNT_MAX}, got {self.count}"
            )

    @property
    def circling_count(self) -> int:
        """Micro-batches that are under way."""
        return len(self._circling)

    def free_place(self) -> int | None:
        """A place for another micro-batch, None when `count` are out."""
        if len(self._circling) >= self.count:
            return None
        return next(place for place in range(self.count) if place not in self._circling)

    def share(self, running_count: int, at_home: int) -> int:
        """Requests that the next micro-batch takes along, of `at_home` that could go, when
        `running_count` decode in all."""
        even = -(-running_count // self.count)
        is_last = len(self._circling) >= self.count - 1
        most = even + max(1, int(UNEVEN_SHARE * even)) if is_last else even
        return at_home if at_home <= most else even

    def departed(self, place: int) -> None:
        """A micro-batch took this place."""
        self._circling.add(place)

    def returned(self, place: int) -> None:
        """Its micro-batch came back; one that was not out is fine."""
        self._circling.discard(place)
