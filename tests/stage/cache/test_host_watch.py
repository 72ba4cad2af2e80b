"""Real memory is given back within a second, whatever else the store waits for, and comes back."""

import queue
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
import torch

from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.cached_blocks import ArrivingTogether, BlocksOfParts
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.leaving_blocks import LeavingBlocks
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.engine.memory.packed_blocks import PackedBlocks
from molink.hardware.host import MainMemory
from molink.stage.cache import host_blocks
from molink.stage.cache.host_share import HostShare
from molink.stage.cache.host_watch import HostWatch
from molink.stage.cache.sealed_file import SealedFile
from molink.stage.cache.stage_cache import StageCache
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.messages import HoldLinks, SetCacheRam
from molink_scheduler.kv.blocks import KvBlocks
from molink_scheduler.kv.tiers import FILE, HOST
from molink_scheduler.units import GB, MB

BLOCKS = 400
BLOCK_BYTES = 16 * 2 * 8 * 1024 * 4
"""1 MB."""

ROOMY, SHORT = MainMemory(32 * GB, 20 * GB), MainMemory(32 * GB, GB // 2)


class Pc:
    """PC whose memory others take and give back."""

    def __init__(self):
        self.memory = ROOMY

    def read(self):
        return self.memory


@pytest.fixture
def made(tmp_path):
    """A store with room for all blocks in host memory, its watch, its pool and its answers."""
    pool = KvPool(16 * 2)
    with torch.inference_mode():
        pool.write(0, torch.arange(32), *(torch.ones(32, 8, 1024) for _ in "kv"))
    blocks, answers, pc = PackedBlocks((pool,)), queue.SimpleQueue(), Pc()
    assert blocks.block_bytes == BLOCK_BYTES
    room = CacheRoom(BLOCKS * BLOCK_BYTES, 4 * BLOCK_BYTES, str(tmp_path))
    store = CacheStore(room, BLOCK_BYTES, answers.put)
    store.start(
        BlocksOfParts([SimpleNamespace(kv=KvBlocks(2), kv_memory=pool, moving=MovingBlocks())]), 2
    )
    watch = HostWatch(HostShare(BLOCKS * BLOCK_BYTES), store, pc.read)
    return SimpleNamespace(
        store=store, watch=watch, pool=pool, blocks=blocks, answers=answers, pc=pc
    )


def put(made, tier, numbers):
    made.store.put(tier, numbers, LeavingBlocks(made.blocks, tuple(numbers), [[0] * len(numbers)]))


def fetch(made, fetch_id, numbers):
    arriving = ArrivingBlocks(tuple(numbers), [0] * len(numbers))
    made.store.fetch(fetch_id, ArrivingTogether(made.blocks, [arriving]))
    answer = made.answers.get(timeout=30)
    assert answer.fetch_id == fetch_id
    return answer.blocks


def fill(made, first=0):
    put(made, HOST, range(first, first + BLOCKS))
    assert fetch(made, first + BLOCKS, []) == 0  # All before is done.


def resident_bytes():
    return psutil.Process().memory_info().rss


def until_given_back(store, limit_bytes):
    """Seconds until the store holds nothing, and this process less than so much."""
    began = time.monotonic()
    while store.host_bytes or resident_bytes() >= limit_bytes:
        assert time.monotonic() - began < 30, f"{resident_bytes() / MB:.0f} MB are held"
        time.sleep(0.005)
    return time.monotonic() - began


def test_memory_is_back_within_a_second_when_others_need_it_and_is_taken_again_later(made):
    before = resident_bytes()
    for turn in range(2):
        fill(made, 1000 * turn)
        assert resident_bytes() - before > 0.9 * BLOCKS * BLOCK_BYTES
        if not turn:
            made.watch.begin()
        made.pc.memory = SHORT
        assert until_given_back(made.store, before + 0.1 * BLOCKS * BLOCK_BYTES) < 1.0
        health = made.watch.health
        assert (health.room_bytes, health.taken_bytes) == (0, BLOCKS * BLOCK_BYTES)
        assert "others need the memory" in health.why_less
        made.pc.memory = ROOMY
        made.watch.look()
        assert made.watch.health.room_bytes == BLOCKS * BLOCK_BYTES
    assert fetch(made, 7, [1000, 1001]) == 0, "the head hears how many are good: none"


def test_it_is_back_at_once_while_the_store_waits_for_a_disk(made, monkeypatch):
    fill(made)
    gate = threading.Event()
    monkeypatch.setattr(SealedFile, "write", lambda *given: gate.wait(30))
    put(made, FILE, [5000])
    made.pc.memory = SHORT
    made.watch.look()
    assert made.store.host_bytes == 0
    gate.set()


def test_as_much_goes_as_is_missing_and_the_longest_here_goes_first(made, monkeypatch):
    monkeypatch.setattr(host_blocks, "CHUNK_BYTES", 10 * BLOCK_BYTES)
    fill(made)
    missing = 100 * BLOCK_BYTES
    made.pc.memory = MainMemory(32 * GB, ROOMY.reserve_bytes - missing)
    made.watch.look()
    assert made.store.host_bytes == 300 * BLOCK_BYTES
    assert made.watch.health.held_bytes == 300 * BLOCK_BYTES
    assert fetch(made, 1, [99, 100]) == 0 and fetch(made, 2, [101, 102]) == 2


def test_blocks_that_find_no_room_are_lost_and_hold_up_nobody(made):
    made.pc.memory = SHORT
    made.watch.look()
    put(made, HOST, [1, 2])
    assert fetch(made, 1, [1, 2]) == 0
    made.pc.memory = ROOMY
    made.watch.look()
    put(made, HOST, [3])
    assert fetch(made, 2, [3]) == 1


def test_an_owner_who_plays_has_it_at_once_and_other_commands_pass(made):
    fill(made)
    passed = []
    handle = StageCache(None, made.store, made.watch).steered(passed.append)
    handle(SetCacheRam(0))
    assert made.store.host_bytes == 0
    assert made.watch.health.why_less == "its owner lends less now"
    handle(HoldLinks())
    handle(SetCacheRam(None))
    assert passed == [HoldLinks()]
    assert made.watch.health.room_bytes == BLOCKS * BLOCK_BYTES


def test_what_the_pc_can_spare_holds_in_the_ring_s_next_epoch_too(made):
    made.store.host_room(4 * BLOCK_BYTES)
    made.store.clear(BLOCK_BYTES)
    fill(made)
    assert made.store.host_bytes == 4 * BLOCK_BYTES
    assert fetch(made, 1, [0, 1, 2, 3, 4]) == 4


def test_a_pc_with_less_than_is_lent_is_told_in_a_sentence(caplog):
    HostWatch(HostShare(0, "0.0 GB of 10.0 GB are taken: the PC has 8.0 GB of memory")).begin()
    assert "Of the memory lent for cached KV 0.0 GB of 10.0 GB are taken" in caplog.text
    assert HostWatch().health is None
