"""A ring that loses stages goes on with what survivors keep, or ends for a reason."""

from dataclasses import replace
from itertools import pairwise, permutations

import pytest

from molink.coordinator.ring import client as ring_client
from molink.errors import UserError
from molink_scheduler.kv.blocks import KvBlocks
from molink_scheduler.stage.replay_log import ReplayLog
from molink_sim.ring import coordinator
from molink_sim.ring.coordinator import Coordinator
from molink_sim.ring.stage import Stage
from molink_sim.ring.taken_layers import TakenLayers
from molink_sim.scenario import (
    AcksCut,
    ConnectionReset,
    HostSuspended,
    LinkCut,
    NodeLoss,
    RequestArrival,
    Scenario,
)
from molink_sim.swarm import check_world
from molink_sim.systems import SYSTEMS
from tests.sweeps import crossed, swept


@pytest.fixture
def suffer(plain_ring):
    """Runs one request a second for twenty seconds under the given faults, with all checkers."""

    def run(*faults, rings=1, stages=3, **changes):
        arrivals = [RequestArrival(float(number), 64, 60) for number in range(20)]
        ring = plain_ring(stages, 100, 0.01)
        scenario = Scenario((ring,) * rings, arrivals, duration_s=30, faults=faults, **changes)
        world, found = check_world(scenario)
        assert found == []
        return world

    return run


@pytest.fixture
def missing(monkeypatch):
    """Requests with which some stage could not go on."""
    go_on, found = Coordinator.go_on, []
    monkeypatch.setattr(
        Coordinator, "go_on", lambda self, *told: found.extend(told[3]) or go_on(self, *told)
    )
    return found


def all_finish(world):
    return all(
        request.finished and len(request.token_times_s) == 60
        for request in world.coordinator.requests
    )


def pause_s(world):
    times = [request.token_times_s for request in world.coordinator.requests]
    return max(b - a for found in times for a, b in pairwise(found))


def origins(world):
    return [node.origin for node in world.rings[0].nodes]


def all_layers(world):
    return [part for node in world.rings[0].nodes for part in node.parts]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_ring_goes_on_where_it_was(suffer, place):
    world = suffer(NodeLoss(0, place, 5.1, 7.1))
    assert all_finish(world)
    assert 2.0 < pause_s(world) < 2.7
    assert world.rings[0].epoch == 1


@pytest.mark.parametrize("places, lacks", crossed([(1,), (2,), (1, 2)], [0, 5, 500]))
def test_a_shadow_in_the_place_goes_on_from_what_it_holds(suffer, places, lacks):
    world = suffer(*(NodeLoss(0, place, 5.1, 17.1, lacks) for place in places))
    assert all_finish(world)
    assert 0.1 < pause_s(world) < 1.5, "it waits for nothing to load"
    assert world.rings[0].epoch == 1


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_neighbour_takes_the_layers_of_a_lost_stage_for_good(suffer, place):
    world = suffer(NodeLoss(0, place, 5.1, 7.1, neighbour_takes=True))
    assert all_finish(world)
    assert 2.0 < pause_s(world) < 2.7
    [ring] = world.rings
    assert (ring.epoch, len(ring.stages), len(ring.lines), len(ring.links)) == (1, 2, 2, 2)
    assert origins(world) == [one for one in range(3) if one != place]
    assert sum(stage.layers for stage in ring.spec.stages) == 3 * 8


@pytest.mark.parametrize("place", [1, 2])
def test_layers_that_are_behind_compute_first_what_they_lack(suffer, place, monkeypatch):
    loss = NodeLoss(0, place, 5.1, 7.1, neighbour_takes=True)
    paused_s = pause_s(suffer(loss))
    monkeypatch.setattr(TakenLayers, "fed_s", lambda *_: 0.0)
    assert paused_s > pause_s(suffer(loss)) + 0.005, "the fixed time of one step at least"


def test_layers_before_are_fed_alone(suffer, monkeypatch):
    loss = NodeLoss(0, 0, 5.1, 7.1, neighbour_takes=True)
    paused_s = pause_s(suffer(loss))
    monkeypatch.setattr(Stage, "_is_for_taken", lambda *_: False)
    assert pause_s(suffer(loss)) > paused_s + 0.005, "the kept layers would compute them again"


