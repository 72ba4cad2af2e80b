"""Prefill steps end before decode is due, and prefill is never starved."""

import pytest

from molink_scheduler.timing.steps import (
    PREFILL_ROWS_MIN,
    TURN_STEPS,
    DecodeClock,
    PrefillBudget,
    StepProfile,
)


def a_clock(round_s=0.1, places=1, until=1.0) -> DecodeClock:
    clock = DecodeClock()
    visit, at = 0, 0.0
    while at <= until:
        clock.seen(visit % places, at)
        visit, at = visit + 1, (visit + 1) * round_s / places
    return clock


def a_profile(fixed_s=0.005, row_s=0.0004) -> StepProfile:
    profile = StepProfile()
    for rows in (16, 32, 64, 128):
        profile.observe(rows, fixed_s + rows * row_s)
    return profile


def test_the_next_micro_batch_is_due_one_round_after_the_last():
    clock = a_clock()
    assert clock.due_at(1.03) == pytest.approx(1.1)
    assert clock.round_s == pytest.approx(0.1)


def test_of_several_places_the_next_counts():
    assert a_clock(places=2).due_at(1.01) == pytest.approx(1.05)


def test_a_place_that_stays_away_is_forgotten():
    clock = a_clock()
    assert clock.due_at(1.15) == 1.15
    assert clock.due_at(1.25) is None


def test_a_pause_between_requests_is_no_round():
    clock = a_clock()
    clock.seen(0, 60.0)
    assert clock.round_s == pytest.approx(0.1)


def test_a_ring_that_becomes_three_times_as_slow_is_believed():
    clock = a_clock(places=2, until=3.0)
    for visit in range(60):
        clock.seen(visit % 2, 4.0 + 0.15 * visit)
    assert clock.round_s == pytest.approx(0.3, rel=0.01)
    assert clock.due_at(4.0 + 0.15 * 60) == pytest.approx(4.0 + 0.15 * 60)


def test_one_late_visit_of_each_place_is_no_slower_ring():
    clock = a_clock(places=3)
    for place in range(3):
        clock.seen(place, 1.5 + place / 30)
    assert clock.round_s == pytest.approx(0.1)


def test_a_word_each_minute_is_no_slow_ring():
    clock = a_clock()
    for minute in range(1, 10):
        clock.seen(0, 60.0 * minute)
    assert clock.round_s == pytest.approx(0.1)


def test_without_decode_the_piece_is_the_largest():
    assert PrefillBudget(256, DecodeClock(), a_profile()).rows_now(0.0) == 256


def test_a_step_ends_before_decode_is_due():
    budget = PrefillBudget(256, a_clock(), a_profile())
    rows = budget.rows_now(1.05)
    assert 0 < rows < 256
    assert a_profile().step_s(rows) <= 0.05


def test_too_little_time_waits_and_then_goes_on_all_the_same():
    budget = PrefillBudget(256, a_clock(), a_profile())
    assert budget.rows_now(1.095) == 0
    until = budget.wait_until
    assert until is not None
    assert 1.095 < until < 1.12
    assert budget.rows_now(until) >= PREFILL_ROWS_MIN


def test_at_its_turn_a_step_is_as_long_as_some_of_decode():
    """Decode is due, but has gone first often enough: no wait, and more than the least."""
    clock = a_clock()
    for _ in range(50):
        clock.computed(0.03)
    budget = PrefillBudget(256, clock, a_profile())
    rows = budget.rows_now(1.095, passed=True)
    assert PREFILL_ROWS_MIN < rows < 256
    assert a_profile().step_s(rows) <= TURN_STEPS * clock.step_s
    assert budget.wait_until is None
    assert PrefillBudget(256, a_clock(), a_profile()).rows_now(1.095, passed=True) == 0


def test_prefill_advances_however_dense_decode_is():
    clock, budget = DecodeClock(), None
    budget = PrefillBudget(256, clock, a_profile())
    now, rows = 0.0, 0
    while now < 2.0:
        clock.seen(0, now)
        rows += budget.rows_now(now + 0.001)
        now += 0.008
    assert rows >= 40 * PREFILL_ROWS_MIN
