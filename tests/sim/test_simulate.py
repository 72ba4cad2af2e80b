"""Whole runs against hand arithmetic, and what must hold of every run."""

import pytest

from molink_sim.scenario import LinkChange, LinkSpec, RequestArrival, Scenario, SystemSpec
from molink_sim.simulate import simulate

PROMPT, OUTPUT = 64, 40
MODELS = ["paced", "ideal"]


def ttft_of(request):
    return request.token_times_s[0] - request.arrived_s


def tpot_of(request):
    times = request.token_times_s
    return (times[-1] - times[0]) / (len(times) - 1)


@pytest.mark.parametrize("link_model", MODELS)
@pytest.mark.parametrize("stages", [2, 3, 6])
@pytest.mark.parametrize("mbps, one_way_s", [(100, 0.03), (20, 0.005), (400, 0.1)])
def test_one_request_on_an_idle_ring_takes_what_arithmetic_says(
    plain_ring, link_model, stages, mbps, one_way_s
):
    ring = plain_ring(stages, mbps, one_way_s)
    system = SystemSpec(micro_batches=1, span_tokens=PROMPT, link_model=link_model)
    arrivals = [RequestArrival(0.5, PROMPT, OUTPUT)]
    [request] = simulate(Scenario((ring,), arrivals, system, duration_s=60)).requests
    wire_s = 8192 / (mbps * 125_000)
    step_s = [0.005 + 0.0001 * rows for rows in (1, PROMPT)]
    ttft_s = stages * step_s[1] + (stages - 1) * (PROMPT * wire_s + one_way_s)
    tpot_s = stages * (step_s[0] + one_way_s) + (stages - 1) * wire_s
    assert request.finished and len(request.token_times_s) == OUTPUT
    # Where a window holds few chunks, probing and draining leave some of the wire unused.
    tolerance = 0.03 if (link_model, mbps) == ("paced", 20) else 0.01
    assert ttft_of(request) == pytest.approx(ttft_s, rel=tolerance)
    assert tpot_of(request) == pytest.approx(tpot_s, rel=0.01)


def test_the_coordinators_distance_counts_on_both_ways(plain_ring):
    from dataclasses import replace

    near = plain_ring()
    far = replace(near, coordinator_one_way_s=0.1)
    first, second = (
        simulate(Scenario((ring,), [RequestArrival(0, 64, 4)], duration_s=60)).requests[0]
        for ring in (near, far)
    )
    assert ttft_of(second) - ttft_of(first) == pytest.approx(0.2, abs=0.002)
    assert tpot_of(second) == pytest.approx(tpot_of(first), rel=0.01)


def test_a_stage_alone_is_a_ring_too(plain_ring):
    [request] = simulate(
        Scenario((plain_ring(1),), [RequestArrival(0, 64, 10)], duration_s=60)
    ).requests
    assert request.finished


def test_a_cut_holds_everything_up_and_loses_nothing(plain_ring):
    cut = LinkSpec(100, 0.03, changes=(LinkChange(2.0, 0, 0.03), LinkChange(9.0, 100, 0.03)))
    ring = plain_ring(links=(cut, LinkSpec(100, 0.03), LinkSpec(100, 0.03)))
    [request] = simulate(Scenario((ring,), [RequestArrival(1.0, 64, 40)], duration_s=60)).requests
    gaps = [b - a for a, b in zip(request.token_times_s, request.token_times_s[1:], strict=False)]
    assert request.finished and len(request.token_times_s) == 40
    assert 6.9 < max(gaps) < 7.5


def test_what_can_never_fit_is_refused_and_the_rest_is_served(plain_ring):
    arrivals = [RequestArrival(0, 2000, 10), RequestArrival(1, 64, 10)]
    requests = simulate(Scenario((plain_ring(kv_tokens=1024),), arrivals, duration_s=60)).requests
    assert [(r.refused, r.finished) for r in requests] == [(True, False), (False, True)]


def test_several_rings_share_the_work(plain_ring, even_arrivals):
    outcome = simulate(Scenario((plain_ring(),) * 4, even_arrivals(40, 0.2), duration_s=60))
    counts = [sum(r.ring == ring for r in outcome.requests) for ring in range(4)]
    assert all(request.finished for request in outcome.requests)
    assert min(counts) >= 8


def test_a_prefill_step_that_decode_interrupts_is_one_step(plain_ring):
    system = SystemSpec(micro_batches=1, span_tokens=2000)
    arrivals = [RequestArrival(0.0, 64, 100), RequestArrival(1.0, 2000, 2)]
    scenario = Scenario((plain_ring(),), arrivals, system, duration_s=60, record_timeline=True)
    outcome = simulate(scenario)
    bars = [bar.kind for bar in outcome.timeline if bar.lane == "ring 0 stage 1"]
    prompts, prefill_bars = len(arrivals), bars.count("prefill")
    assert prefill_bars > prompts, "decode must have interrupted a step"
    assert outcome.stages[1].steps == len(bars) - prefill_bars + prompts


def test_the_warm_up_is_served_and_not_counted(plain_ring, even_arrivals):
    scenario = Scenario((plain_ring(),), even_arrivals(20), duration_s=60, warmup_s=10)
    outcome = simulate(scenario)
    assert [request.arrived_s for request in outcome.requests] == list(range(10, 20))
    assert outcome.duration_s == 50
