"""A way that dies silently: every message arrives once and in order, whatever its network does."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.peer_watch import SILENT_MIN_S
from molink_scheduler.link.silence import (
    LOST_S,
    RECONNECT_S,
    SILENT_S_MAX,
    SILENT_S_MIN,
    GiveUp,
    Reconnect,
)
from tests.transport.link.fake_network import ADDRESS, FakeNetwork

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL
CALM_S = 40.0
"""After the last trouble: more than any try waits."""


@st.composite
def troubles(draw):
    """Up to five, some seconds each, with pauses between."""
    found, now = [], 0.0
    for _ in range(draw(st.integers(1, 5))):
        start = now + draw(st.floats(0.0, 8.0))
        what = draw(st.sampled_from(["frozen", "hole", "cut"]))
        now = start + draw(st.floats(0.01, 9.0))
        found.append((start, now, what))
    return found


messages = st.lists(
    st.tuples(st.floats(0.0, 40.0), st.sampled_from([DECODE, PREFILL]), st.integers(1, 60_000)),
    min_size=1,
    max_size=40,
)


def loaded(troubles, sent, one_way_s=0.03) -> FakeNetwork:
    network = FakeNetwork(troubles, one_way_s)
    for number, (when, batch_class, size) in enumerate(sent):
        network.send_at(when, batch_class, b"%d " % number + bytes(size))
    return network


def numbers(network: FakeNetwork, batch_class: BatchClass) -> list[int]:
    header = b"%d" % batch_class
    return [int(frames[1].split()[0]) for _, frames in network.arrived if frames[0] == header]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(troubles(), messages, st.floats(0.001, 0.3))
def test_every_message_arrives_once_and_in_order(troubles, sent, one_way_s):
    sent.sort(key=lambda message: message[0])
    network = loaded(troubles, sent, one_way_s)
    network.run(max(40.0, troubles[-1][1]) + CALM_S)
    for batch_class in (DECODE, PREFILL):
        expected = [n for n, message in enumerate(sent) if message[1] == batch_class]
        assert numbers(network, batch_class) == expected
    assert network.reassembly.chunks_refused == network.frames_refused == 0
    assert network.link.sender.oldest is None and not network.link.transfers_waiting
    assert not network.link._stream._sent
    assert sum(not one.closed for one in network.connections) == 1
    assert not any(isinstance(step, GiveUp) for _, step in network.steps)


def steadily(until: float, size: int = 500) -> list:
    return [(tick / 10, DECODE, size) for tick in range(int(until * 10))]


def longest_gap_s(network: FakeNetwork) -> float:
    return max(b - a for (a, _), (b, _) in itertools.pairwise(network.arrived))


def test_a_link_that_works_is_left_alone():
    network = loaded([], [*steadily(60), (5.0, PREFILL, 20_000_000)])
    network.run(61)
    assert network.steps == [] and len(network.connections) == 1
    assert len(network.arrived) == 601


def test_a_forgotten_connection_is_noticed_within_three_seconds_and_costs_a_round_trip_more():
    network = loaded([(10.0, 10.2, "hole")], steadily(20))
    network.run(20)
    ((noticed_at, step),) = network.steps
    assert step == Reconnect(ask_for_path=False)
    assert 10 + SILENT_S_MIN <= noticed_at <= 10 + SILENT_S_MIN + 1.1
    assert longest_gap_s(network) <= noticed_at - 10 + 0.5
    assert numbers(network, DECODE) == list(range(200))


def test_what_a_connection_lost_that_was_made_anew_by_itself_is_repeated_without_a_wait():
    network = loaded([(10.01, 10.02, "cut")], steadily(20))
    network.run(20)
    assert network.steps == [] and len(network.connections) == 1
    assert longest_gap_s(network) < 0.3
    assert numbers(network, DECODE) == list(range(200))


def test_an_idle_link_that_has_lost_its_way_is_mended_before_anybody_needs_it():
    network = loaded([(10.0, 10.5, "hole")], [(1.0, DECODE, 500), (30.0, DECODE, 500)])
    network.run(31)
    assert [step for _, step in network.steps] == [Reconnect(ask_for_path=False)]
    assert network.steps[0][0] <= 10 + 2 * SILENT_S_MIN + 0.5
    assert numbers(network, DECODE) == [0, 1] and network.arrived[-1][0] < 30.1


def silent_from(network: FakeNetwork, until: float) -> float | None:
    """When the sender first misses its far end; it looks ten times a second."""
    found: list[float] = []

    def look() -> None:
        if network.link.peer.look(network.now):
            found.append(network.now)

    for tick in range(int(until * 10)):
        network.at(tick / 10, look)
    network.run(until)
    return found[0] if found else None


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.floats(3.0, 9.0), st.floats(0.0, 0.5), st.floats(0.001, 0.2), st.booleans())
def test_a_cut_of_half_a_second_ends_nothing_and_loses_nothing(start, length_s, one_way_s, idle):
    sent = [(20.0, DECODE, 500)] if idle else steadily(20)
    network = loaded([(start, start + length_s, "frozen")], sent, one_way_s)
    assert silent_from(network, 21.0) is None
    assert network.steps == [] and len(network.connections) == 1
    assert numbers(network, DECODE) == list(range(len(sent)))


@pytest.mark.parametrize("idle", [True, False])
def test_a_far_end_that_vanishes_is_missed_within_a_second_and_a_half(idle):
    network = loaded([(10.0, 900.0, "hole")], [] if idle else steadily(20))
    assert 10 + SILENT_MIN_S - 0.3 <= silent_from(network, 20.0) <= 11.5


def test_a_freeze_repeats_no_more_than_was_under_way():
    network = loaded([(10.0, 13.5, "frozen")], steadily(20, size=5000))
    network.run(20)
    assert numbers(network, DECODE) == list(range(200))
    assert network.bytes_sent < 200 * 5100 + 40 * 5100


def test_when_the_same_way_stays_dead_another_one_is_asked_for_and_taken():
    network = loaded([(10.0, 300.0, "hole")], steadily(30))
    network.at(17.0, lambda: network.troubles.clear())
    network.at(16.9, lambda: network.blocked.add(ADDRESS))
    network.at(17.0, lambda: network.link.move_to("tcp://relay:1", lambda outcome: None))
    network.run(30)
    assert [step.ask_for_path for _, step in network.steps[:2]] == [False, True]
    assert network.steps[1][0] - network.steps[0][0] <= RECONNECT_S + 1.1
    assert network.link.address == "tcp://relay:1"
    assert numbers(network, DECODE) == list(range(300))


def test_a_link_without_any_way_is_given_up_once_and_in_time():
    network = loaded([(10.0, 900.0, "hole")], steadily(30))
    network.run(200)
    given_up = [(when, step) for when, step in network.steps if isinstance(step, GiveUp)]
    ((when, step),) = given_up
    assert network.steps[-1] == (when, step)
    assert when <= 10 + SILENT_S_MAX + LOST_S + 2.2 and step.silent_s >= LOST_S


def test_a_slow_link_is_not_taken_for_a_dead_one():
    """Two seconds one way: acknowledgements come later than any first guess."""
    network = loaded([], steadily(60), one_way_s=2.0)
    network.run(70)
    assert numbers(network, DECODE) == list(range(600))
    assert len(network.steps) <= 2
