from dataclasses import replace

import pytest

from molink.errors import UserError
from molink.workload.loads import requests_of
from molink_sim.validation.simulated import run_simulated


def test_the_simulated_half_sees_the_requests_of_the_file(scenario, profile):
    planned = requests_of(scenario.loads)
    seen = run_simulated(scenario, profile).requests
    assert [(s.load, s.input_tokens, s.output_tokens) for s in seen] == [
        (p.load, p.input_tokens, p.output_tokens) for p in planned
    ]
    assert [one.asked_s for one in seen] == pytest.approx([one.start_s for one in planned])
    assert [len(one.token_times_s) for one in seen] == [one.output_tokens for one in planned]


def test_the_same_scenario_gives_the_same_run(scenario, profile):
    assert run_simulated(scenario, profile) == run_simulated(scenario, profile)


def test_one_stream_takes_what_arithmetic_says(scenario, profile):
    alone = replace(scenario.loads[0], requests=scenario.loads[0].requests[:1])
    seen = run_simulated(replace(scenario, loads=(alone,)), profile).requests[0]
    delays_s, software_s = 3 * 0.03, 3 * 0.0015
    computed_s = 3 * (0.004 + 0.0003 + 0.0017)  # Each device was idle for 0.08 s or so.
    wire_s = 2 * 768 * 2 / 2.5e6
    assert seen.tpot_s == pytest.approx(delays_s + software_s + computed_s + wire_s, abs=0.002)


def test_stages_that_share_a_pc_are_slower_than_stages_of_their_own(scenario, profile):
    roomy = replace(profile, pc=replace(profile.pc, slowdown_together=(1.0,) * 3, chunk_s=0.0))
    crowded = replace(profile, pc=replace(profile.pc, slowdown_together=(1.0, 2.0, 3.0)))
    shared, own = run_simulated(scenario, crowded), run_simulated(scenario, roomy)
    assert sum(shared.busy_s) > 1.2 * sum(own.busy_s)
    assert shared.requests[-1].ttft_s > own.requests[-1].ttft_s


def test_a_request_that_does_not_fit_is_one_sentence(scenario, profile):
    with pytest.raises(UserError, match="raise kv_tokens"):
        run_simulated(replace(scenario, kv_tokens=64), profile)


def test_more_stages_than_layers_is_one_sentence(scenario, profile):
    with pytest.raises(UserError, match="layers"):
        run_simulated(replace(scenario, stages=13), profile)
