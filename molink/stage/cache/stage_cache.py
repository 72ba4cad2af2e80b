"""Changes of a stage's cache of KV blocks: keep, drop, put away, bring back.

The head says what, by numbers; its engine knows where the blocks of each number are. Here they are
handed from one to the other: from the engine to the store below the device's memory, and back.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.engine_protocol.engine import BlocksIn, CachedBlocks
from molink.engine_protocol.values import Prepared, RowsKept
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.batch import CacheChange, Fetched
from molink_scheduler.kv.tiers import FETCHES_MAX, CacheTiers

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StageCache:
    """Cached blocks of one stage, wherever they are; for the stage's own thread."""

    device: CachedBlocks
    store: CacheStore | None = None
    """Store of the blocks; None: they leave the device's memory for good."""
    _read: deque[Fetched] = field(default_factory=lambda: deque(maxlen=FETCHES_MAX))
    _arriving: list[BlocksIn] = field(default_factory=list)
    """Blocks that are being filled."""

    @classmethod
    def of(
        cls,
        room: CacheRoom | None,
        device: CachedBlocks,
        layers: Prepared,
        wake: Callable[[], None],
    ) -> "StageCache":
        """Cache for a stage that has loaded; `wake` has its loop ask what is back. What is cached
        of layers that keep states stays in the device's memory."""
        cache = cls(device)
        if room is None or not (room.ram_bytes or room.disk_bytes):
            return cache
        if layers.loaded.state_slots is not None:
            log.warning("Its layers keep states: host memory and disk take none of its cache.")
            return cache

        def fetched(answer: Fetched) -> None:
            cache._read.append(answer)
            wake()

        cache.store = CacheStore(room, layers.block_bytes, fetched)
        cache.store.start(device, layers.kv_blocks)
        return cache

    @property
    def tiers(self) -> CacheTiers | None:
        """Room below the device's memory, as measured; None: there is none."""
        return None if self.store is None else self.store.tiers

    def tiers_of(self, layers: Prepared) -> CacheTiers | None:
        """Room and rates where more layers take the place of its own."""
        if self.store is None or layers.loaded.state_slots is not None:
            return None
        return self.store.tiers_of(layers.block_bytes)

    def change(self, change: CacheChange) -> None:
        """Do as the head says; what comes back is in `take_read` once it is there."""
        if self._arriving:
            self._settle([*change.dropped, *(one for _, some in change.put_away for one in some)])
        store = self.store
        leaving = self.device.blocks_out(change, copied=store is not None)
        if store is None:
            return
        for out in leaving:
            if out.numbers:
                store.put(out.tier, out.numbers, out.packed_BW)
            if out.lower:
                store.put(out.tier, out.lower, None)
        if dropped := list(change.dropped):
            store.drop(dropped)
        if change.fetch:
            arriving = self.device.blocks_in(change.fetched)
            self._arriving.append(arriving)
            store.fetch(change.fetch_id, arriving)

    def take_read(self) -> list[Fetched]:
        """Answers of fetches that have come since the last call. Raises StageError where blocks
        that were to come could not be copied in."""
        for arriving in self._arriving:
            arriving.check()
        return [self._read.popleft() for _ in range(len(self._read))]

    def go_on(self, kept: RowsKept, block_bytes: int) -> bool:
        """Whether what is cached stays in the ring's next epoch; else nothing is cached any more,
        and blocks are of this size from now on."""
        stays = kept.chains_stay and self.store is None
        if not stays:
            self.clear(block_bytes)
        return stays

    def clear(self, block_bytes: int) -> None:
        """Cache nothing, and blocks of this size from now on."""
        if self.store is not None:
            self.store.clear(block_bytes)
        self._read.clear()
        self._arriving.clear()
        self.device.blocks_out(CacheChange(retain=()), copied=False)

    def shed(self) -> None:
        """Drop the blocks cached in host memory: the host is short of it."""
        if self.store is not None:
            self.store.shed()

    def _settle(self, numbers: list[int]) -> None:
        """Wait for those of the blocks that are being filled: others may write there next. It is
        rare, because what comes back was asked for last."""
        self._arriving = [one for one in self._arriving if not one.is_there]
        for arriving in self._arriving:
            arriving.settle(numbers)
