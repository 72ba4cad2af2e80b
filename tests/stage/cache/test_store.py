"""Blocks leave the device's memory and come back, in one thread, in the order of the orders."""

import errno
import queue
import threading
from types import SimpleNamespace

import pytest
import torch

from molink.engine.memory import moving_blocks as moving_module
from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.cached_blocks import ArrivingTogether, BlocksOfParts
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.leaving_blocks import LeavingBlocks
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.engine.memory.packed_blocks import PackedBlocks
from molink.errors import StageError
from molink.stage.cache import tier_blocks as tier_module
from molink.stage.cache.sealed_file import SealedFile
from molink.stage.cache.store import CacheStore
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.kv.blocks import KvBlocks
from molink_scheduler.kv.changes import Fetched
from molink_scheduler.kv.tiers import FILE, HOST


def pool_of(kv_dtype, blocks=6, dtype=torch.float32):
    """Two layers of keys and values of unlike shapes, and one of latent rows."""
    pool = KvPool(16 * blocks, kv_dtype)
    slots = torch.arange(16 * blocks)
    with torch.inference_mode():
        for layer, (keys, values) in enumerate((((2, 8), (2, 4)), ((1, 4), (1, 4)))):
            rows = (torch.randn(16 * blocks, *shape).to(dtype) for shape in (keys, values))
            pool.write(layer, slots, *rows)
        pool.write_latents(7, slots, torch.randn(16 * blocks, 12).to(dtype), 8)
    return pool


def bytes_of(pool, block):
    return b"".join(rows[block].numpy().tobytes() for rows in pool.block_rows())


@pytest.fixture
def made(tmp_path):
    """A store with room for two blocks in each tier, the pool beside it, and its answers."""
    answers = queue.Queue(maxsize=8)

    def make(pools, ram=2, disk=2):
        blocks = PackedBlocks(tuple(pools))
        size = blocks.block_bytes
        room = CacheRoom(ram * size, disk * (size + 16), str(tmp_path))
        store = CacheStore(room, size, answers.put)
        parts = [
            SimpleNamespace(kv=KvBlocks(6), kv_memory=pool, moving=MovingBlocks()) for pool in pools
        ]
        store.start(BlocksOfParts(parts), 6)
        assert all(part.kv.blocks_free == 6 for part in parts), "a probe holds nothing"
        return store, blocks, answers

    return make


def put(store, tier, numbers, places, blocks):
    leaving = LeavingBlocks(blocks, tuple(numbers), places)
    store.put(tier, numbers, leaving)
    return leaving


def fetch(store, fetch_id, numbers, places, blocks):
    arrivals = [ArrivingBlocks(tuple(numbers), list(some)) for some in places]
    store.fetch(fetch_id, ArrivingTogether(blocks, arrivals))
    return arrivals


class FullDisk:
    """File that takes nothing."""

    def seek(self, place):
        return place

    def write(self, block):
        raise OSError(errno.ENOSPC, "No space left on device")


