"""Changes of a stage's cache of KV blocks: keep, drop, put away, bring back.

The head says what, by numbers; its engine knows where the blocks of each number are. Here they are
handed from one to the other: from the engine to the store below the device's memory, and back.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

from molink.engine_protocol.engine import BlocksIn, CachedBlocks
from molink.engine_protocol.values import Prepared, RowsKept
from molink.hardware.host import read_main_memory
from molink.stage.cache.host_share import HostShare, host_share
from molink.stage.cache.host_watch import HostWatch
from molink.stage.cache.lower_store import EmptyStore, LowerStore
from molink.stage.cache.pair import StagePair
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.health import StageHealth
from molink.stage_protocol.messages import (
    BetweenSteps,
    LinkSteered,
    SetCacheRam,
    SetPair,
    Steered,
    Steering,
)
from molink_scheduler.kv.changes import (
    AwayBlocks,
    CacheChange,
    DropBlocks,
    FetchBlocks,
    Fetched,
    FoldBlocks,
    KeepBlocks,
    LowerBlocks,
    RetainBlocks,
    TakeBlocks,
)
from molink_scheduler.kv.tiers import FETCHES_MAX, CacheTiers

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StageCache:
    """Cached blocks of one stage, wherever they are; for the stage's own thread."""

    device: CachedBlocks
    store: LowerStore = field(default_factory=EmptyStore)
    """Store of the blocks that leave the device's memory."""
    host: HostWatch = field(default_factory=HostWatch)
    """Watch of the host memory that the store takes."""
    pair: StagePair = field(default_factory=StagePair)
    """End of the hand-over between this stage and one of another ring."""
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
        identity: bytes = b"",
        pair_of: Callable[[Callable[[Fetched], None]], StagePair] = lambda fetched: StagePair(),
    ) -> "StageCache":
        """Cache for a stage that has loaded; `wake` has its loop ask what is back. What is cached
        of layers that keep states stays in the device's memory. `identity`: of whose KV it may
        believe what the process before has left. `pair_of`: its end of a hand-over, which says so
        when blocks are sure."""
        cache = cls(device)

        def fetched(answer: Fetched) -> None:
            cache._read.append(answer)
            wake()

        if layers.loaded.state_slots is None:
            cache.pair = pair_of(fetched)
        if room is None or room.is_empty:
            return cache
        if layers.loaded.state_slots is not None:
            log.warning(
                "Its layers keep states or windows: host memory and disk take none of its cache."
            )
            return cache

        share = _host_share(room, layers)
        kept = room.kept and room.kept.for_layers(identity)
        taken = replace(room, ram_bytes=share.taken_bytes, kept=kept)
        if not taken.is_empty:
            store = CacheStore(taken, layers.block_bytes, fetched)
            store.start(device, layers.kv_blocks)
            cache.store = store
        cache.host = HostWatch(share, cache.store)
        cache.host.begin()
        return cache

    def steered(self, handle: LinkSteered) -> Steered:
        """Handler of commands that takes those about what is cached, and leaves the others to
        `handle`; for any thread."""

        def take(command: Steering | BetweenSteps) -> None:
            match command:
                case SetCacheRam(lent_bytes):
                    self.host.lend(lent_bytes)
                case SetPair(pairing):
                    self.pair.become(pairing)
                case _:
                    handle(command)

        return take

    def reporter(self, report: Callable[[StageHealth], None]) -> Callable[[StageHealth], None]:
        """Reporter of a stage's health, with that of what is cached."""
        host, pair = self.host, self.pair
        return lambda health: report(replace(health, host_cache=host.health, pair=pair.health))

    @property
    def tiers(self) -> CacheTiers | None:
        """Room below the device's memory, as measured; None: there is none."""
        return _with_room(self.store.tiers)

    def tiers_of(self, layers: Prepared) -> CacheTiers | None:
        """Room and rates where more layers take the place of its own."""
        if layers.loaded.state_slots is not None:
            return None
        return _with_room(self.store.tiers_of(layers.block_bytes))

    def change(self, change: CacheChange) -> None:
        """Do as the head says; what comes back is in `take_read` once it is there."""
        match change:
            case KeepBlocks():
                self.device.blocks_out(change)
                self.pair.kept(change, self.device)
            case FoldBlocks():
                self.device.blocks_out(change)
            case RetainBlocks():
                self.device.blocks_out(change)
                self.store.retain(change)
            case DropBlocks():
                self._drop(change)
            case LowerBlocks():
                self._lower(change)
            case TakeBlocks():
                self._take(change)
            case FetchBlocks(fetch_id):
                arriving = self.device.blocks_in(tuple(change.numbers))
                self._arriving.append(arriving)
                self.store.fetch(fetch_id, arriving)
            case _:
                assert_never(change)

    def _drop(self, change: DropBlocks) -> None:
        numbers = list(change.numbers)
        self._settle(numbers)
        self.device.blocks_out(change)
        self.store.drop(numbers)

    def _take(self, change: TakeBlocks) -> None:
        arriving = self.device.blocks_in(tuple(change.numbers))
        self._arriving.append(arriving)
        if not self.pair.take(change, arriving):
            arriving.only(0)
            arriving.fill(())
            self._read.append(Fetched(change.fetch_id, 0))

    def _lower(self, change: LowerBlocks) -> None:
        numbers = list(change.numbers)
        self._settle(numbers)
        if (leaving := self.device.blocks_out(change)) is not None:
            self.store.put(change.tier, leaving.numbers, leaving)
            near = frozenset(leaving.numbers)
            numbers = [number for number in numbers if number not in near]
        if numbers:
            self.store.put(change.tier, numbers, None)

    def take_read(self) -> list[Fetched]:
        """Answers of fetches that have come since the last call. Raises StageError where blocks
        that were to come could not be copied in."""
        for arriving in self._arriving:
            arriving.check()
        return [self._read.popleft() for _ in range(len(self._read))]

    def begin(self, block_bytes: int, epoch: int, *, chains_stay: bool) -> AwayBlocks:
        """Begin the ring's epoch: what may stay below the device's memory where chains do. Else the
        head's directory begins with the epoch, and so do lower tiers, with blocks of this size."""
        self.pair.begin(epoch, block_bytes)
        if chains_stay:
            return self.store.holds()
        self.store.clear(block_bytes, epoch)
        return AwayBlocks(directory=epoch)

    def begin_epoch(self, kept: RowsKept, block_bytes: int, epoch: int) -> RowsKept:
        """What is left, with what may stay below the device's memory, in the ring's next epoch;
        where chains do not stay nothing is cached any more. Raises StageError where blocks that
        stay could not be copied in."""
        away = self.begin(block_bytes, epoch, chains_stay=kept.chains_stay)
        # Nothing is filled any more now.
        for arriving in self._arriving if kept.chains_stay else ():
            arriving.check()
        self._read.clear()
        self._arriving.clear()
        if not kept.chains_stay:
            self.device.blocks_out(RetainBlocks())
        return kept._replace(away=away)

    def shed(self) -> None:
        """Drop the blocks cached in host memory: the host is short of it."""
        self.store.shed()

    def _settle(self, numbers: list[int]) -> None:
        """Wait for those of the blocks that are being filled: others may write there next. It is
        rare, because what comes back was asked for last."""
        self._arriving = [one for one in self._arriving if not one.is_there]
        for arriving in self._arriving:
            arriving.settle(numbers)


def _host_share(room: CacheRoom, layers: Prepared) -> HostShare:
    """What a stage takes of its PC's memory once its layers are there. On a CPU the pages of its KV
    are taken only as requests come."""
    is_card = layers.loaded.device.startswith("cuda")
    kv_bytes = 0 if is_card else layers.kv_blocks * layers.block_bytes
    return host_share(room, read_main_memory(), kv_bytes, is_pinned=is_card)


def _with_room(tiers: CacheTiers) -> CacheTiers | None:
    return tiers if tiers.has_room else None
