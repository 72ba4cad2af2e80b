"""Driver of cells, over PCs that do as they are told: who lends what to whom, and until when."""

from random import Random

import pytest

from molink.coordinator.cell.driver import UNCLAIMED_S
from molink.coordinator.cell.lender_reports import LOST_AFTER_S
from molink.coordinator.cell.values import Grant
from molink_scheduler.cell.ledger import STEADY_S
from tests.coordinator.cell.fake_pcs import (
    ANNA,
    BEN,
    CARL,
    MB,
    WIFI,
    WIRE,
    FakePc,
    World,
    two_pcs,
)


def test_nothing_runs_and_nothing_is_lent_before_the_operator_has_confirmed_the_cell():
    world = two_pcs()
    world.pairs.clear()
    assert world.borrow(ANNA) == "No PC of its LAN is confirmed to lend to it."
    assert not world.pcs[BEN].serves and not world.pcs[BEN].allowed and not world.pcs[ANNA].echoes


def test_a_stage_gets_a_lease_and_its_lender_the_same_key():
    world = two_pcs()
    grant = world.borrow(ANNA)
    assert isinstance(grant, Grant) and grant.tokens == 1600
    lan, ben = grant.lan, world.pcs[BEN]
    assert (lan.host, lan.port, lan.incarnation) == ("10.0.0.2", 4000, ben.started)
    assert lan.places_bytes == 1_600_000 and world.lent(BEN) == {lan.lease: 1_600_000}
    assert ben.keys[lan.lease] == lan.key
    world.run(300)
    assert world.lent(BEN) == {lan.lease: 1_600_000} and grant.lease.number in world.driver.grants


def test_keys_differ_by_lease():
    world = two_pcs()
    world.borrow(ANNA)
    world.run(200)
    assert len(set(world.pcs[BEN].keys.values())) == len(world.pcs[BEN].keys) >= 4


def test_a_stage_that_wants_more_than_there_is_gets_what_there_is():
    grant = two_pcs().borrow(ANNA, tokens=100_000)
    assert grant.tokens == 4 * MB // 16_000 * 16


def test_what_is_given_back_may_be_lent_again():
    world = two_pcs()
    world.borrow(ANNA, tokens=4000)
    world.driver.drop(ANNA)
    world.run(2)
    assert world.lent(BEN) == {}
    assert world.borrow(ANNA, tokens=4000).tokens == 4000


def test_two_stages_share_a_lender_and_a_third_one_is_refused_with_a_figure():
    world = two_pcs()
    world.pcs[CARL] = FakePc(echo_ms={BEN: WIRE})
    world.confirm(BEN, CARL)
    assert world.borrow(ANNA, tokens=2000).tokens == 2000
    assert world.borrow(CARL, tokens=2000).tokens == 2000
    world.driver.want(world.driver.grants[max(world.driver.grants)].wanted)
    world.run(5)
    assert sum(world.lent(BEN).values()) <= 4 * MB


def test_who_was_not_confirmed_as_a_pair_lends_nothing_within_a_cell():
    world = two_pcs()
    world.pcs[CARL] = FakePc(echo_ms={BEN: WIRE})
    world.confirm(ANNA, CARL)
    assert not isinstance(world.borrow(CARL), Grant)
    assert world.lent(BEN) == {}


def test_the_next_lender_is_asked_where_the_first_one_refuses():
    world = two_pcs(refuses=True)
    world.pcs[CARL] = FakePc(room_bytes=4 * MB)
    world.pcs[ANNA].echo_ms[CARL] = (0.4,) * 20
    world.confirm(ANNA, CARL)
    grant = world.borrow(ANNA)
    assert grant.lender == CARL and world.lent(BEN) == {}


def test_a_stage_that_everybody_refuses_is_told_so():
    assert two_pcs(refuses=True).borrow(ANNA) == "Every lender that was asked has refused."


def test_what_a_link_takes_is_held_against_what_a_token_may_take_longer():
    assert two_pcs().borrow(ANNA, slower_s=1e-3).startswith("A step may take 1 ms longer")


def test_wi_fi_is_in_no_cell():
    world = two_pcs()
    world.pcs[ANNA].echo_ms[BEN] = WIFI
    sentence = world.borrow(ANNA)
    assert sentence == "None of 1 other devices that lend is near enough."
    assert world.driver.echoes.links[ANNA, BEN].near_s == pytest.approx(4e-3)


def test_a_link_that_becomes_slow_ends_leases_and_one_that_comes_back_each_minute_stays_out():
    world = two_pcs()
    world.borrow(ANNA)
    for _ in range(4):
        world.pcs[ANNA].echo_ms[BEN] = WIFI
        world.run(65)
        assert world.lent(BEN) == {} and not world.driver.grants
        world.pcs[ANNA].echo_ms[BEN] = WIRE
        world.run(65)
    assert not world.driver.echoes.links[ANNA, BEN].is_in
    world.run(STEADY_S + 65)
    assert isinstance(world.borrow(ANNA), Grant)


