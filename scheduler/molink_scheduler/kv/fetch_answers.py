"""Fetches of cached blocks that one stage has begun, and who has answered.

A fetch is passed on when both the stage's own reader and all stages before have answered. Blocks of
it may be dropped before: the head has given it up, and its answer is still passed on.

Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from molink_scheduler.kv.changes import FetchBlocks, Fetched
from molink_scheduler.kv.tiers import FETCHES_MAX


@dataclass(slots=True)
class _Reading:
    """Fetch of cached blocks and its two answers."""

    numbers: set[int]
    """Blocks of the fetch, but for those that were dropped since."""
    blocks: int
    read: Fetched | None = None
    """Answer of this stage; None: it still reads."""
    arrived: Fetched | None = None
    """Joint answer of the stages before; None: it has not arrived."""


@dataclass(slots=True)
class FetchAnswers:
    """Answers to the fetches that are under way."""

    _readings: dict[int, _Reading] = field(init=False, default_factory=dict)

    def objection(self, fetch_id: int) -> str | None:
        """Why no fetch of this number can begin."""
        if len(self._readings) >= FETCHES_MAX or fetch_id in self._readings:
            return f"fetch {fetch_id} of cached blocks is one too many"
        return None

    def begin(self, change: FetchBlocks) -> None:
        """Blocks begin to come back, as the change says."""
        numbers = set(change.numbers)
        self._readings[change.fetch_id] = _Reading(numbers, len(numbers))

    def is_read(self, number: int) -> bool:
        """Whether the stage's own reader is still to answer for a block."""
        return any(one.read is None and number in one.numbers for one in self._readings.values())

    def give_up(self, numbers: Collection[int]) -> None:
        """Forget blocks that come back no more: they are dropped."""
        for reading in self._readings.values():
            reading.numbers.difference_update(numbers)

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

    def read(self, fetched: Fetched) -> tuple[set[int], Fetched | None]:
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