class Gated:
    """Blocks that are filled once the gate is open."""

    def __init__(self, blocks):
        self.blocks, self.gate = blocks, threading.Event()

    def put(self, arrivals, found):
        assert self.gate.wait(30)
        self.blocks.put(arrivals, found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_blocks_come_back_as_they_were(made, kv_dtype, dtype):
    """From host memory and from the file, of two pools, to other places."""
    pools = pool_of(kv_dtype, dtype=dtype), pool_of(kv_dtype, dtype=dtype)
    store, blocks, answers = made(pools)
    before = [[bytes_of(pool, block) for block in range(6)] for pool in pools]
    leaving = put(store, HOST, [10, 11], [[0, 1], [2, 3]], blocks)
    store.put(FILE, [11], None)
    also = put(store, FILE, [12], [[4], [4]], blocks)
    for one in (leaving, also):
        one.vacate(0, range(6), 10**9)
    for pool in pools:
        for rows in pool.block_rows():
            with torch.inference_mode():
                rows[:5].zero_()
    arrivals = fetch(store, 3, [10, 11, 12], [[3, 0, 2], [0, 1, 2]], blocks)
    assert answers.get(timeout=30) == Fetched(3, 3)
    for arriving in arrivals:
        arriving.wait()
    assert [bytes_of(pools[0], place) for place in (3, 0, 2)] == [before[0][at] for at in (0, 1, 4)]
    assert [bytes_of(pools[1], place) for place in (0, 1, 2)] == [before[1][at] for at in (2, 3, 4)]


def test_what_has_no_room_is_lost_with_all_behind_it(made):
    store, blocks, answers = made([pool_of("auto")], disk=0)
    put(store, HOST, [1, 2, 3], [[0, 1, 2]], blocks)
    store.put(FILE, [2], None)
    store.drop([77])
    fetch(store, 0, [1, 2, 3], [[3, 4, 5]], blocks)
    assert answers.get(timeout=30) == Fetched(0, 1)


def test_an_altered_file_is_noticed(made, caplog):
    store, blocks, answers = made([pool_of("auto")])
    put(store, FILE, [1, 2], [[0, 1]], blocks)
    fetch(store, 0, [], [[]], blocks)
    assert answers.get(timeout=30) == Fetched(0, 0)  # All before is done.
    store._blocks.file._file.truncate(store.block_bytes + 20)
    fetch(store, 1, [1, 2], [[2, 3]], blocks)
    assert answers.get(timeout=30) == Fetched(1, 1)
    assert caplog.text.count("altered or cut off") == 1


def test_what_was_never_written_is_no_altered_file(made, caplog):
    """Why it was not, another line has said."""
    store, blocks, answers = made([pool_of("auto")])
    fetch(store, 0, [1], [[2]], blocks)
    assert answers.get(timeout=30) == Fetched(0, 0)
    assert caplog.text == ""


def test_whatever_happens_to_a_block_its_fetch_is_answered(made, monkeypatch, caplog):
    store, blocks, answers = made([pool_of("auto")])
    put(store, FILE, [1, 2], [[0, 1]], blocks)
    fetch(store, 0, [], [[]], blocks)
    assert answers.get(timeout=30) == Fetched(0, 0)
    monkeypatch.setattr(type(store._blocks.file), "read", lambda file, number: 1 // 0)
    fetch(store, 1, [1, 2], [[2, 3]], blocks)
    assert answers.get(timeout=30) == Fetched(1, 0)
    assert "could not be read" in caplog.text


@pytest.fixture
def stuck_disk(monkeypatch):
    """Opens once the disk goes on."""
    gate, write = threading.Event(), SealedFile.write

    def waits(file, number, block):
        assert gate.wait(30)
        return write(file, number, block)

    monkeypatch.setattr(SealedFile, "write", waits)
    return gate


def test_who_writes_where_a_block_stands_copies_it_and_waits_for_no_disk(made, request):
    """However long the thread needs for those before it."""
    store, blocks, answers = made([pool_of("auto")])
    stuck_disk = request.getfixturevalue("stuck_disk")
    before = bytes_of(blocks.pools[0], 4)
    put(store, FILE, [1], [[0]], blocks)
    leaving = put(store, FILE, [2], [[4]], blocks)
    leaving.vacate(0, {3}, 10**9)
    assert not leaving.waiting_bytes, "nothing stands there"
    leaving.vacate(0, {4, 3}, 10**9)
    assert leaving.waiting_bytes == blocks.block_bytes and not leaving.is_gone
    blocks.pools[0].wipe([4])
    stuck_disk.set()
    (arriving,) = fetch(store, 0, [2], [[4]], blocks)
    assert answers.get(timeout=30) == Fetched(0, 1)
    arriving.wait()
    assert bytes_of(blocks.pools[0], 4) == before
    assert leaving.is_gone and not leaving.waiting_bytes


def test_a_disk_that_is_too_slow_loses_blocks_and_holds_up_nobody(made, request, caplog):
    store, blocks, answers = made([pool_of("auto")])
    stuck_disk = request.getfixturevalue("stuck_disk")
    put(store, FILE, [1], [[0]], blocks)
    leaving = put(store, HOST, [2, 3], [[4, 5]], blocks)
    leaving.vacate(0, {4, 5}, blocks.block_bytes)
    stuck_disk.set()
    fetch(store, 0, [3], [[1]], blocks)
    fetch(store, 1, [2], [[1]], blocks)
    assert [answers.get(timeout=30) for _ in range(2)] == [Fetched(0, 0), Fetched(1, 1)]
    assert "too slow" in caplog.text


@pytest.mark.parametrize("tier", [HOST, FILE])
def test_an_order_larger_than_all_that_may_wait_is_not_lost(made, monkeypatch, tier):
    """It waits where it stands."""
    monkeypatch.setattr(moving_module, "WAITING_BYTES_MAX", 0)
    pool = pool_of("auto")
    monkeypatch.setattr(tier_module, "PIECE_BYTES", 2 * PackedBlocks((pool,)).block_bytes)
    store, blocks, answers = made([pool], ram=6, disk=6)
    before = [bytes_of(pool, block) for block in range(6)]
    put(store, tier, range(6), [range(6)], blocks)
    (arriving,) = fetch(store, 0, range(6), [[5, 4, 3, 2, 1, 0]], blocks)
    assert answers.get(timeout=30) == Fetched(0, 6)
    arriving.wait()
    assert [bytes_of(pool, block) for block in range(6)] == before[::-1]


def test_what_is_sure_is_told_before_it_is_copied_in(made):
    store, blocks, answers = made([pool_of("auto")])
    put(store, HOST, [1], [[0]], blocks)
    gated = Gated(blocks)
    (arriving,) = fetch(store, 0, [1, 2], [[1, 3]], gated)
    assert answers.get(timeout=30) == Fetched(0, 1)
    assert arriving.has_any([1]) and not arriving.has_any([2]), "only what comes is on its way"
    gated.gate.set()
    arriving.wait()
    assert arriving.is_there and not arriving.has_any([1])
    assert bytes_of(blocks.pools[0], 1) == bytes_of(blocks.pools[0], 0)


def test_nothing_is_filled_that_was_given_up(made):
    """Somebody else may have the place by now; the fetch is answered all the same."""
    store, blocks, answers = made([pool_of("auto")])
    before = bytes_of(blocks.pools[0], 2)
    put(store, HOST, [1], [[0]], blocks)
    arriving = ArrivingBlocks((1,), [2])
    assert arriving.give_up([1]) and not arriving.has_any([1])
    store.fetch(0, ArrivingTogether(blocks, [arriving]))
    fetch(store, 1, [], [[]], blocks)
    assert [answers.get(timeout=30) for _ in range(2)] == [Fetched(0, 1), Fetched(1, 0)]
    assert bytes_of(blocks.pools[0], 2) == before


def test_a_copy_that_fails_is_an_error_of_whoever_needs_it(made):
    store, blocks, answers = made([pool_of("auto")])
    put(store, HOST, [1], [[0]], blocks)
    (arriving,) = fetch(store, 0, [1], [[99]], blocks)
    assert answers.get(timeout=30) == Fetched(0, 1)
    with pytest.raises(StageError, match="could not be copied in"):
        arriving.wait()
    with pytest.raises(StageError, match="could not be copied in"):
        arriving.await_layer(0, None)
    put(store, HOST, [2], [[0]], blocks)
    (arriving,) = fetch(store, 1, [2], [[1]], blocks)
    arriving.wait()


def test_nothing_is_left_in_a_new_epoch(made):
    store, blocks, answers = made([pool_of("auto")])
    put(store, HOST, [1], [[0]], blocks)
    put(store, FILE, [2], [[1]], blocks)
    store.clear(store.block_bytes)
    for number in (1, 2):
        fetch(store, number, [number], [[2]], blocks)
        assert answers.get(timeout=30) == Fetched(number, 0)


def test_a_disk_that_cannot_be_cleared_holds_up_nobody(made, monkeypatch, caplog):
    store, blocks, answers = made([pool_of("auto")])
    put(store, FILE, [1], [[0]], blocks)
    monkeypatch.setattr(type(store._blocks.file), "clear", lambda *given: 1 // 0)
    clearing = threading.Thread(target=store.clear, args=(store.block_bytes,), daemon=True)
    clearing.start()
    clearing.join(30)
    assert not clearing.is_alive()
    fetch(store, 0, [], [[]], blocks)
    assert answers.get(timeout=30) == Fetched(0, 0)  # All before is done, its warning too.
    assert "could not be done" in caplog.text


def test_a_full_disk_is_told_although_it_was_slow_before(made, request, monkeypatch, caplog):
    store, blocks, answers = made([pool_of("auto")])
    stuck_disk = request.getfixturevalue("stuck_disk")
    put(store, FILE, [0], [[0]], blocks)
    put(store, FILE, [1], [[0]], blocks).vacate(0, {0}, 0)
    stuck_disk.set()
    fetch(store, 1, [], [[]], blocks)
    assert answers.get(timeout=30) == Fetched(1, 0)
    monkeypatch.setattr(store._blocks.file, "_file", FullDisk())
    for number in (2, 3, 4):
        put(store, FILE, [number], [[0]], blocks)
    fetch(store, 0, [2], [[1]], blocks)
    assert answers.get(timeout=30) == Fetched(0, 0)
    assert [caplog.text.count(one) for one in ("too slow", "grows no more")] == [1, 1]
    assert f"{store.room.folder} grows no more (make room" in caplog.text
    assert "Error(" not in caplog.text, "people read it"


def test_a_copy_that_cannot_be_kept_does_not_wait_for_ever(made, monkeypatch):
    store, blocks, answers = made([pool_of("auto")])
    monkeypatch.setattr(type(store._blocks.file), "write", lambda *given: 1 // 0)
    leaving = put(store, FILE, [1], [[0]], blocks)
    fetch(store, 0, [1], [[1]], blocks)
    assert answers.get(timeout=30) == Fetched(0, 0)
    assert leaving.is_gone and not leaving.waiting_bytes


def test_a_host_short_of_memory_loses_what_is_cached_there(made):
    store, blocks, answers = made([pool_of("auto")])
    put(store, HOST, [1], [[0]], blocks)
    put(store, FILE, [2], [[1]], blocks)
    store.shed()
    for number, found in ((1, 0), (2, 1)):
        fetch(store, number, [number], [[2]], blocks)
        assert answers.get(timeout=30) == Fetched(number, found)


def test_tiers_are_measured(made):
    store = made([pool_of("auto")])[0]
    tiers = store.tiers
    assert (tiers.host_blocks, tiers.file_blocks) == (2, 2)
    assert 0 < tiers.copy_block_s < 1 and 0 < tiers.read_block_s < 1


def test_a_folder_that_cannot_be_made_leaves_host_memory(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    blocks = PackedBlocks((pool_of("auto"),))
    room = CacheRoom(10 * blocks.block_bytes, 10**6, str(tmp_path / "file" / "below"))
    store = CacheStore(room, blocks.block_bytes, lambda fetched: None)
    assert (store.tiers.host_blocks, store.tiers.file_blocks) == (10, 0)
    assert f"there is no file in {room.folder}" in caplog.text
    assert "Error(" not in caplog.text