def test_an_owner_s_word_ends_a_lease_and_the_ring_may_borrow_again_later():
    world = two_pcs()
    world.borrow(ANNA)
    world.pcs[BEN].take_back()
    world.run(2)
    assert not world.driver.grants
    world.pcs[BEN].room_bytes = 4 * MB
    assert isinstance(world.borrow(ANNA, seconds=70), Grant)


def test_a_lender_that_starts_anew_has_lent_nothing_and_is_left_alone_for_a_while():
    world = two_pcs()
    first = world.borrow(ANNA)
    world.pcs[BEN].restart()
    world.run(2)
    assert not world.driver.grants
    assert not isinstance(world.borrow(ANNA, seconds=20), Grant)
    world.run(STEADY_S)
    again = world.borrow(ANNA)
    assert again.lan.incarnation == world.pcs[BEN].started != first.lan.incarnation
    assert again.lan.lease > first.lan.lease


def test_a_lender_that_is_silent_for_a_moment_keeps_its_leases_and_a_lost_one_does_not():
    world = two_pcs()
    world.borrow(ANNA)
    world.pcs[BEN].is_here = False
    world.run(LOST_AFTER_S - 2)
    assert world.driver.grants
    world.run(4)
    assert not world.driver.grants
    world.pcs[BEN].is_here = True
    world.run(3)
    assert world.lent(BEN) == {}


def test_a_debtor_s_silence_ends_nothing_as_its_ring_may_serve():
    world = two_pcs()
    world.borrow(ANNA)
    world.pcs[ANNA].is_here = False
    world.run(55)
    assert world.driver.grants and world.lent(BEN)


def test_forgotten_pairs_end_their_leases_and_what_lends():
    world = two_pcs()
    world.borrow(ANNA)
    world.pairs.clear()
    world.run(2)
    assert not world.driver.grants and not world.pcs[BEN].allowed and not world.pcs[BEN].serves


def test_a_coordinator_that_starts_anew_keeps_what_its_rings_claim_and_ends_the_rest():
    world = two_pcs()
    world.pcs[CARL] = FakePc(echo_ms={BEN: WIRE})
    world.confirm(BEN, CARL)
    kept = world.borrow(ANNA)
    world.borrow(CARL)
    assert len(world.lent(BEN)) == 2
    world.start_coordinator(next_lease=10**6)
    world.run(20)
    assert len(world.lent(BEN)) == 2
    world.driver.adopt(kept)
    world.run(UNCLAIMED_S + 70)
    assert world.lent(BEN) == {kept.lan.lease: kept.lan.places_bytes}
    assert list(world.driver.grants) == [kept.lan.lease]


@pytest.mark.parametrize("seed", range(12))
def test_no_lender_gives_more_than_its_owner_lends_and_nobody_has_what_no_lender_gave(seed):
    """Random wishes, games, restarts, silences and confirmations; then all is quiet, and what the
    driver counts is what the PCs have."""
    draw = Random(seed)
    names = (ANNA, BEN, CARL)
    world = World({name: FakePc(draw.choice([0, 2, 4]) * MB) for name in names})
    for name, pc in world.pcs.items():
        pc.echo_ms = {other: WIRE for other in names if other != name}
    for _ in range(60):
        one, other = draw.sample(names, 2)
        match draw.randrange(8):
            case 0:
                world.confirm(one, other)
            case 1:
                world.pairs.discard((min(one, other), max(one, other)))
            case 2:
                world.pcs[one].take_back()
            case 3:
                world.pcs[one].room_bytes = 4 * MB
            case 4:
                world.pcs[one].restart()
            case 5:
                world.pcs[one].is_here = not world.pcs[one].is_here
            case 6:
                world.driver.drop(one)
            case _:
                world.borrow(one, tokens=draw.choice([100, 1000, 5000]), seconds=0)
        world.run(draw.choice([0.5, 3, 30, 90]))
        for pc in world.pcs.values():
            assert sum(pc.allowed.values()) <= pc.room_bytes
    for pc in world.pcs.values():
        pc.is_here = True
    world.run(UNCLAIMED_S + 130)
    counted = {number: one.lan.places_bytes for number, one in world.driver.grants.items()}
    given = {number: size for name in names for number, size in world.lent(name).items()}
    assert counted == given
    assert all(
        (one.wanted.pc, one.lender) in world.driver.echoes.links
        for one in world.driver.grants.values()
    )
