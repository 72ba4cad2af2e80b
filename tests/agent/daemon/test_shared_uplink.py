"""Seats reach each other within the PC, and share its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.payloads import Assignment, PeerAddress, StageLink
from molink_agent.daemon.shared_uplink import Household

ANNA, SECOND, BEN = "a" * 16, "b" * 16, "c" * 16
KEY = "k" * 40


def link(to: str, port_name: str = "ring") -> StageLink:
    return StageLink(
        to=to,
        public_key=KEY,
        addresses=("10.0.0.1:7",),
        port_name=port_name,
        relay="relay.example:1",
    )


def work(to: str, *, tail: bool = False) -> Assignment:
    requests = link("coordinator") if tail else None
    return Assignment(revision=1, next_link=link(to), coordinator_link=requests)


@pytest.fixture
def home():
    household = Household(lambda: 100.0)
    household.enter(ANNA)
    household.enter(SECOND)
    return household


def test_a_link_to_another_seat_stays_within_the_pc(home):
    assert home.nearer(link(SECOND)) == link(SECOND)
    home.listens(SECOND, "ring", "127.0.0.1:5000")
    near = home.nearer(link(SECOND))
    assert (near.addresses, near.relay) == (("127.0.0.1:5000", "10.0.0.1:7"), "")
    assert home.nearer(link(SECOND, "requests")) == link(SECOND, "requests")
    assert home.nearer(link(BEN)) == link(BEN)


def test_a_measurement_of_another_seat_stays_within_the_pc(home):
    home.listens(SECOND, "peer", "127.0.0.1:5001")
    peer = PeerAddress(node_id=SECOND, public_key=KEY, addresses=())
    assert home.nearer_peer(peer).addresses == ("127.0.0.1:5001",)
    stranger = peer.model_copy(update={"node_id": BEN})
    assert home.nearer_peer(stranger) == stranger


def test_only_who_sends_out_of_the_pc_has_a_share(home):
    told = []
    home.cap_changed = lambda: told.append(
        (home.share_bytes_per_s(ANNA), home.share_bytes_per_s(SECOND))
    )
    home.joins(ANNA, work(SECOND))
    assert told == [] and home.share_bytes_per_s(ANNA) is None
    home.joins(SECOND, work(BEN))
    home.joins(ANNA, work(ANNA, tail=True))
    home.joins(ANNA, work(BEN))
    home.leaves(SECOND)
    home.leaves(SECOND)
    assert told == [(None, 100.0), (50.0, 50.0), (100.0, None)]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["in", "out", "leaves"]))))
def test_all_shares_together_are_never_more_than_the_cap(steps):
    home, seats = Household(lambda: 100.0), [letter * 16 for letter in "abdef"]
    for seat in seats:
        home.enter(seat)
    outside = set()
    for number, step in steps:
        seat = seats[number]
        if step == "leaves":
            home.leaves(seat)
        else:
            home.joins(seat, work(BEN if step == "out" else seats[0]))
        (outside.add if step == "out" else outside.discard)(seat)
        shares = {seat: home.share_bytes_per_s(seat) for seat in seats}
        assert {seat for seat, share in shares.items() if share is not None} == outside
        assert sum(share or 0 for share in shares.values()) <= 100.0 + 1e-6


def test_without_a_cap_there_are_no_shares():
    home = Household(lambda: None)
    home.enter(ANNA)
    home.joins(ANNA, work(BEN))
    assert home.share_bytes_per_s(ANNA) is None