@pytest.mark.parametrize("place", [0, 1])
def test_requests_whose_rows_a_neighbour_logged_no_more_are_computed_anew(
    suffer, place, missing, monkeypatch
):
    monkeypatch.setattr(ReplayLog, "has", lambda *_: False)
    assert all_finish(suffer(NodeLoss(0, place, 5.1, 7.1, neighbour_takes=True)))
    assert bool(missing) == (place > 0), "a fresh head computes from the tokens"


@pytest.mark.parametrize("gone, second", [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)])
def test_after_another_loss_all_requests_go_on_where_they_were(suffer, gone, second, missing):
    world = suffer(NodeLoss(0, gone, 5.1, 7.1, neighbour_takes=True), NodeLoss(0, second, 7.7, 9.7))
    assert all_finish(world)
    assert max(request.losses for request in world.coordinator.requests) == 2
    assert missing == [], "the rows that taken layers compute are logged too"


@pytest.mark.parametrize(
    "two, second_at_s, neighbour_takes",
    crossed(list(permutations(range(3), 2)), [7.1, 7.13, 9.0], [False, True]),
)
def test_a_ring_that_has_a_stage_less_loses_another(suffer, two, second_at_s, neighbour_takes):
    gone, second = two
    world = suffer(
        NodeLoss(0, gone, 5.1, 7.1, neighbour_takes=True),
        NodeLoss(0, second, second_at_s, second_at_s + 2, neighbour_takes=neighbour_takes),
    )
    assert all_finish(world)
    left = {0, 1, 2} - ({gone, second} if neighbour_takes else {gone})
    assert origins(world) == sorted(left)
    assert all_layers(world) == [0, 1, 2]
    assert world.rings[0].epoch == 2


@pytest.mark.parametrize(
    "two, second_at_s", crossed([(0, 1), (1, 0), (1, 2), (2, 0), (2, 1)], [5.3, 6.0])
)
def test_a_second_loss_while_a_neighbour_loads(suffer, two, second_at_s):
    gone, second = two
    world = suffer(
        NodeLoss(0, gone, 5.1, 7.1, neighbour_takes=True),
        NodeLoss(0, second, second_at_s, second_at_s + 2),
    )
    assert all_finish(world)
    assert origins(world) == sorted({0, 1, 2} - {gone})
    assert all_layers(world) == [0, 1, 2]
    assert pause_s(world) > second_at_s + 2 - 5.2, "it waits for both"


def test_a_fault_of_a_node_that_is_gone_hits_nobody(suffer):
    world = suffer(
        NodeLoss(0, 1, 5.1, 7.1, neighbour_takes=True),
        NodeLoss(0, 1, 9.0, 11.0),
        HostSuspended(0, 1, 13.0, 18.0, silent_s=1.0),
    )
    assert all_finish(world)
    assert world.rings[0].epoch == 1


@pytest.mark.parametrize("lost", [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3)])
def test_neighbours_take_the_layers_of_two_stages_at_once(suffer, lost):
    losses = (NodeLoss(0, place, 5.1, 7.1, neighbour_takes=True) for place in lost)
    world = suffer(*losses, stages=4)
    assert all_finish(world)
    assert origins(world) == sorted({0, 1, 2, 3} - set(lost))
    assert all_layers(world) == [0, 1, 2, 3]
    assert world.rings[0].epoch == 1


def test_the_ring_after_one_that_has_ended_is_whole_again(suffer):
    world = suffer(
        NodeLoss(0, 1, 5.1, 7.1, neighbour_takes=True),
        NodeLoss(0, 0, 9.0, 11.0),
        NodeLoss(0, 2, 9.0, 11.0),
    )
    assert origins(world) == all_layers(world) == [0, 1, 2]
    requests = world.coordinator.requests
    assert max(request.losses for request in requests) == 2
    assert all(request.finished or not request.token_times_s for request in requests)


def test_a_shadow_and_a_neighbour_that_takes_the_layers_are_one_too_many(suffer):
    with pytest.raises(UserError, match="a shadow, or a neighbour"):
        suffer(NodeLoss(0, 1, 5.1, 7.1, shadow_lacks_tokens=0, neighbour_takes=True))


def test_a_loss_that_is_noticed_late_costs_that_much_more(suffer):
    world = suffer(NodeLoss(0, 1, 5.1, 5.2), detect_s=3.0)
    assert all_finish(world)
    assert 3.0 < pause_s(world) < 3.7


