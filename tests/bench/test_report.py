import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.bench.report import percentile, report, spread
from molink.bench.runner import RequestRecord

FINITE = st.floats(-1e6, 1e6)


@given(st.lists(FINITE, min_size=1).map(sorted), st.floats(0, 100), st.floats(0, 100))
def test_percentiles_rise_and_stay_inside(ordered, one, other):
    low, high = sorted((percentile(ordered, one), percentile(ordered, other)))
    assert (low <= high) and percentile(ordered, min(one, other)) == low
    assert ordered[0] - 1e-6 <= low and high <= ordered[-1] + 1e-6


@given(st.lists(FINITE, min_size=1).map(sorted))
def test_the_ends_are_the_extremes(ordered):
    assert percentile(ordered, 0) == ordered[0]
    assert percentile(ordered, 100) == ordered[-1]


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 10), (25, 20), (50, 30), (90, 46), (95, 48), (100, 50)]
)
def test_known_percentiles(percent, expected):
    assert percentile([10, 20, 30, 40, 50], percent) == pytest.approx(expected)


def test_spread_of_nothing_is_null():
    assert spread([]) == {"mean": None, "p50": None, "p95": None, "p99": None}
    assert spread([2.0]) == {"mean": 2.0, "p50": 2.0, "p95": 2.0, "p99": 2.0}


def test_report():
    records = [
        RequestRecord(start_s=10.0, end_s=14.0, token_times_s=[11.0, 12.0, 13.5]),
        RequestRecord(start_s=10.5, end_s=12.0, token_times_s=[12.0]),
        RequestRecord(start_s=10.5, end_s=15.0, token_times_s=[11.0], error="lost"),
        RequestRecord(start_s=11.0, end_s=11.5, error="later"),
    ]
    found = report(records)
    json.dumps(found, allow_nan=False)
    assert found["ttft_s"]["mean"] == 1.25
    assert found["tpot_s"]["mean"] == 1.25
    assert found["gap_s"]["p50"] == 1.25 and found["gap_s"]["mean"] == 1.25
    assert found["latency_s"]["mean"] == 2.75
    assert (found["generated_tokens"], found["wall_s"]) == (4, 5.0)
    assert found["tokens_per_s"] == pytest.approx(0.8)
    assert (found["finished"], found["failed"], found["first_error"]) == (2, 2, "lost")


def test_report_of_no_records():
    found = report([])
    assert (found["tokens_per_s"], found["finished"], found["failed"]) == (0.0, 0, 0)
