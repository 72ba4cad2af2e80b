"""Blocks that leave are copied as they were, whoever writes there meanwhile."""

import threading
from random import Random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.leaving_blocks import LeavingBlocks
from molink.engine.memory.packed_blocks import PackedBlocks


def pool_of(blocks, seed):
    """A pool of two layers, whatever is in it."""
    torch.manual_seed(seed)
    pool, slots = KvPool(16 * blocks), torch.arange(16 * blocks)
    with torch.inference_mode():
        for layer, shape in enumerate(((2, 8), (1, 4))):
            pool.write(layer, slots, *(torch.randn(16 * blocks, *shape) for _ in range(2)))
    return pool


def leaving_of(pools, places):
    return LeavingBlocks(PackedBlocks(tuple(pools)), tuple(range(len(places[0]))), places)


def copied_by(leaving, sizes, out_BW, lost):
    """Copies the blocks in pieces, in a thread of its own."""

    def copy():
        done = 0
        for size in sizes:
            lost.update(done + at for at in leaving.copy(out_BW[done : done + size]))
            done += min(size, len(out_BW) - done)
        leaving.give_up()

    thread = threading.Thread(target=copy)
    thread.start()
    return thread


@given(st.integers(0, 2**16), st.integers(1, 24), st.integers(1, 2), st.data())
def test_they_are_copied_as_they_were_or_said_to_be_lost(seed, count, pools, data):
    """Whatever is written where they stand, before or while they are copied, by two threads."""
    random, blocks = Random(seed), 32
    memory = [pool_of(blocks, seed + number) for number in range(pools)]
    places = [random.sample(range(blocks), count) for _ in memory]
    leaving = leaving_of(memory, places)
    before_BW = leaving.packed.take(places)
    room = data.draw(st.integers(0, count)) * leaving.packed.block_bytes
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    written = data.draw(st.lists(st.sets(st.integers(0, blocks - 1), max_size=4), max_size=12))
    late = data.draw(st.integers(0, len(written)))
    out_BW, lost = np.zeros_like(before_BW), set()

    def write(some):
        for pool, pools_memory in enumerate(memory):
            leaving.vacate(pool, some, room)
            pools_memory.wipe(sorted(some))

    for some in written[:late]:
        write(some)
    thread = copied_by(leaving, sizes, out_BW, lost)
    for some in written[late:]:
        write(some)
    thread.join(30)
    assert leaving.is_gone and not leaving.waiting_bytes
    kept = [at for at in range(count) if at not in lost]
    assert np.array_equal(out_BW[kept], before_BW[kept])
    assert not lost or room < count * leaving.packed.block_bytes


def test_a_step_waits_for_nobody(monkeypatch):
    """Also where the block is being copied just then."""
    pool, gate, begun = pool_of(8, 1), threading.Event(), threading.Event()
    leaving = leaving_of([pool], [range(8)])
    before_BW = leaving.packed.take([range(8)])
    out_BW, lost, copy_out = np.zeros_like(before_BW), set(), PackedBlocks.copy_out

    def slow(packed, places, out):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert gate.wait(30)
        copy_out(packed, places, out)

    monkeypatch.setattr(PackedBlocks, "copy_out", slow)
    thread = copied_by(leaving, [2, 2, 4], out_BW, lost)
    assert begun.wait(30)
    leaving.vacate(0, {1, 2, 7}, 10**9)
    assert leaving.waiting_bytes == 3 * leaving.packed.block_bytes
    pool.wipe([1, 2, 7])
    gate.set()
    thread.join(30)
    assert not lost and np.array_equal(out_BW, before_BW)


def test_a_host_that_has_no_memory_loses_what_is_overwritten(monkeypatch):
    pool = pool_of(4, 1)
    leaving = leaving_of([pool], [range(4)])

    def none(packed, places):
        raise MemoryError

    monkeypatch.setattr(PackedBlocks, "take", none)
    leaving.vacate(0, {1}, 10**9)
    out_BW = np.empty((4, leaving.packed.block_bytes), np.uint8)
    assert leaving.copy(out_BW) == [1]
