"""What comes back into a stage's blocks, and goes again before it is there."""

from types import SimpleNamespace

import pytest

from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.cached_blocks import BlocksOfParts
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.errors import StageError
from molink.stage.cache.stage_cache import StageCache
from molink_scheduler.kv.blocks import KvBlocks
from molink_scheduler.kv.changes import DropBlocks, FetchBlocks


class Part:
    """Executor with a few blocks, of which some are being filled."""

    def __init__(self):
        self.kv, self.kv_memory, self.moving = KvBlocks(6), KvPool(96), MovingBlocks()


@pytest.fixture
def part():
    return Part()


@pytest.fixture
def cache(part):
    store = SimpleNamespace(fetch=lambda *given: None, drop=lambda numbers: None)
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
