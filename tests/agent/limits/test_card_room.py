"""A card that holds no stage and lends KV: which one it is, how much, and what is refused."""

from dataclasses import replace

import pytest

from molink.errors import UserError
from molink.hardware.card_memory import kept_free_bytes
from molink_agent.limits.card_room import (
    CARD_NOT_SET,
    UNKNOWN_CARD_BYTES_PER_S,
    card_bytes_per_s,
    card_mistake,
    card_room,
)
from molink_agent.limits.lend_room import LendRoom, leases_to_end
from molink_agent.limits.lent import BESIDE_STAGE_BYTES, lending_card, lent_devices
from molink_agent.limits.limits import OwnerLimits, limits_of, with_value
from molink_agent.probe.gpus import GpuReport
from molink_scheduler.units import GB
from tests.agent.pcs import CARD, ONE_CARD, pc

SECOND, THIRD = replace(CARD, index=1), replace(CARD, index=2)
TWO, THREE, NONE = (
    replace(ONE_CARD, gpus=(CARD, SECOND)),
    replace(ONE_CARD, gpus=(CARD, SECOND, THIRD)),
    GpuReport(reason="no NVIDIA driver is installed"),
)
LENDS = OwnerLimits(lend_gpu_bytes=4 * GB)


@pytest.mark.parametrize(
    ("device", "cards", "lends", "serve"),
    [
        ("auto", TWO, SECOND, ["cuda:0"]),
        ("auto", THREE, THIRD, ["cuda:0", "cuda:1"]),
        ("cuda:1", TWO, CARD, ["cuda:1"]),
        ("cuda:0", THREE, THIRD, ["cuda:0"]),
        ("cpu", ONE_CARD, CARD, ["cpu"]),
        ("auto", ONE_CARD, None, ["cuda:0"]),
        ("cuda:0,cuda:1", TWO, None, ["cuda:0", "cuda:1"]),
        ("auto", NONE, None, ["cpu"]),
    ],
)
def test_the_card_that_lends_holds_no_stage(device, cards, lends, serve):
    limits = replace(LENDS, device=device)
    assert lending_card(limits, cards) == lends
    assert [part.device for part in lent_devices(limits, pc(), cards)] == serve


def test_all_cards_serve_where_none_is_to_lend():
    assert lending_card(OwnerLimits(), TWO) is None
    devices = [part.device for part in lent_devices(OwnerLimits(), pc(), TWO)]
    assert devices == ["cuda:0", "cuda:1"]


def test_what_the_owner_has_set_is_lent():
    assert card_room(LENDS, TWO) == LendRoom(
        4 * GB, 0, "", 4 * GB, CARD.free_bytes - kept_free_bytes(CARD.memory_bytes)
    )
    assert card_room(OwnerLimits(), TWO) == LendRoom(why_less=CARD_NOT_SET)


@pytest.mark.parametrize(
    ("gb", "device", "cards", "says"),
    [
        (4, "auto", NONE, "lend_gpu_gb is 4.00 GB, and this PC has no card (no NVIDIA driver"),
        (4, "auto", ONE_CARD, "device = 'auto' uses all that there are (cuda:0): set device"),
        (4, "cuda:0,cuda:1", TWO, "uses all that there are (cuda:0, cuda:1): set device"),
        (16, "auto", TWO, "lend_gpu_gb is 16.00 GB, and cuda:1 has 12.88 GB: set less."),
    ],
)
def test_what_no_card_can_lend_is_refused_with_a_figure(gb, device, cards, says):
    limits = OwnerLimits(lend_gpu_bytes=gb * GB, device=device)
    assert says in card_mistake(limits, cards)
    assert card_room(limits, cards) == LendRoom(why_less=card_mistake(limits, cards))
    assert card_mistake(LENDS, TWO) == card_mistake(OwnerLimits(device=device), cards) == ""


@pytest.mark.parametrize("typed", ["-1", "nan", "inf", "x", "5000"])
def test_a_size_that_is_none_is_refused(typed):
    with pytest.raises(UserError, match="lend_gpu_gb must be a number of GB from 0 to 4096"):
        with_value(OwnerLimits(), "lend_gpu_gb", typed)


def test_nought_and_none_take_it_back():
    assert limits_of({"lend_gpu_gb": 4}, "limits.toml") == LENDS
    for typed in ("0", "none"):
        assert with_value(LENDS, "lend_gpu_gb", typed) == OwnerLimits()


def test_a_game_on_the_card_takes_it_back():
    room = card_room(LENDS, TWO, 4 * GB, "A game or another program draws on cuda:1.")
    assert room == LendRoom(why_less="A game or another program draws on cuda:1.")
    assert leases_to_end({7: 4 * GB}, {7: 4 * GB}, room) == {7}


def test_programs_that_fill_the_card_take_back_what_they_need():
    kept = kept_free_bytes(CARD.memory_bytes)
    full = replace(TWO, gpus=(CARD, replace(SECOND, free_bytes=kept - GB)))
    room = card_room(LENDS, full, held_bytes=3 * GB)
    assert room.size_bytes == 2 * GB - BESIDE_STAGE_BYTES and room.idle_bytes == -GB
    assert room.why_less.endswith("of cuda:1 are free beside what always stays so.")
    assert leases_to_end({7: 2 * GB, 8: GB}, {7: 2 * GB, 8: GB}, room) == {8}


def test_a_card_attends_as_fast_as_its_memory_is_and_an_unknown_one_slower_than_any():
    assert card_bytes_per_s(CARD) == pytest.approx(0.78 * 360e9)
    assert card_bytes_per_s(replace(CARD, name="Voodoo")) == UNKNOWN_CARD_BYTES_PER_S
