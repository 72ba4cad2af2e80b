import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.workload.figures import SeenRequest, figures_of, percentile, spread

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
    assert spread([]) == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))
    assert spread([2.0]) == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), 2.0)


def seen(load, asked_s, *times):
    return SeenRequest(load, 10, len(times), asked_s, times)


def test_times_are_counted_from_asking_and_between_tokens():
    one = seen("a", 1.0, 1.5, 1.7, 2.1)
    assert one.ttft_s == pytest.approx(0.5)
    assert one.tpot_s == pytest.approx(0.3)
    assert seen("a", 1.0, 2.0).tpot_s is None


def test_figures_of_all_and_of_each_load():
    found = figures_of([seen("a", 0.0, 1.0, 1.5), seen("a", 0.0, 3.0, 3.1), seen("b", 0.0, 8.0)])
    assert list(found) == ["all", "a", "b"]
    assert found["all"]["ttft_s"]["mean"] == 4.0
    assert found["a"]["ttft_s"] == pytest.approx({"mean": 2.0, "p50": 2.0, "p95": 2.9})
    assert found["a"]["tpot_s"]["mean"] == pytest.approx(0.3)
    assert found["b"]["tpot_s"]["mean"] is None


def test_one_load_is_all():
    assert list(figures_of([seen("a", 0.0, 1.0)])) == ["all"]


def test_requests_come_back_from_json():
    assert SeenRequest.from_json(
        {
            "load": "a",
            "start_s": 0,
            "input_tokens": 3,
            "output_tokens": 1,
            "asked_s": 0.5,
            "token_times_s": [2.0],
        }
    ) == SeenRequest("a", 3, 1, 0.5, [2.0])
