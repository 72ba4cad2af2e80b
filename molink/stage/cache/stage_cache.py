"""What a stage does with its KV blocks when its cache changes: keep, drop, put away, bring back.

The head says what, by numbers; here is where the blocks of each number are. A stage of several
parts has blocks of one number in all of them, which leave and come back as one.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.packed_blocks import PackedBlocks
from molink.engine.step.extended_stage import Executor, parts_of
from molink.engine.step.stage import StageExecutor
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.batch import CacheChange, Fetched
from molink_scheduler.kv.tiers import FETCHES_MAX, CacheTiers

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StageCache:
    """Cached blocks of one stage, wherever they are; for the stage's own thread."""

    store: CacheStore | None = None
    """Store of the blocks; None: they leave the device's memory for good."""
    _read: deque[Fetched] = field(default_factory=lambda: deque(maxlen=FETCHES_MAX))
    _arriving: list[ArrivingBlocks] = field(default_factory=list)
    """Blocks that are being filled."""

    @classmethod
    def of(
        cls, room: CacheRoom | None, executor: Executor, wake: Callable[[], None]
    ) -> "StageCache":
        """Cache for a stage that has loaded; `wake` has its loop ask what is back. What is cached
        of layers that keep states stays in the device's memory."""
        blocks = _packed(parts_of(executor))
        wanted = room is not None and (room.ram_bytes or room.disk_bytes)
        if room is None or not wanted:
            return cls()
        if executor.state_slots is not None:
            log.warning("Its layers keep states: host memory and disk take none of its cache.")
            return cls()
        cache = cls()

        def fetched(answer: Fetched) -> None:
            cache._read.append(answer)
            wake()

        cache.store = CacheStore(room, blocks.block_bytes, fetched)
        cache.store.start(blocks)
        return cache

    @property
    def tiers(self) -> CacheTiers | None:
        """Room below the device's memory, as measured; None: there is none."""
        return None if self.store is None else self.store.tiers

    def tiers_of(self, executor: Executor) -> CacheTiers | None:
        """Room and rates where an executor of more layers takes the place of its own."""
        if self.store is None or executor.state_slots is not None:
            return None
        return self.store.tiers_of(_packed(parts_of(executor)).block_bytes)

    def change(self, parts: Sequence[StageExecutor], change: CacheChange) -> None:
        """Do as the head says; what comes back is in `take_read` once it is there."""
        if change.retain is not None:
            cached = parts[0].kv.cached_numbers()
            self._leave(parts, [number for number in cached if not change.retains(number)])
        for part in parts:
            for kept in change.keep:
                part.kv.keep(kept.request_id, kept.first_block, kept.numbers)
        if self._arriving:
            self._settle([*change.dropped, *(one for _, some in change.put_away for one in some)])
        for tier, numbers in change.put_away:
            self._put_away(parts, tier, numbers)
        dropped = list(change.dropped)
        self._leave(parts, [number for number in dropped if parts[0].kv.has(number)])
        if self.store is not None and dropped:
            self.store.drop(dropped)
        if self.store is not None and change.fetch:
            arrivals = [part.arrivals.bring_back(part.kv, change.fetched) for part in parts]
            self._arriving += arrivals
            self.store.fetch(change.fetch_id, arrivals, _packed(parts))

    def take_read(self) -> list[Fetched]:
        """Answers of fetches that have come since the last call. Raises StageError where blocks
        that were to come could not be copied in."""
        for arriving in self._arriving:
            arriving.check()
        return [self._read.popleft() for _ in range(len(self._read))]

    def clear(self, executor: Executor) -> None:
        """Cache nothing, in the executor that the stage has from now on."""
        parts = parts_of(executor)
        if self.store is not None:
            self.store.clear(_packed(parts).block_bytes)
        self._read.clear()
        self._arriving.clear()
        for part in parts:
            part.kv.drop_all()

    def shed(self) -> None:
        """Drop the blocks cached in host memory: the host is short of it."""
        if self.store is not None:
            self.store.shed()

    def _put_away(self, parts: Sequence[StageExecutor], tier: int, numbers: Sequence[int]) -> None:
        """Blocks go to a lower tier, from the device or from the one above."""
        near = [number for number in numbers if parts[0].kv.has(number)]
        if self.store is not None and near:
            taken = _packed(parts).take([part.kv.places(near) for part in parts])
            self.store.put(tier, near, taken)
        if self.store is not None and len(near) < len(numbers):
            self.store.put(tier, [number for number in numbers if number not in near], None)
        self._leave(parts, near)

    def _settle(self, numbers: Sequence[int]) -> None:
        """Wait for those of the blocks that are being filled: others may write there next. It is
        rare, because what comes back was asked for last. What a slow disk is still to read is not
        waited for: it is filled no more."""
        self._arriving = [one for one in self._arriving if not one.is_there]
        for arriving in self._arriving:
            if arriving.has_any(numbers) and not arriving.give_up(numbers):
                arriving.wait()

    def _leave(self, parts: Sequence[StageExecutor], numbers: Sequence[int]) -> None:
        for part in parts:
            part.kv.drop(numbers)


def _packed(parts: Sequence[StageExecutor]) -> PackedBlocks:
    return PackedBlocks(tuple(part.kv_memory for part in parts))
