"""What is taken of a PC's memory is idle, lent and shared; what others need is given back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.hardware.host import MainMemory
from molink.stage.cache.host_share import HostShare, host_room, host_share
from molink.stage_protocol.cache_room import CacheRoom
from molink_scheduler.units import GB

SIZES = st.integers(0, 256 * GB)
MEMORIES = st.builds(
    lambda total, used: MainMemory(total, total - used % (total + 1)),
    st.integers(1, 256 * GB),
    SIZES,
)
LENT = st.one_of(st.none(), SIZES)
PC = MainMemory(total_bytes=32 * GB, available_bytes=22 * GB)
"""20 GB are idle: 2 GB stay free."""


def share(room, memory=PC, promised_bytes=0, *, is_pinned=False):
    return host_share(room, memory, promised_bytes, is_pinned=is_pinned)


def test_half_of_what_is_idle_is_taken_where_nobody_has_said_how_much():
    assert share(CacheRoom(None)) == HostShare(10 * GB)
    assert share(CacheRoom(None), is_pinned=True) == HostShare(5 * GB)
    assert share(CacheRoom(None), promised_bytes=8 * GB) == HostShare(6 * GB)
    assert share(CacheRoom(None), MainMemory(8 * GB, GB // 2)) == HostShare(0)


def test_three_stages_of_one_pc_take_no_more_than_one():
    assert share(CacheRoom(None).shared_by(3)).taken_bytes == 10 * GB // 3
    assert share(CacheRoom(9 * GB).shared_by(3)).taken_bytes == 3 * GB


def test_10_gb_of_a_pc_with_8_are_what_is_idle_there():
    taken = share(CacheRoom(10 * GB), MainMemory(8 * GB, 5 * GB), GB)
    assert taken.taken_bytes == 8 * GB - 3 * GB - 8 * GB // 10 - GB
    assert taken.why_less == (
        "3.2 GB of 10.0 GB are taken: the PC has 8.0 GB of memory, of which 5.0 GB are free and "
        "0.8 GB stay so beside 1.0 GB for KV"
    )
    assert share(CacheRoom(10 * GB)) == HostShare(10 * GB)


@given(LENT, MEMORIES, SIZES, st.integers(1, 8), st.booleans())
def test_never_more_than_what_is_lent_or_idle(lent, memory, promised, stages, is_pinned):
    """Of all stages together."""
    room = CacheRoom(lent).shared_by(stages)
    taken = share(room, memory, promised, is_pinned=is_pinned)
    assert taken.taken_bytes >= 0
    assert taken.taken_bytes * stages <= max(0, memory.idle_bytes - promised)
    assert lent is None or taken.taken_bytes * stages <= lent
    is_less = room.ram_bytes is not None and taken.taken_bytes < room.ram_bytes
    assert bool(taken.why_less) is is_less


@given(SIZES, LENT, SIZES, MEMORIES)
def test_what_is_left_leaves_the_reserve_or_nothing(taken, lent, held, memory):
    room = host_room(HostShare(taken), lent, held, memory)
    size, gone = room.size_bytes, max(0, held - room.size_bytes)
    assert 0 <= size <= taken and (lent is None or size <= lent)
    assert size == 0 or memory.idle_bytes + gone >= 0
    assert bool(room.why_less) is (size < taken)


@given(SIZES, SIZES, MEMORIES)
def test_all_is_back_when_the_memory_is(taken, held, memory):
    """What it holds itself is not taken for others'."""
    held = min(held, taken)
    roomy = MainMemory(memory.total_bytes, memory.reserve_bytes + taken - held)
    assert host_room(HostShare(taken), None, held, roomy).size_bytes == taken


@pytest.mark.parametrize(
    "lent, available, size, why",
    [
        (None, 9 * GB, 6 * GB, ""),
        (None, GB, 3 * GB, "others need the memory: 1.0 GB are free, 2.0 GB stay so"),
        (2 * GB, 9 * GB, 2 * GB, "its owner lends less now"),
        (0, GB, 0, "its owner lends less now"),
    ],
)
def test_why_there_is_less_is_said(lent, available, size, why):
    room = host_room(HostShare(6 * GB), lent, 4 * GB, MainMemory(32 * GB, available))
    assert (room.size_bytes, room.why_less) == (size, why)
