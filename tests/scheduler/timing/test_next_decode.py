"""T_a in the paper's three cases, from what a stage sees, and how far it was off."""

import pytest

from molink_scheduler.timing.next_decode import (
    ERRORS_KEPT_MAX,
    NO_ERRORS,
    DecodeForecast,
    ErrorSummary,
    ForecastErrors,
    Foretold,
)
from molink_scheduler.timing.steps import PAUSE_S_MIN, DecodeClock

STEP_S = 0.0082
"""T_d(8) of 11 layers of a 7B model on an RTX 4090."""

ROUND_S = 3 * STEP_S + 0.10704064
"""T_o + T_m of the worked example in docs/scheduling.md."""

ROWS = 8


def after_rounds(count: int = 3, rows: int = ROWS) -> tuple[DecodeForecast, DecodeClock, float]:
    """A stage that has computed a micro-batch so often; the time at which its last result left."""
    forecast, clock, now = DecodeForecast(), DecodeClock(), 0.0
    for number in range(count):
        now = 10.0 + number * ROUND_S
        clock.seen(0, now)
        forecast.begins(clock, 0, rows, now)
        now += STEP_S
        forecast.ends()
        forecast.result_left(rows, STEP_S, now)
    return forecast, clock, now


def test_case_1_a_step_that_begins_takes_t_d():
    forecast, clock, _ = after_rounds()
    due_at = forecast.begins(clock, 0, ROWS, 20.0)
    assert due_at - 20.0 == pytest.approx(STEP_S)
    assert forecast.due_at(clock, 20.0) == due_at


def test_case_2_of_a_step_under_way_the_rest_is_left():
    forecast, clock, _ = after_rounds()
    forecast.begins(clock, 0, ROWS, 20.0)
    assert forecast.due_at(clock, 20.003) - 20.003 == pytest.approx(0.0052)
    assert forecast.due_at(clock, 20.01) - 20.01 < 0, "it is late"


def test_case_3_without_a_step_the_round_decides():
    forecast, clock, left_at = after_rounds()
    now = left_at + 0.02
    assert forecast.due_at(clock, now) - now == pytest.approx(ROUND_S - 0.02)


def test_before_any_round_nothing_is_foretold():
    forecast, clock, now = after_rounds(count=1)
    assert forecast.due_at(clock, now) is None


def test_a_micro_batch_that_waits_is_next_whatever_the_rounds_say():
    forecast, clock, now = after_rounds()
    assert forecast.due_at(clock, now, waiting_rows=ROWS) == pytest.approx(now + STEP_S)


def test_t_d_is_that_of_the_rows_that_are_due():
    forecast, clock = DecodeForecast(), DecodeClock()
    for number, rows in enumerate(20 * [2, 10]):
        now = 10.0 + 0.1 * number
        slot = number % 2
        clock.seen(slot, now)
        forecast.begins(clock, slot, rows, now)
        forecast.ends()
        forecast.result_left(rows, 0.004 + 0.001 * rows, now)
    assert forecast.begins(clock, 0, 6, 20.0) - 20.0 == pytest.approx(0.01, rel=0.01)
    forecast.ends()
    round_s = clock.round_s
    for slot, step_s in ((0, 0.01), (1, 0.014)):
        clock.seen(slot, 30.0 + slot)
        due_at = forecast.due_at(clock, 30.0 + slot)
        assert due_at is not None and due_at - (30.0 + slot) == pytest.approx(round_s + step_s)
        clock._last_seen.pop(slot)


def test_what_arrivals_wait_for_the_device_is_part_of_the_round():
    forecast, clock = DecodeForecast(), DecodeClock()
    for number in range(40):
        arrived_at = 10.0 + 0.1 * number
        clock.seen(0, arrived_at)
        forecast.begins(clock, 0, 1, arrived_at + 0.02)
        forecast.ends()
        forecast.result_left(1, 0.005, arrived_at + 0.025)
    assert forecast.due_at(clock, 13.95) == pytest.approx(14.0 + 0.02 + 0.005, abs=1e-4)


def test_what_came_is_held_against_what_was_foretold():
    forecast, clock, now = after_rounds(count=4)
    arrived_at = 10.0 + 4 * ROUND_S
    forecast.errors.round_foretold(Foretold(now, forecast.due_at(clock, now)))
    forecast.begins(clock, 0, ROWS, arrived_at)
    forecast.ends()
    forecast.result_left(ROWS, 0.01, arrived_at + 0.01)
    (*_, step), (round_,) = forecast.errors.steps, forecast.errors.rounds
    assert step == pytest.approx((0.01 - STEP_S, (0.01 - STEP_S) / STEP_S))
    assert round_ == pytest.approx((0.01 - STEP_S, (0.01 - STEP_S) / (ROUND_S)), rel=0.01)


def test_the_longest_forecast_of_a_round_counts_and_pauses_of_users_do_not():
    errors = ForecastErrors()
    errors.round_foretold(Foretold(0.0, 0.1))
    errors.round_foretold(Foretold(0.09, 0.11))
    errors.result_left(0.12)
    assert errors.rounds == [pytest.approx((0.02, 0.2))]
    errors.round_foretold(Foretold(1.0, 1.1))
    errors.result_left(1.0 + PAUSE_S_MIN + 0.1)
    assert len(errors.rounds) == 1


def test_what_is_said_before_a_result_has_left_is_about_the_next():
    errors = ForecastErrors()
    errors.step_begins(Foretold(0.0, 0.01))
    errors.round_foretold(Foretold(0.01, 0.11))
    errors.result_left(0.0105)
    assert errors.rounds == []
    errors.step_begins(Foretold(0.1, 0.11))
    errors.result_left(0.12)
    assert errors.rounds == [pytest.approx((0.01, 0.1))]


def test_errors_are_summed_up_by_nearest_rank_and_bounded():
    pairs = [(0.001 * number, 0.01 * number) for number in range(1, 101)]
    assert ErrorSummary.of(pairs) == pytest.approx((100, 0.05, 0.095, 0.5, 0.95))
    assert ErrorSummary.of(pairs).shares_text == "50 / 95 % of T_a in 100 forecasts"
    assert NO_ERRORS == (0, 0.0, 0.0, 0.0, 0.0)
    errors = ForecastErrors()
    for number in range(ERRORS_KEPT_MAX + 5):
        errors.step_begins(Foretold(float(number), number + 0.5))
        errors.result_left(number + 0.5)
    assert len(errors.steps) == ERRORS_KEPT_MAX


def test_a_forecast_of_no_time_at_all_is_wholly_wrong():
    assert Foretold(1.0, 1.0).error(1.25) == (0.25, 1.0)
