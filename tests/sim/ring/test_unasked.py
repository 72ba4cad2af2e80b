"""Stages whose links ask for no forecast learn none, and nothing else is changed by that."""

import pytest

from molink_scheduler.timing.next_decode import DecodeForecast
from molink_sim.ring import build
from molink_sim.scenario import RequestArrival, Scenario
from molink_sim.simulate import World
from molink_sim.systems import system_named

ARRIVALS = [RequestArrival(0.3 * number, 200, 30) for number in range(4)]


def played(ring, link_model):
    system = system_named("molink", link_model=link_model)
    world = World(Scenario((ring,), ARRIVALS, system, duration_s=2.0))
    world.run()
    times = [one.token_times_s for one in world.coordinator.requests]
    [ring] = world.rings
    return times, [stage.core.forecast.profile.known for stage in ring.stages]


@pytest.mark.parametrize(("link_model", "learns"), [("ideal", False), ("paced", True)])
def test_only_stages_whose_links_ask_learn_when_decode_is_due(plain_ring, link_model, learns):
    times, known = played(plain_ring(), link_model)
    assert all(len(one) == 30 for one in times)
    assert known == [learns] * 3


def test_a_link_that_does_not_ask_is_told_for_nothing(plain_ring, monkeypatch):
    unasked, _ = played(plain_ring(), "ideal")
    monkeypatch.setattr(build, "UnaskedForecast", DecodeForecast)
    told, known = played(plain_ring(), "ideal")
    assert known == [True] * 3
    assert told == unasked
