"""A crowded small world, and what checkers say of it when something in it is broken."""

import pytest

from molink_sim.checkers import Place, RingLife
from molink_sim.scenario import RequestArrival, Scenario
from molink_sim.swarm import check_world


@pytest.fixture
def crowded(plain_ring):
    """Sixteen requests at once, on three stages with KV for a few of them."""
    arrivals = [RequestArrival(0.1 * (number % 3), 20 + number, 30) for number in range(16)]
    arrivals.sort(key=lambda arrival: arrival.at_s)
    ring = plain_ring(3, 50, 0.01, kv_tokens=320, row_bytes=512)
    return Scenario((ring,), arrivals, duration_s=5, drain_s=500)


@pytest.fixture
def mistakes(crowded):
    """What one checker finds in the crowded world, or in another."""

    def run(checker, scenario=None):
        _, found = check_world(scenario or crowded, [checker])
        return [mistake for name, mistake in found if name == checker.name]

    return run


@pytest.fixture
def places(plain_ring):
    """Two places of one life, for checkers that are told what happened."""
    life = RingLife(0, plain_ring(2), head=None)
    life.places = [Place(life, 0), Place(life, 1)]
    return life.places
