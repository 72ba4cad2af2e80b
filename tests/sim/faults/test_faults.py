"""Each kind of fault does what it says, and no more."""

from dataclasses import replace
from itertools import pairwise

import pytest

from molink.errors import UserError
from molink_scheduler.batch import BatchClass
from molink_sim.clock import Clock
from molink_sim.faults import FAULTS, draw_faults
from molink_sim.faults.cuts import cut_link
from molink_sim.faults.disturb import SlowCost
from molink_sim.scenario import (
    DuplicatedMessages,
    HostSuspended,
    LateMessages,
    LinkChange,
    LinkCut,
    LinkSpec,
    NodeLoss,
    RequestArrival,
    Scenario,
    SlowNode,
)
from molink_sim.simulate import World, simulate


@pytest.fixture
def suffer(plain_ring):
    """Runs one request a second for twenty seconds under the given faults."""

    def run(*faults, rings=1):
        arrivals = [RequestArrival(float(number), 64, 20) for number in range(20)]
        scenario = Scenario((plain_ring(3, 100, 0.01),) * rings, arrivals, duration_s=30)
        world = World(replace(scenario, faults=faults))
        world.run()
        return world.coordinator.requests

    return run


def gap_max_s(requests):
    times = [request.token_times_s for request in requests]
    return max(b - a for found in times for a, b in pairwise(found))


def test_a_cut_delays_and_loses_nothing(suffer):
    requests = suffer(LinkCut(0, 1, 5.5, 7.5))
    assert all(request.finished for request in requests)
    assert 1.9 < gap_max_s(requests) < 2.5


def test_a_cut_goes_into_the_changes_of_a_link():
    link = LinkSpec(100, 0.01, changes=(LinkChange(5, 50, 0.02), LinkChange(9, 80, 0.03)))
    assert cut_link(link, 4, 6).changes == (
        LinkChange(4, 0, 0.01),
        LinkChange(6, 50, 0.02),
        LinkChange(9, 80, 0.03),
    )
    twice = cut_link(cut_link(link, 4, 7), 6, 10).changes
    assert twice == (LinkChange(4, 0, 0.01), LinkChange(6, 0, 0.01), LinkChange(10, 80, 0.03))


def test_a_slow_node_is_slow_while_it_lasts(plain_cost):
    clock, cost = Clock(), plain_cost(fixed_s=0.01, row_s=0.0)
    slow = SlowCost(cost, clock, [SlowNode(0, 0, 2.0, 4.0, 3.0), SlowNode(0, 0, 3.0, 5.0, 2.0)])
    found = []
    for now in (1.0, 2.0, 3.5, 4.5, 5.0):
        clock.now = now
        found.append(round(slow.step_s(BatchClass.DECODE, 1, 1, 1) * 100))
    assert found == [1, 3, 6, 2, 1]


def test_late_messages_come_late_and_all(suffer):
    requests = suffer(LateMessages(0, 0, 5.0, 8.0, 0.5, 1.0))
    assert all(request.finished for request in requests)
    assert gap_max_s(requests[5:8]) > 3 * gap_max_s(requests[:4])


@pytest.mark.parametrize("place", [0, 2])
def test_duplicates_change_no_answer(suffer, place):
    requests = suffer(DuplicatedMessages(0, place, 0.0, 20.0, 1.0, 0.3))
    assert all(request.finished and len(request.token_times_s) == 20 for request in requests)


def test_a_kind_that_is_left_out_changes_no_other(plain_ring):
    rings = (plain_ring(3), plain_ring(2))
    for seed in range(20):
        everything = draw_faults(seed, FAULTS, rings, 20.0)
        fewer = draw_faults(seed, ["late", "link-cut"], rings, 20.0)
        assert set(fewer) < set(everything) or fewer == everything
        assert all(0 <= fault.at_s < 20.0 and fault.at_s < fault.until_s for fault in everything)
        assert draw_faults(seed, [], rings, 20.0) == ()


@pytest.mark.parametrize(
    "fault, words",
    [
        (NodeLoss(1, 0, 1, 2), "a ring that exists"),
        (NodeLoss(0, 3, 1, 2), "a place of 0 to 2"),
        (LinkCut(0, 0, 2, 2), "end after it begins"),
        (HostSuspended(0, 0, 1, 2, 0.0), "noticed some time after"),
        (SlowNode(0, 0, 1, 2, 0), "factor above 0"),
        (LateMessages(0, 0, 1, 2, 1.5, 1), "share of 0 to 1"),
        (DuplicatedMessages(0, 0, 1, 2, 0.5, -1), "0 or more"),
    ],
)
def test_impossible_faults_are_refused(plain_ring, fault, words):
    scenario = Scenario((plain_ring(3),), [RequestArrival(0, 8, 2)], duration_s=10, faults=(fault,))
    with pytest.raises(UserError, match=words):
        simulate(scenario)
