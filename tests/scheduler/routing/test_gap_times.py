"""Quantiles of gaps: true to a class's width, of one size, and forgotten in time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.routing.gap_times import (
    CLASSES,
    FADE_AFTER,
    KNOWN_GAPS,
    LOADS,
    NO_GAPS,
    TIMES_MIN,
    GapTimes,
)

GAPS = st.lists(st.floats(0.2, 1000), min_size=KNOWN_GAPS, max_size=2 * KNOWN_GAPS)
PERCENTILES = st.floats(50, 99.9)


def told(gaps, others=3):
    times = GapTimes()
    for gap in gaps:
        times.add(others, gap)
    return times


@given(GAPS, PERCENTILES, st.integers(0, 200))
def test_a_quantile_is_true_to_the_width_of_a_class(gaps, percentile, others):
    found = told(gaps, others).times(others, percentile)
    rank = math.ceil(percentile / 100 * len(gaps) - 1e-9)
    assert found == pytest.approx(sorted(gaps)[max(0, rank - 1)], rel=0.026)


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1e9)), max_size=400), PERCENTILES)
def test_a_higher_percentile_is_no_shorter_and_any_is_a_number_above_0(gaps, percentile):
    times = GapTimes()
    for others, gap in gaps:
        times.add(others, gap)
    for others in (0, 1, 6.5, 300):
        lower, higher = times.times(others, percentile), times.times(others, 99.9)
        assert 0 < lower <= higher < math.inf


def test_it_is_of_one_size_whatever_comes():
    times = told([1.0, 2.0, 0.0, 1e9] * FADE_AFTER)
    assert (len(times._counts), {len(one) for one in times._counts}) == (LOADS, {CLASSES})
    assert times.total <= 2 * FADE_AFTER


@pytest.mark.parametrize("gaps", [[], [7.0] * (KNOWN_GAPS - 1)])
def test_what_too_few_have_told_nobody_knows(gaps):
    assert told(gaps).times(3, 99) == 1.0


def test_of_two_parts_in_a_hundred_the_99th_percentile_tells_and_the_90th_does_not():
    stutter = told(([1.0] * 98 + [6.0] * 2) * 4)
    assert stutter.times(3, 99) == pytest.approx(6, rel=0.03)
    assert stutter.times(3, 90) == pytest.approx(1, rel=0.03)


def test_a_load_is_told_by_its_own_gaps_and_an_unseen_one_by_the_next_quieter():
    times = told([1.0] * KNOWN_GAPS, others=0)
    for _ in range(KNOWN_GAPS):
        times.add(12, 4.0)
    assert times.times(0, 99) == pytest.approx(1, rel=0.03)
    assert times.times(9, 99) == pytest.approx(4, rel=0.03)
    assert times.times(1, 99) == pytest.approx(1, rel=0.03)
    assert times.times(100, 99) == pytest.approx(4, rel=0.03)


def test_a_quiet_load_is_not_judged_by_a_busy_one():
    times = told([4.0] * KNOWN_GAPS, others=12)
    assert times.times(3, 99) == 1.0
    assert times.times(16, 99) == pytest.approx(4, rel=0.03)


def test_a_stutter_is_forgotten_also_of_loads_that_do_not_come_any_more():
    """Else a ring that refused all who would have made them would never learn that it is over."""
    times = told([8.0] * FADE_AFTER, others=12)
    for _ in range(6 * FADE_AFTER):
        times.add(2, 1.0)
    assert times.times(12, 99) == pytest.approx(1, rel=0.03)


def test_gaps_of_no_length_are_of_the_first_class():
    assert told([0.0] * KNOWN_GAPS).times(3, 99) <= TIMES_MIN
    assert NO_GAPS.total == 0