@pytest.mark.parametrize("second_at_s", swept([5.1, 5.3, 6.0, 7.0, 7.3], 5.1, 6.0, 7.3))
def test_a_second_loss_meanwhile_begins_the_same_again(suffer, second_at_s):
    world = suffer(NodeLoss(0, 1, 5.1, 7.1), NodeLoss(0, 2, second_at_s, second_at_s + 2))
    assert all_finish(world)
    assert world.rings[0].epoch in (1, 2)
    assert {request.losses for request in world.coordinator.requests} <= {0, 1, 2}


@pytest.mark.parametrize(
    "faults",
    [
        (NodeLoss(0, 1, 5.1, 6.1), NodeLoss(0, 1, 9.0, 10.0)),
        (NodeLoss(0, 1, 5.1, 70.0),),
        tuple(NodeLoss(0, place, 5.1, 6.1 + place) for place in range(3)),
    ],
    ids=["the-same-again", "too-late", "all"],
)
def test_a_ring_that_cannot_go_on_ends_and_the_next_one_computes_all_again(
    suffer, faults, monkeypatch
):
    lose, lost = Coordinator.ring_lost, []
    monkeypatch.setattr(
        Coordinator, "ring_lost", lambda self, ring: lost.append(ring) or lose(self, ring)
    )
    requests = suffer(*faults).coordinator.requests
    assert lost == [0]
    assert all(request.finished or not request.token_times_s for request in requests)
    assert max(request.losses for request in requests) >= 1


def test_another_ring_takes_over_from_one_that_has_ended(suffer):
    world = suffer(NodeLoss(0, 1, 5.1, 70.0), rings=2)
    assert all_finish(world)
    assert {r.ring for r in world.coordinator.requests if r.losses} == {1}


def test_requests_of_a_compared_system_end_with_its_ring(suffer):
    world = suffer(NodeLoss(0, 1, 5.1, 9.5), system=SYSTEMS["vllm"])
    assert 3 < sum(request.failed for request in world.coordinator.requests) < 12


@pytest.mark.parametrize("silent_s, epoch", [(2.0, 1), (60.0, 0)])
def test_a_host_that_sleeps_is_replaced_or_waited_for(suffer, silent_s, epoch):
    world = suffer(HostSuspended(0, 1, 5.0, 25.0, silent_s, load_s=3.0))
    assert all_finish(world)
    assert world.rings[0].epoch == epoch
    assert pause_s(world) == pytest.approx(5.3 if epoch else 20.2, abs=0.4)


@pytest.mark.parametrize("lasts_s, cut", crossed([0.5, 2.0, 10.0], [LinkCut, AcksCut]))
def test_a_cut_link_loses_nothing(suffer, cut, lasts_s):
    world = suffer(cut(0, 1, 5.0, 5.0 + lasts_s))
    assert all_finish(world)
    assert (pause_s(world) > lasts_s) == (cut is LinkCut)


def test_connections_that_are_reset_lose_nothing(suffer):
    resets = [ConnectionReset(0, n % 3, 1.0 + 0.7 * n, 1.2 + 0.7 * n) for n in range(20)]
    world = suffer(*resets)
    assert all_finish(world)
    assert 0.2 < pause_s(world) < 1.0


def test_a_request_that_meets_too_many_losses_is_failed(suffer):
    losses = [NodeLoss(0, 0, 1.0 + 2 * n, 2.0 + 2 * n) for n in range(14)]
    world = suffer(*losses, stages=1, detect_s=0.0)
    assert max(request.losses for request in world.coordinator.requests) <= 9


def test_what_survivors_hold_beyond_what_goes_on_is_given_back(plain_ring, monkeypatch):
    """The coordinator is two seconds behind: survivors hold blocks that the head does not count."""
    ring = replace(plain_ring(3, 100, 0.01, kv_tokens=320), coordinator_one_way_s=2.0)
    arrivals = [RequestArrival(0.0, 16, 60) for _ in range(40)]
    faults = (NodeLoss(0, 1, 5.0, 6.0),)
    scenario = Scenario((ring,), arrivals, duration_s=30, faults=faults)
    assert check_world(scenario)[1] == []
    monkeypatch.setattr(KvBlocks, "shrink", lambda self, request_id, tokens: None)
    assert any("too few blocks" in mistake for _, mistake in check_world(scenario)[1])


def test_the_rules_are_the_products():
    assert coordinator.LOSSES_MAX == ring_client.LOSSES_MAX
