"""Slots of host memory are used again, and are nobody else's meanwhile."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.engine.device.streams import host_blocks
from molink.stage.cache import host_blocks as host_module
from molink.stage.cache.host_blocks import HostBlocks


def memory(blocks):
    return host_blocks(blocks, 8, "cpu")


@given(st.integers(0, 9), st.lists(st.tuples(st.booleans(), st.integers(1, 6))), st.integers(8, 40))
def test_each_block_is_as_it_was_kept(blocks_max, orders, chunk_bytes):
    """Within the room, in chunks of a few blocks, some of which were dropped before."""
    room, kept, number = HostBlocks(8, blocks_max), {}, 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_module, "CHUNK_BYTES", chunk_bytes)
        for is_kept, count in orders:
            if is_kept:
                out_BW = room.take(range(number, number + count), memory)
                assert len(out_BW) <= count and (len(out_BW) or len(kept) == blocks_max)
                for row_W in out_BW:
                    row_W[:] = number % 251
                    kept[number] = number % 251
                    number += 1
            else:
                for one in [*kept][:count]:
                    room.drop(one)
                    del kept[one]
            assert room.taken_blocks <= blocks_max
            assert all(room.get(one).tolist() == [value] * 8 for one, value in kept.items())
            assert number not in room


def test_memory_is_taken_as_blocks_come_and_used_again():
    taken = []

    def counted(blocks):
        taken.append(blocks)
        return memory(blocks)

    room = HostBlocks(8 * 2**20, 20)
    assert not taken
    for number in range(30):
        assert len(room.take([number], counted)) == 1
        room.drop(number)
    assert taken == [8], "64 MiB"


def test_where_the_system_gives_no_more_it_goes_on_with_what_it_has():
    def none(blocks):
        raise MemoryError

    room = HostBlocks(32 * 2**20, 4)
    assert len(room.take([1, 2], lambda blocks: np.empty((blocks, 1), np.uint8))) == 2
    with pytest.raises(MemoryError):
        room.take([3], none)
    assert room.take_no_more() == 2 * 32 * 2**20
    assert not len(room.take([3], none)) and 1 in room and 3 not in room
    room.drop(1)
    assert len(room.take([3], none)) == 1


def test_what_no_system_has_is_a_memory_error():
    with pytest.raises(MemoryError):
        host_blocks(2**30, 2**20, "cpu")


def test_what_is_given_back_is_nobody_else_s_while_it_is_copied(monkeypatch):
    """The longest taken goes first, as a whole; later there is room again."""
    monkeypatch.setattr(host_module, "CHUNK_BYTES", 4 * 8)
    room = HostBlocks(8, 12)
    parts = [room.take(range(first, first + 4), memory) for first in (0, 4, 8)]
    room.drop(5)
    room.spare(7)
    assert (room.taken_blocks, room.get(3), room.get(5)) == (4, None, None)
    parts[0][:], parts[1][:] = 7, 8
    assert room.get(8) is not None and len(room.take([20], memory)) == 1
    room.spare(12)
    again = [room.take(range(first, first + 4), memory) for first in (30, 40)]
    for part_BW in (*again, parts[2]):
        part_BW[:] = 9
    assert (parts[0] == 7).all() and (parts[1] == 8).all()
    assert room.taken_blocks <= 12
