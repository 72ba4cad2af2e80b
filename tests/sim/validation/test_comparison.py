import json

import pytest

from molink.workload.figures import SeenRequest
from molink_sim.report.summary import to_json
from molink_sim.validation.comparison import (
    compare_figures,
    comparison_json,
    comparison_table,
    disturbed,
    verdict,
)
from molink_sim.validation.real import RealRound
from molink_sim.validation.simulated import SimulatedRun


def seen(ttft_s, tpot_s=0.1, load="a"):
    return SeenRequest(load, 10, 3, 1.0, [1 + ttft_s, 1 + ttft_s + tpot_s, 1 + ttft_s + 2 * tpot_s])


def test_errors_are_shares_of_the_real_and_real_is_the_median_of_rounds():
    found = compare_figures([[seen(1.0)], [seen(2.0)], [seen(9.0)]], [seen(2.2, 0.08)])
    means = {one.time: one for one in found.figures if one.is_judged}
    assert means["ttft_s"].real_s == pytest.approx(2.0)
    assert means["ttft_s"].error == pytest.approx(0.1)
    assert means["tpot_s"].error == pytest.approx(-0.2)
    assert means["ttft_s"].passes and not means["tpot_s"].passes
    assert not found.passes


def test_only_the_means_over_all_are_judged():
    real = [seen(1.0, load="a"), seen(3.0, load="b")]
    found = compare_figures([real], [seen(3.0, load="a"), seen(1.0, load="b")])
    assert found.passes
    assert not all(one.passes for one in found.figures)


def test_the_report_says_it_all(scenario):
    simulated = SimulatedRun([seen(2.5)], [1.0])
    rounds = [RealRound([seen(2.0)], [1.1], 0.0)]
    found = compare_figures([rounds[0].requests], simulated.requests)
    rows = comparison_table(scenario, found).rows
    assert ["all", "TTFT mean", "2,000.0", "2,500.0", "+25.0%", "NO"] in rows
    assert ["all", "TPOT mean", "100.0", "100.0", "+0.0%", "yes"] in rows
    assert verdict(found) == "mean TTFT +25.0% and mean TPOT +0.0%: NOT within 15%."
    data = json.loads(to_json(comparison_json(scenario, found, rounds, simulated)))
    assert data["passes"] is False
    assert data["real"][0]["busy_s"] == [1.1]
    assert data["simulated"]["requests"][0]["token_times_s"][0] == pytest.approx(3.5)


def test_a_round_beside_other_programs_is_told():
    assert disturbed([RealRound([], [], 0.02)]) is None
    assert "0.70 cores" in (disturbed([RealRound([], [], 0.7), RealRound([], [], 0.0)]) or "")
