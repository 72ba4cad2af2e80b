import json
from dataclasses import replace
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_sim.outcome import Outcome, RequestOutcome
from molink_sim.report.summary import samples, summary, to_json

NOTHING = Outcome((), (), (), 0.0, 0)


def request(arrived_s, times_s, finished=True, input_tokens=8):
    return RequestOutcome(0, 0, arrived_s, input_tokens, 5, list(times_s), finished)


def outcome(*requests):
    return replace(NOTHING, requests=requests, duration_s=10.0)


def test_the_definitions():
    found = summary(
        outcome(
            request(10.0, [11.0, 12.0, 13.5]),
            request(10.5, [12.0]),
            request(11.0, [13.0, 15.0], finished=False),
            request(12.0, [], finished=False),
        )
    )
    assert found["ttft_s"]["mean"] == pytest.approx((1.0 + 1.5 + 2.0) / 3, abs=1e-6)
    assert found["tpot_s"]["mean"] == (1.25 + 2.0) / 2, "of requests, not of tokens"
    assert found["gap_s"]["mean"] == 1.5
    assert found["latency_s"]["mean"] == (3.5 + 1.5) / 2, "finished ones only"
    assert (found["requests"], found["finished"]) == (4, 2)
    assert (found["unfinished"], found["without_token"]) == (2, 1)
    assert (found["generated_tokens"], found["wall_s"], found["tokens_per_s"]) == (6, 5.0, 1.2)
    assert found["offered"] == {
        "rate_per_s": 0.4,
        "input_tokens_mean": 8.0,
        "output_tokens_mean": 5.0,
    }


def test_stages_and_links(outcome_of):
    found = summary(outcome_of())
    assert found["stages"][2] == {"ring": 0, "stage": 2, "busy_share": 0.4, "steps": 900}
    assert found["links"][1] == {"ring": 0, "link": 1, "busy_share": 0.4, "bytes": 3_000_000}


def test_a_run_without_requests_has_no_times():
    found = summary(NOTHING)
    assert found["ttft_s"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))
    assert (found["tokens_per_s"], found["offered"]["rate_per_s"]) == (0.0, 0.0)
    json.loads(to_json(found))


def test_the_same_run_gives_the_same_bytes(outcome_of):
    found = summary(outcome_of(seed=3))
    other = dict(reversed(summary(outcome_of(seed=3)).items()))
    assert to_json(found) == to_json(other) != to_json(summary(outcome_of(seed=4)))
    assert to_json(found).endswith("}\n") and json.loads(to_json(found)) == found


def test_numbers_are_rounded_to_microseconds():
    assert summary(outcome(request(0.0, [1 / 3])))["ttft_s"]["p50"] == 0.333333


def test_of_very_many_gaps_every_second_request_counts(monkeypatch):
    monkeypatch.setattr(import_module("molink_sim.report.summary"), "GAPS_MAX", 5)
    requests = [request(0.0, [1.0, 2.0 + number]) for number in range(6)]
    assert samples(outcome(*requests)).gap_s == [1.0, 3.0, 5.0]
    assert samples(outcome(*requests[:4])).gap_s == [1.0, 2.0, 3.0, 4.0]


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.lists(st.floats(0, 50), max_size=9).map(sorted)),
        max_size=12,
    )
)
def test_spreads_are_ordered_and_tokens_are_counted(rows):
    requests = [request(at, [at + one for one in times], bool(times)) for at, times in rows]
    found = summary(outcome(*requests))
    assert found["generated_tokens"] == sum(len(times) for _, times in rows)
    for key in ("ttft_s", "tpot_s", "gap_s", "latency_s"):
        spread = found[key]
        if spread["mean"] is not None:
            assert 0 <= spread["p50"] <= spread["p95"] <= spread["p99"]
