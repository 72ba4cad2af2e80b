"""What comes back into a stage's blocks, and goes again before it is there."""

import queue
from types import SimpleNamespace

import pytest
import torch

from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.cached_blocks import BlocksOfParts
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.engine_protocol.values import RowsKept
from molink.errors import StageError
from molink.stage.cache.stage_cache import StageCache
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.kv.blocks import KvBlocks
from molink_scheduler.kv.changes import (
    AwayBlocks,
    DropBlocks,
    FetchBlocks,
    KeepBlocks,
    KeptBlocks,
    LowerBlocks,
)
from molink_scheduler.kv.tiers import HOST


def bytes_of(pool, block):
    return b"".join(rows[block].numpy().tobytes() for rows in pool.block_rows())


class Part:
    """Executor with a few blocks, of which some are being filled."""

    def __init__(self):
        self.kv, self.kv_memory, self.moving = KvBlocks(6), KvPool(96), MovingBlocks()


@pytest.fixture
def part():
    return Part()


@pytest.fixture
def cache(part):
    ignored = dict.fromkeys(("fetch", "drop", "clear", "holds"), lambda *given: None)
    store = SimpleNamespace(**ignored)
    return StageCache(BlocksOfParts([part]), store)


def test_blocks_that_are_being_filled_go_once_they_are_full(cache, part, monkeypatch):
    """Whoever gets them next writes there."""
    waited = []
    monkeypatch.setattr(ArrivingBlocks, "wait", lambda one: waited.append(part.kv.blocks_free))
    cache.change(FetchBlocks(0, ((5, 2),)))
    cache.change(FetchBlocks(1, ((9, 1),)))
    assert all(one.only(2) for one in part.moving._filled)
    cache.change(DropBlocks(((9, 1),)))
    assert waited == [3], "only those, and before they are free"
    part.moving._filled[0].end()
    cache.change(DropBlocks(((5, 2),)))
    assert waited == [3] and part.kv.blocks_free == 6


def test_what_a_slow_disk_is_still_to_read_is_not_waited_for(cache, part, monkeypatch):
    """It was given up, and nothing is filled when it has been read; a part is waited for."""
    waited = []
    monkeypatch.setattr(ArrivingBlocks, "wait", lambda one: waited.append(one))
    cache.change(FetchBlocks(0, ((5, 2),)))
    (arriving,) = part.moving._filled
    cache.change(DropBlocks(((6, 1),)))
    assert waited == [arriving]
    cache.change(FetchBlocks(1, ((8, 2),)))
    cache.change(DropBlocks(((8, 2),)))
    given_up = part.moving._filled[-1]
    assert waited == [arriving] and not given_up.only(2)


def test_a_copy_that_failed_ends_the_stage(cache, part):
    cache.change(FetchBlocks(0, ((5, 2),)))
    assert cache.take_read() == []
    part.moving._filled[0].end(RuntimeError("out of memory"))
    with pytest.raises(StageError, match="out of memory"):
        cache.take_read()


def kept(part, *, stays):
    return RowsKept((), frozenset(), part.kv.cached_numbers(), chains_stay=stays)


@pytest.mark.parametrize("stays", [True, False])
def test_what_the_device_and_lower_tiers_hold_outlives_a_lost_stage(part, stays):
    """What has been answered for is filled before the next epoch begins."""
    device, answers = BlocksOfParts([part]), queue.SimpleQueue()
    part.kv_memory.write(0, torch.arange(96), *(torch.randn(96, 2, 4) for _ in "kv"))
    size = device.packed.block_bytes
    cache = StageCache(device, CacheStore(CacheRoom(ram_bytes=4 * size), size, answers.put))
    cache.store.start(device, 6)
    part.kv.grow(1, 64)
    cache.change(KeepBlocks((KeptBlocks(1, 0, 20, 3),)))
    content = bytes_of(part.kv_memory, part.kv.places([21])[0])
    cache.change(LowerBlocks(HOST, ((21, 2),)))
    cache.change(FetchBlocks(0, ((21, 1),)))
    assert answers.get(timeout=30).blocks == 1
    cache.begin(size, 7, chains_stay=True)
    left = cache.begin_epoch(kept(part, stays=stays), size, 8)
    assert left.chains_stay is stays
    assert left.away == (AwayBlocks(host=((22, 1),)) if stays else AwayBlocks(directory=8))
    assert part.kv.cached_numbers() == ({20, 21} if stays else set())
    if stays:
        assert bytes_of(part.kv_memory, part.kv.places([21])[0]) == content
    assert cache.take_read() == [], "answers of the epoch before are nobody's"
    cache.change(FetchBlocks(1, ((22, 1),)))
    assert answers.get(timeout=30).blocks == int(stays)


def test_blocks_that_stay_are_as_good_as_their_copy(cache, part):
    cache.change(FetchBlocks(0, ((5, 2),)))
    part.moving._filled[0].end(RuntimeError("out of memory"))
    with pytest.raises(StageError, match="out of memory"):
        cache.begin_epoch(kept(part, stays=True), 1, 2)
    assert not cache.begin_epoch(kept(part, stays=False), 1, 2).chains_stay, "nobody reads them"
