"""A ring of one PC, where decode is always due: do prompts come to an end beside it?"""

from itertools import pairwise

from molink_sim.even_ring import even_ring
from molink_sim.scenario import LinkSpec, RequestArrival, Scenario, SystemSpec
from molink_sim.simulate import simulate

HERE = LinkSpec(mbps=10_000, one_way_s=0.0)
"""From the only PC to itself."""


def test_a_second_user_of_one_pc_waits_for_a_second_or_two():
    """The prompt alone takes 0.2 s; with 16 rows after each eight steps it took 10 s."""
    arrivals = [RequestArrival(0.0, 64, 1000), RequestArrival(8.0, 768, 8)]
    ring = even_ring("qwen-7b", "rtx4090", 1, HERE)
    found = simulate(
        Scenario(
            rings=(ring,),
            arrivals=arrivals,
            system=SystemSpec(link_model="ideal"),
            duration_s=60.0,
            drain_s=60.0,
            seed=0,
        )
    )
    first, second = found.requests
    assert 0.2 < second.ttft_s < 2.0
    times = first.token_times_s
    gaps = sorted(later - at for at, later in pairwise(times) if at >= 8.0)
    alone_s = times[200] - times[199]
    assert gaps[-1] <= 3.1 * alone_s, "no gap is longer than a step and a turn"
