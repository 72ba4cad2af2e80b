import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.routing.pace_estimator import PaceEstimator
from molink_scheduler.routing.ring_forecast import (
    LentStage,
    RingPace,
    RingState,
    forecast_ttft_s,
)

PLANNED = RingPace(1000.0, 0.1, 0.05, 0.005)
TRUE = RingPace(250.0, 0.4, 0.15, 0.02)
PROMPTS = (40, 300, 1200, 90, 2500, 700)


def test_it_begins_with_the_plans_pace():
    pace = PaceEstimator(PLANNED).pace
    assert pace.prefill_tokens_per_s == pytest.approx(1000)
    assert (pace.first_token_s, pace.tpot_alone_s) == pytest.approx((0.1, 0.05))
    assert pace.tpot_each_s == pytest.approx(0.005)


def test_without_a_plan_a_pace_is_known_after_some_answers():
    estimator, ring = PaceEstimator(), RingState(TRUE)
    for _ in range(8):
        assert not estimator.is_known(ring, 100)
        estimator.first_token_came(ring, 100, 0.8)
    assert estimator.is_known(ring, 100)


def test_short_prompts_do_not_tell_how_long_a_long_one_takes():
    """A ring that refused them by what nobody has seen would never see it."""
    estimator, ring = PaceEstimator(), RingState(TRUE)
    for _ in range(8):
        estimator.first_token_came(ring, 100, 0.8)
    assert estimator.is_known(ring, 200) and not estimator.is_known(ring, 201)
    assert estimator.is_known(RingState(TRUE, cached_tokens=320), 500)
    estimator.first_token_came(ring, 500, 2.4)
    assert estimator.is_known(ring, 1000)
    assert PaceEstimator(PLANNED).is_known(ring, 10**5)


@pytest.mark.parametrize("planned", [PLANNED, None, RingPace(100.0, 2.0, 0.5, 0.2)])
def test_what_came_corrects_the_plan(planned):
    estimator = PaceEstimator(planned)
    for turn in range(60):
        for others in (0, 3, 7, 12):
            for _ in range(20):
                estimator.round_came(others, TRUE.tpot_s(others))
        waiting = PROMPTS[turn % 5] if turn % 3 == 0 else 0
        ring = RingState(TRUE, waiting_tokens=waiting, decoding=turn % 4)
        prompt = PROMPTS[turn % 6]
        estimator.first_token_came(ring, prompt, forecast_ttft_s(ring, prompt))
    pace = estimator.pace
    for others in (0, 8):
        assert pace.tpot_s(others) == pytest.approx(TRUE.tpot_s(others), rel=0.05)
    for prompt in (100, 1000, 4000):
        forecast_s = forecast_ttft_s(RingState(pace), prompt)
        assert forecast_s == pytest.approx(forecast_ttft_s(RingState(TRUE), prompt), rel=0.15)


@pytest.mark.parametrize("many", [1, 4, 17])
def test_tokens_that_come_together_share_their_round(many):
    """Half of the rounds bring one token, half of them `many`: all tokens take their mean time."""
    estimator, round_s = PaceEstimator(), 0.12
    for _ in range(2000):
        estimator.round_came(3, round_s)
        estimator.round_came(3, round_s, many)
    mean_s = 2 * round_s / (1 + many)
    assert estimator.pace.tpot_s(3) == pytest.approx(mean_s, rel=0.05)


@pytest.mark.parametrize("planned", [PLANNED, None, RingPace(100.0, 2.0, 0.5, 0.2)])
def test_gaps_are_told_as_multiples_of_the_rings_own_pace_and_not_of_the_plans(planned):
    """Three in a hundred rounds take five times as long; one in two brings two tokens at once."""
    estimator, round_s = PaceEstimator(planned), 0.1
    for number in range(4000):
        gap_s = round_s * (5 if number % 100 < 3 else 1)
        estimator.round_came(3, gap_s, 1 + number % 2)
    tpot_s = estimator.pace.tpot_s(3)
    assert tpot_s * estimator.gaps.times(3, 90) == pytest.approx(round_s, rel=0.1)
    assert tpot_s * estimator.gaps.times(3, 99) == pytest.approx(5 * round_s, rel=0.1)


def test_tokens_at_one_moment_are_no_gap():
    estimator = PaceEstimator(PLANNED)
    for _ in range(1000):
        estimator.round_came(0, 0.1)
        estimator.round_came(0, 0.0)
    assert 930 <= estimator.gaps.total <= 1000


def test_prompts_of_one_length_say_what_such_a_prompt_takes():
    estimator = PaceEstimator(PLANNED)
    for _ in range(100):
        estimator.first_token_came(RingState(PLANNED), 500, 3.0)
    assert forecast_ttft_s(RingState(estimator.pace), 500) == pytest.approx(3.0, rel=0.1)


def test_the_length_of_answers_is_learned():
    estimator = PaceEstimator()
    for _ in range(400):
        estimator.answer_ended(40)
    assert estimator.answer_tokens == pytest.approx(40, rel=0.02)


SAMPLES = st.lists(
    st.tuples(st.integers(0, 64), st.integers(1, 20_000), st.floats(0, 1000)), max_size=60
)


@given(SAMPLES, st.none() | st.just(PLANNED))
def test_whatever_comes_a_pace_stays_one(samples, planned):
    estimator = PaceEstimator(planned)
    for decoding, prompt_tokens, seconds in samples:
        ring = RingState(estimator.pace, decoding=decoding)
        estimator.first_token_came(ring, prompt_tokens, seconds)
        estimator.round_came(decoding, seconds)
        estimator.answer_ended(prompt_tokens)
        assert forecast_ttft_s(RingState(estimator.pace), 1000) >= 0
    assert estimator.answer_tokens > 0


def test_what_prompts_wait_for_at_lenders_is_no_part_of_the_pace():
    """Else short prompts, which wait for nobody, would be promised the pace of long ones."""
    lent = RingState(TRUE, held_tokens=2000, lent=(LentStage(1000, 0.0, 2e-6),))
    alone, beside = PaceEstimator(PLANNED), PaceEstimator(PLANNED)
    for turn in range(120):
        prompt = PROMPTS[turn % 6]
        alone.first_token_came(RingState(TRUE), prompt, forecast_ttft_s(RingState(TRUE), prompt))
        beside.first_token_came(lent, prompt, forecast_ttft_s(lent, prompt))
    for prompt in (100, 1000, 4000):
        wanted_s = forecast_ttft_s(RingState(alone.pace), prompt)
        assert forecast_ttft_s(RingState(beside.pace), prompt) == pytest.approx(wanted_s)
    assert forecast_ttft_s(lent, 4000) > 1.9 * forecast_ttft_s(RingState(TRUE), 4000)
