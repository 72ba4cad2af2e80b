"""A card that lends beside its PC's main memory: two lenders of one PC, each with its own room."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.coordinator.cell.lender_reports import LOST_AFTER_S
from molink.coordinator.cell.values import Grant
from tests.coordinator.cell.fake_pcs import ANNA, BEN, CARL, MB, WIFI, WIRE, FakePc, World

CARD = f"{BEN}/cuda:1"
NEAR = {BEN: WIRE, CARD: WIRE}


def world_of(ram: int = 4 * MB, card: int = 8 * MB, **of_card) -> World:
    """Anna and Carl, who lend nothing, and Ben, who lends main memory and a card; confirmed."""
    ben = FakePc(room_bytes=ram, card=FakePc(room_bytes=card, **of_card), echo_ms={CARD: WIRE})
    pcs = {ANNA: FakePc(echo_ms=dict(NEAR)), BEN: ben, CARL: FakePc(echo_ms=dict(NEAR))}
    world = World(pcs)
    world.confirm(ANNA, BEN)
    world.confirm(BEN, CARL)
    return world


def lent_on_card(world: World) -> dict[int, int]:
    return {number: size for number, size in world.pcs[BEN].card.allowed.items() if size}


def test_the_faster_of_two_lenders_in_a_pc_is_asked_first():
    world = world_of()
    grant = world.borrow(ANNA)
    assert isinstance(grant, Grant) and grant.lender == CARD
    assert (grant.lan.host, grant.lan.port) == ("10.0.0.2", 5000)
    assert lent_on_card(world) == {grant.lan.lease: 1_600_000} and world.lent(BEN) == {}
    assert world.pcs[BEN].card.keys[grant.lan.lease] == grant.lan.key


def test_a_card_slower_than_the_cores_is_asked_second():
    assert world_of(bytes_per_s=1e9).borrow(ANNA).lender == BEN


def test_the_other_lender_of_the_pc_is_asked_where_the_card_refuses():
    world = world_of(refuses=True)
    assert world.borrow(ANNA).lender == BEN and lent_on_card(world) == {}


def test_a_stage_of_the_pc_itself_borrows_of_its_card_and_nobody_has_to_confirm_that():
    world = world_of()
    world.pairs.clear()
    grant = world.borrow(BEN)
    assert (grant.lender, grant.lan.host, grant.lan.port) == (CARD, "127.0.0.1", 5000)
    assert not world.pcs[BEN].serves, "its main memory is nobody else's"
    assert world.borrow(ANNA) == "No PC of its LAN is confirmed to lend to it."


def test_a_pc_is_not_lent_its_own_main_memory():
    world = world_of(card=0)
    assert not isinstance(world.borrow(BEN), Grant) and world.lent(BEN) == {}


def test_a_card_that_is_taken_back_leaves_what_main_memory_has_lent():
    world = world_of()
    on_card = world.borrow(ANNA, tokens=8000)
    in_memory = world.borrow(CARL, tokens=1600)
    assert (on_card.lender, in_memory.lender) == (CARD, BEN)
    world.pcs[BEN].card.take_back()
    world.run(3)
    assert on_card.lease.number not in world.driver.grants
    assert in_memory.lease.number in world.driver.grants
    assert lent_on_card(world) == {} and len(world.lent(BEN)) == 1


def test_less_of_a_card_recalls_of_its_leases_alone():
    world = world_of()
    on_card, in_memory = world.borrow(ANNA, tokens=8000), world.borrow(CARL, tokens=1600)
    world.pcs[BEN].card.room_bytes = 4 * MB
    world.run(2)
    left = world.driver.grants
    assert left[on_card.lease.number].lease.size_bytes == 4 * MB
    assert left[in_memory.lease.number] == in_memory


def test_a_card_that_is_near_by_nobody_s_echoes_lends_nothing():
    world = world_of()
    world.pcs[ANNA].echo_ms[CARD] = WIFI
    assert world.borrow(ANNA).lender == BEN


def test_a_card_that_is_told_of_no_more_gives_up_its_leases():
    world = world_of()
    grant = world.borrow(ANNA)
    world.pcs[BEN].card = None
    world.run(1)
    assert grant.lease.number not in world.driver.grants
    assert world.borrow(ANNA).lender == BEN


@pytest.mark.parametrize("away_s, kept", [(LOST_AFTER_S / 2, True), (3 * LOST_AFTER_S, False)])
def test_a_pc_that_is_silent_for_a_moment_keeps_what_its_card_has_lent(away_s, kept):
    world = world_of()
    grant = world.borrow(ANNA)
    world.pcs[BEN].is_here = False
    world.run(away_s)
    assert (grant.lease.number in world.driver.grants) == kept


ROOMS = st.integers(0, 6).map(lambda size: size * MB)


@settings(max_examples=25, deadline=None)
@given(ROOMS, ROOMS, st.lists(st.integers(1, 5000), min_size=1, max_size=3), ROOMS)
def test_each_of_two_lenders_keeps_to_its_own_room_and_loses_its_own_leases(
    ram, card, tokens, card_later
):
    world = world_of(ram, card)
    for pc, wanted in zip((ANNA, CARL, BEN), tokens, strict=False):
        world.borrow(pc, tokens=wanted)
        on_card, in_memory = lent_on_card(world), world.lent(BEN)
        assert sum(on_card.values()) <= card and sum(in_memory.values()) <= ram
        assert not on_card.keys() & in_memory.keys()
    before = dict(world.driver.grants)
    by_lender = {number: one.lender for number, one in before.items()}
    assert by_lender == dict.fromkeys(on_card, CARD) | dict.fromkeys(in_memory, BEN)
    world.pcs[BEN].card.room_bytes = card_later
    world.run(2)
    after = world.driver.grants
    assert sum(one.lease.size_bytes for one in after.values() if one.lender == CARD) <= card_later
    kept = {number: one for number, one in before.items() if one.lender == BEN}
    assert kept == {number: one for number, one in after.items() if one.lender == BEN}
