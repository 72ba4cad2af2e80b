"""The head of the compared systems at the edge of its memory."""

import pytest

from molink_sim.scenario import RequestArrival, Scenario
from molink_sim.simulate import simulate
from molink_sim.systems import system_named


@pytest.mark.parametrize("output_tokens", range(14, 36))
def test_a_request_at_the_edge_of_its_share_ends_or_is_refused(plain_ring, output_tokens):
    ring = plain_ring(2, kv_tokens=96)
    arrivals = [RequestArrival(0.0, 20, output_tokens)]
    scenario = Scenario((ring,), arrivals, system_named("vllm"), duration_s=10, drain_s=60)
    [request] = simulate(scenario).requests
    assert request.finished != request.refused
