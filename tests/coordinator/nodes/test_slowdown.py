"""What a node does while it serves, against what it was planned with."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.coordinator.nodes.slowdown import (
    AS_REPORTED,
    FORGIVEN_FACTOR,
    LINK_SLOWER_FACTOR,
    SLOWER_FACTOR,
    STEPS_MIN,
    Slowdown,
    StepsSeen,
    measured_link_mbps,
    measured_slowdown,
    slowed_steps,
)
from tests.coordinator.examples import STEPS

MBPS = st.floats(0, 100_000)
SECONDS = st.floats(0, 3600)
STEPS_SEEN = st.builds(
    StepsSeen,
    st.integers(0, 10**6),
    SECONDS | st.just(math.nan),
    SECONDS | st.just(math.nan),
)
PACES = st.builds(Slowdown, st.floats(1, 1000), st.floats(1, 1000))


@given(SECONDS, SECONDS, STEPS_SEEN, PACES)
def test_a_pace_is_never_faster_than_told_and_always_a_number(decode_s, row_s, seen, before):
    pace = measured_slowdown(decode_s, row_s, seen, before)
    assert (pace is None) == (seen.steps < STEPS_MIN)
    if pace is not None:
        assert 1 <= pace.decode <= pace.prefill < math.inf
        slower = slowed_steps(STEPS, pace)
        for key in ("decode_fixed_s", "decode_row_s", "prefill_row_s", "head_row_s"):
            assert getattr(slower, key) >= getattr(STEPS, key)


@given(st.floats(1e-4, 10), st.floats(0, SLOWER_FACTOR))
def test_who_is_within_the_factor_is_taken_at_its_word(told_s, times):
    seen = StepsSeen(STEPS_MIN, told_s * times * 0.999, told_s * times * 0.999)
    assert measured_slowdown(told_s, told_s, seen) == AS_REPORTED


def test_who_is_slow_is_planned_as_seen_and_forgiven_only_well_below():
    seen = StepsSeen(STEPS_MIN, 0.5, 0.0)
    assert measured_slowdown(0.1, 0.01, seen) == Slowdown(pytest.approx(5), pytest.approx(5))
    between = StepsSeen(STEPS_MIN, 0.1 * (FORGIVEN_FACTOR + SLOWER_FACTOR) / 2, 0.0)
    assert measured_slowdown(0.1, 0.01, between) == AS_REPORTED
    assert measured_slowdown(0.1, 0.01, between, Slowdown(5, 5)).decode == pytest.approx(2.5)
    assert (
        measured_slowdown(0.1, 0.01, StepsSeen(STEPS_MIN, 0.19, 0.0), Slowdown(5, 5)) == AS_REPORTED
    )


def test_a_short_prompt_accuses_nobody():
    """Three rows that took as long as a decode step."""
    assert measured_slowdown(0.1, 0.001, StepsSeen(STEPS_MIN, 0.1, 0.1 / 3)) == AS_REPORTED
    assert measured_slowdown(0.1, 0.001, StepsSeen(STEPS_MIN, 0.1, 0.5)) == Slowdown(
        1.0, pytest.approx(5)
    )


@given(MBPS, MBPS, st.just(math.inf) | MBPS)
def test_a_link_is_planned_with_less_only_where_it_carries_far_less(rate, planned, before):
    found = measured_link_mbps(rate, planned, before)
    assert found in (rate, math.inf)
    if rate >= planned / FORGIVEN_FACTOR or not planned:
        assert found == math.inf
    if 0 < rate < planned / LINK_SLOWER_FACTOR * 0.999:
        assert found == rate


def test_a_link_is_forgiven_only_well_above_what_made_it_slow():
    between = 100 * 2 / (FORGIVEN_FACTOR + LINK_SLOWER_FACTOR)
    assert measured_link_mbps(between, 100.0) == math.inf
    assert measured_link_mbps(between, 100.0, before=20.0) == between


def test_what_is_slow_is_said_and_nothing_else():
    assert AS_REPORTED.clauses == []
    assert Slowdown(1.0, 4.25).clauses == ["computes 4.2 times as long as it has told"]
    assert Slowdown(9.0, 9.0, 1.5).clauses[1] == "sends 1.5 Mbps, far less than was measured before"
