"""Memory lent to stages on other PCs: what the owner has set, what is free, and what ends first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import UserError
from molink.hardware.host import MEMORY_RESERVE_BYTES_MAX
from molink_agent.limits.lend_room import (
    NOT_SET,
    LendRoom,
    leases_to_end,
    lend_mistake,
    lend_room,
)
from molink_agent.limits.lent import lent_threads
from molink_agent.limits.limits import OwnerLimits, limits_of, with_value
from molink_scheduler.units import GB, GIB
from tests.agent.pcs import pc

LENDS = OwnerLimits(lend_ram_bytes=4 * GB, lend_cpu_cores=2)


def test_nothing_is_lent_unless_memory_and_cores_are_set():
    for limits in (
        OwnerLimits(),
        OwnerLimits(lend_ram_bytes=4 * GB),
        OwnerLimits(lend_cpu_cores=2),
    ):
        assert lend_room(limits, pc()) == LendRoom(0, 0, NOT_SET)


def test_what_the_owner_has_set_is_lent():
    room = lend_room(LENDS, pc())
    assert (room.size_bytes, room.cores, room.why_less, room.kept_bytes) == (4 * GB, 2, "", 4 * GB)


def test_programs_that_need_the_memory_take_it_back():
    short = pc(memory_available_bytes=MEMORY_RESERVE_BYTES_MAX + GB)
    room = lend_room(LENDS, short)
    assert (room.size_bytes, room.why_less) == (
        GB,
        "1.00 GB of main memory are free beside what always stays so.",
    )
    assert lend_room(LENDS, short, held_bytes=3 * GB).size_bytes == 4 * GB
    assert lend_room(LENDS, pc(memory_available_bytes=0), held_bytes=GB).size_bytes == 0


def test_a_game_or_the_battery_takes_all_of_it_back():
    room = lend_room(LENDS, pc(), 0, "The PC runs on its battery (pause_on_battery).")
    assert room == LendRoom(0, 0, "The PC runs on its battery (pause_on_battery).")


def test_more_than_there_is_is_refused_with_both_figures():
    more = OwnerLimits(lend_ram_bytes=64 * GB, lend_cpu_cores=2)
    sentence = "lend_ram_gb is 64.00 GB, and this PC has 34.36 GB: set less."
    assert lend_mistake(more, pc()) == sentence
    assert lend_room(more, pc()) == LendRoom(0, 0, sentence)
    many = OwnerLimits(lend_ram_bytes=GB, lend_cpu_cores=17)
    assert lend_mistake(many, pc()) == "lend_cpu_cores is 17, and this PC has 16: set less."
    assert lend_mistake(LENDS, pc()) == ""


def test_cores_that_attend_are_no_stage_s():
    assert lent_threads(LENDS, pc()) == 8
    assert lent_threads(OwnerLimits(lend_ram_bytes=GB, lend_cpu_cores=12), pc()) == 4
    assert lent_threads(OwnerLimits(lend_ram_bytes=GB, lend_cpu_cores=16), pc()) == 1
    assert lent_threads(OwnerLimits(lend_cpu_cores=12), pc()) == 8


@pytest.mark.parametrize("typed", ["-1", "nan", "inf", "x", "70000"])
def test_a_size_that_is_none_is_refused(typed):
    with pytest.raises(UserError, match="lend_ram_gb must be a number of GB from 0 to 65536"):
        with_value(OwnerLimits(), "lend_ram_gb", typed)


@pytest.mark.parametrize("typed", ["-1", "1.5", "x", "1025"])
def test_cores_that_are_none_are_refused(typed):
    with pytest.raises(UserError, match="lend_cpu_cores must be a whole number of cores"):
        with_value(OwnerLimits(), "lend_cpu_cores", typed)


def test_limits_are_read_from_the_file():
    limits = limits_of({"lend_ram_gb": 4, "lend_cpu_cores": 2}, "limits.toml")
    assert limits == LENDS
    assert with_value(limits, "lend_ram_gb", "none").lend_ram_bytes == 0
    assert lend_room(limits, pc(memory_bytes=3 * GIB)).size_bytes == 0


SIZES = st.dictionaries(st.integers(1, 99), st.integers(0, 8))


@given(SIZES, st.integers(0, 30))
def test_the_newest_leases_end_until_the_rest_fits_and_no_more(allowed, kept):
    ended = leases_to_end(allowed, {}, LendRoom(kept_bytes=kept))
    left = [size for number, size in allowed.items() if number not in ended]
    assert sum(left) <= kept
    assert ended == set(sorted(allowed, reverse=True)[: len(ended)])
    if ended:
        assert sum(left) + allowed[min(ended)] > kept


@given(SIZES, st.integers(-30, 30))
def test_a_touched_reserve_ends_leases_of_which_something_lies_here(held, idle):
    allowed = dict.fromkeys(held, 8)
    room = LendRoom(kept_bytes=sum(allowed.values()), idle_bytes=idle)
    ended = leases_to_end(allowed, held, room)
    freed = sum(held[number] for number in ended)
    assert freed >= min(-idle, sum(held.values()))
    assert bool(ended) == (idle < 0 < sum(held.values()))
