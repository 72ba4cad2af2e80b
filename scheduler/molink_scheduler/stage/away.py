"""Record of cached blocks below a stage's device memory, and of those that come back.

Part of a stage's book (`book`): here is which number is in which tier, and who has answered about
a fetch. A fetch is passed on when both the stage's own reader and all stages before have answered.
Blocks of it may be dropped before: the head has given it up, and its answer is still passed on.

Pure: says what is wrong, drops nothing itself.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain

from molink_scheduler.batch import CacheChange, Fetched
from molink_scheduler.kv.tiers import FETCHES_MAX, CacheTiers


@dataclass(slots=True)
class _Reading:
    """Fetch of cached blocks and its two answers."""

    numbers: tuple[int, ...]
    """But for those that were dropped since."""
    blocks: int
    read: Fetched | None = None
    """Answer of this stage; None: it still reads."""
    arrived: Fetched | None = None
    """Joint answer of the stages before; None: it has not arrived."""


@dataclass(slots=True)
class AwayBook:
    """Cached blocks of one stage that are not in its device's memory."""

    tiers: CacheTiers
    tier_of: dict[int, int] = field(init=False, default_factory=dict)
    """Tier of each block, by the block's number."""
    _counts: list[int] = field(init=False, default_factory=lambda: [0, 0, 0])
    _readings: dict[int, _Reading] = field(init=False, default_factory=dict)

    @classmethod
    def of(cls, tiers: CacheTiers | None) -> "AwayBook":
        """Book of a ring that has such tiers, if it has any."""
        return cls(tiers or CacheTiers())

    def objection(self, change: CacheChange, blocks_free: int) -> str | None:
        """Why blocks cannot go or come so, if all that leave device memory are there."""
        for tier, numbers in change.put_away:
            if self._counts[tier] + len(numbers) > self.tiers.capacity(tier):
                return "more cached blocks are put away than there is room for"
            if any(self.tier_of.get(number, 0) >= tier for number in numbers):
                return "cached blocks are put away that are away already"
        if not change.fetch:
            return None
        if len(self._readings) >= FETCHES_MAX or change.fetch_id in self._readings:
            return f"fetch {change.fetch_id} of cached blocks is one too many"
        if len(change.fetched) > blocks_free:
            return f"{len(change.fetched)} blocks are to come back, {blocks_free} are free"
        if any(number not in self.tier_of for number in change.fetched):
            return "cached blocks are to come back that are not away"
        return None

    def put(self, number: int, tier: int) -> None:
        """A block is in this tier from now on."""
        self.take(number)
        self.tier_of[number] = tier
        self._counts[tier] += 1

    def take(self, number: int) -> bool:
        """A block is in no tier below any more; whether it was."""
        tier = self.tier_of.pop(number, None)
        if tier is not None:
            self._counts[tier] -= 1
        return tier is not None

    def begin(self, change: CacheChange) -> None:
        """Blocks begin to come back, as the change says."""
        self._readings[change.fetch_id] = _Reading(change.fetched, len(change.fetched))

    @property
    def reading(self) -> frozenset[int]:
        """Blocks that come back, and that the stage's own reader has not answered for."""
        open_ones = (one.numbers for one in self._readings.values() if one.read is None)
        return frozenset(chain.from_iterable(open_ones))

    def give_up(self, numbers: Collection[int]) -> None:
        """Forget blocks that come back no more: they are dropped."""
        for reading in self._readings.values():
            reading.numbers = tuple(one for one in reading.numbers if one not in numbers)

    def arrived_objection(self, fetched: Fetched) -> str | None:
        """Why the stages before cannot have answered so."""
        reading = self._readings.get(fetched.fetch_id)
        is_new = reading is not None and reading.arrived is None
        if is_new and reading is not None and fetched.blocks <= reading.blocks:
            return None
        return f"nothing was to come back as fetch {fetched.fetch_id}, or less of it"

    def arrived(self, fetched: Fetched) -> Fetched | None:
        """Note that all stages before have answered; the answer to pass on."""
        self._readings[fetched.fetch_id].arrived = fetched
        return self._answer(fetched.fetch_id)

    def read(self, fetched: Fetched) -> tuple[tuple[int, ...], Fetched | None]:
        """Note that the stage has read its blocks: their numbers, and the answer to pass on."""
        reading = self._readings[fetched.fetch_id]
        reading.read = fetched
        return reading.numbers, self._answer(fetched.fetch_id)

    def _answer(self, fetch_id: int) -> Fetched | None:
        reading = self._readings[fetch_id]
        if reading.read is None or reading.arrived is None:
            return None
        del self._readings[fetch_id]
        return Fetched(fetch_id, min(reading.read.blocks, reading.arrived.blocks))
