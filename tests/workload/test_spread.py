import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.workload.spread import percentile, spread

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
