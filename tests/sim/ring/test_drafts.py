"""Simulated rings have a seeded drafter; what is right comes in fewer rounds."""

from dataclasses import replace

import pytest

from molink.errors import UserError
from molink_sim.checkers import CHECKERS
from molink_sim.scenario import (
    DrafterSpec,
    NodeLoss,
    RequestArrival,
    Scenario,
    SystemSpec,
)
from molink_sim.simulate import simulate
from molink_sim.swarm import check_world

LOSSES = [
    (),
    (NodeLoss(0, 1, 1.0, 2.0),),
    (NodeLoss(0, 1, 1.0, 2.0, shadow_lacks_tokens=5),),
    (NodeLoss(0, 1, 1.0, 2.0, neighbour_takes=True),),
]


@pytest.mark.parametrize("faults", LOSSES)
@pytest.mark.parametrize("at_tail", [False, True])
@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
def test_all_that_must_hold_of_a_world_holds_with_drafts(plain_ring, acceptance, at_tail, faults):
    arrivals = [RequestArrival(0.1 * number, 20 + number, 30) for number in range(12)]
    ring = plain_ring(3, 50, 0.01, kv_tokens=320, row_bytes=512)
    system = SystemSpec(drafter=DrafterSpec(4, acceptance, at_tail=at_tail))
    scenario = Scenario((ring,), arrivals, system, duration_s=5, drain_s=500, faults=faults)
    world, mistakes = check_world(scenario, CHECKERS)
    assert mistakes == []
    answered = [len(one.token_times_s) for one in world.coordinator.requests if one.finished]
    assert answered == [30] * 12


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("at_tail", [False, True])
@pytest.mark.parametrize("acceptance", [0.0, 0.88, 1.0])
def test_tokens_of_a_round_are_as_many_as_chance_says(plain_ring, width, acceptance, at_tail):
    """(1 - a^(k+1)) / (1 - a), and a round costs the draft steps and the rows more."""
    arrivals = [RequestArrival(0.5, 16, 800)]
    plain = Scenario((plain_ring(3, 1000, 0.03),), arrivals, duration_s=400)
    spec = DrafterSpec(width, acceptance, 0.001, at_tail)
    drafted = replace(plain, system=SystemSpec(drafter=spec))
    times = [simulate(one).requests[0].token_times_s for one in (plain, drafted)]
    rounds_s = [(one[-1] - one[0]) / 799 for one in times]
    expected = sum(acceptance**depth for depth in range(width + 1))
    ratio = rounds_s[0] / rounds_s[1]
    assert 0.9 * expected < ratio < 1.03 * expected


@pytest.mark.parametrize("broken", [DrafterSpec(-1), DrafterSpec(17), DrafterSpec(4, 1.1)])
def test_a_drafter_that_cannot_be_is_refused(plain_ring, broken):
    system = SystemSpec(drafter=broken)
    with pytest.raises(UserError, match="drafter"):
        simulate(Scenario((plain_ring(),), [RequestArrival(0, 8, 4)], system, duration_s=5))
