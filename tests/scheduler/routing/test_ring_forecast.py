from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.routing.ring_forecast import (
    LentStage,
    RingPace,
    RingState,
    decoding_then,
    forecast_tbt_s,
    forecast_tpot_s,
    forecast_ttft_s,
    if_idle,
    ttft_waits_s,
)

PACE = RingPace(
    prefill_tokens_per_s=1000.0, first_token_s=0.1, tpot_alone_s=0.05, tpot_each_s=0.005
)
IDLE = RingState(PACE)

BUSY = st.builds(
    RingState,
    st.builds(
        RingPace, st.floats(1, 1e5), st.floats(0, 10), st.floats(1e-3, 5), st.floats(1e-3, 1)
    ),
    st.integers(0, 10_000),
    st.integers(0, 64),
    st.integers(0, 64),
    st.integers(0, 10_000),
    st.floats(1, 2000),
)


def test_the_first_token_waits_for_what_is_ahead_and_for_what_is_not_cached():
    ring = replace(IDLE, waiting_tokens=3000, cached_tokens=1500)
    assert forecast_ttft_s(ring, 2000) == pytest.approx(0.1 + 3.0 + 0.5)


def test_answers_that_decode_take_their_share_of_the_ring():
    ring = replace(IDLE, decoding=10)  # Rounds take twice as long as alone.
    assert forecast_ttft_s(ring, 2000) == pytest.approx(0.1 + 2 * 2.0)


def test_a_plan_gives_its_own_figures_back():
    pace = RingPace.planned(1000, ttft_s=2.0, tpot_alone_s=0.1, tpot_s=0.24, users=8)
    assert forecast_ttft_s(RingState(pace), 1000) == pytest.approx(2.0)
    assert pace.tpot_s(7) == pytest.approx(0.24)


def test_answers_end_at_a_rate_of_one_in_their_mean_length():
    ring = replace(IDLE, decoding=1, answer_tokens=200)
    assert decoding_then(ring, 0.0) == 1
    assert decoding_then(ring, 200 * 0.05) == pytest.approx(0.3679, abs=1e-4)  # 1 / e.


def test_prompts_ahead_have_become_answers():
    ring = replace(IDLE, waiting_tokens=4000, waiting_requests=4, answer_tokens=1e6)
    assert forecast_tpot_s(ring, 1000) == pytest.approx(0.05 + 4 * 0.005, rel=1e-3)
    assert forecast_tpot_s(ring, 1000, predicts=False) == pytest.approx(0.05)


@given(BUSY, st.integers(1, 10_000), st.integers(1, 5000))
def test_more_of_anything_never_makes_a_first_token_come_sooner(ring, prompt_tokens, more):
    here_s = forecast_ttft_s(ring, prompt_tokens)
    assert here_s <= forecast_ttft_s(ring, prompt_tokens + more)
    assert here_s <= forecast_ttft_s(
        replace(ring, waiting_tokens=ring.waiting_tokens + more), prompt_tokens
    )
    assert here_s <= forecast_ttft_s(replace(ring, decoding=ring.decoding + more), prompt_tokens)
    assert here_s >= forecast_ttft_s(
        replace(ring, cached_tokens=ring.cached_tokens + more), prompt_tokens
    )
    assert here_s >= forecast_ttft_s(if_idle(ring), prompt_tokens)


@given(BUSY, st.floats(0, 1000))
def test_never_more_decode_than_decode_and_wait_now(ring, after_s):
    assert 0 <= decoding_then(ring, after_s) <= ring.decoding + ring.waiting_requests + 1e-9


LENT = (LentStage(own_tokens=1000, wait_s=0.02), LentStage(own_tokens=4000, wait_s=0.01))
"""Two stages of a ring; the second one has four times the room of its own."""


@pytest.mark.parametrize(
    ("others", "prompt", "wait_s"),
    [(0, 1000, 0.0), (0, 1001, 0.02), (900, 101, 0.02), (3000, 1000, 0.02), (3000, 1001, 0.03)],
)
def test_steps_wait_for_lenders_where_requests_hold_more_than_a_stage_does(others, prompt, wait_s):
    ring = replace(IDLE, held_tokens=others, lent=LENT, decoding=1)
    bare = replace(ring, lent=())
    for predicts in (True, False):
        more_s = [
            forecast(ring, prompt, *given, predicts=predicts)
            - forecast(bare, prompt, *given, predicts=predicts)
            for forecast, given in ((forecast_tpot_s, ()), (forecast_tbt_s, (99.0,)))
        ]
        assert more_s == pytest.approx([wait_s, wait_s])
    assert if_idle(ring).held_tokens == 0, "who is alone holds its own tokens and no others'"


AWAY = (LentStage(1000, 0.02, 1e-6), LentStage(4000, 0.01, 2e-6))
"""The same, once steps of prompts have told: the second one's lender is half as fast."""


def written_out(stage: LentStage, held: int, start: int, stop: int) -> float:
    """A prompt's rows one by one, each with the keys before it that have no room at home."""
    at_home = max(0, stage.own_tokens - held)
    return sum(stage.row_key_wait_s * max(0, row - at_home) for row in range(start, stop))


@pytest.mark.parametrize(
    ("others", "cached", "prompt"),
    [
        (0, 0, 1000),
        (0, 0, 3000),
        (0, 0, 9000),
        (2500, 0, 6000),
        (5000, 2048, 3000),
        (0, 4096, 5000),
    ],
)
def test_a_prompt_waits_for_each_row_and_each_key_at_the_lender(others, cached, prompt):
    ring = replace(IDLE, held_tokens=others, cached_tokens=cached, lent=AWAY)
    more_s = forecast_ttft_s(ring, prompt) - forecast_ttft_s(replace(ring, lent=()), prompt)
    wanted_s = max(written_out(one, others, cached, prompt) for one in AWAY)
    assert more_s == pytest.approx(wanted_s, abs=0.01)
    assert more_s == pytest.approx(ttft_waits_s(ring, prompt))
    assert (more_s == 0) == (prompt == 1000), "the smaller stage holds as many"


def test_prompts_ahead_wait_for_lenders_one_behind_the_other():
    """Three of 2,000 tokens each, beside 1,000 that are held already."""
    ring = replace(IDLE, waiting_tokens=6000, waiting_requests=3, held_tokens=7000, lent=AWAY[:1])
    ahead_s = [written_out(AWAY[0], held, 0, 2000) for held in (1000, 3000, 5000)]
    own_s = written_out(AWAY[0], 7000, 0, 500)
    assert ttft_waits_s(ring, 500) == pytest.approx(sum(ahead_s) + own_s, rel=0.01)
    assert ttft_waits_s(if_idle(ring), 500) == 0.0


def test_who_has_not_told_of_prompts_is_not_waited_for():
    ring = replace(IDLE, held_tokens=9000, lent=LENT)
    assert forecast_ttft_s(ring, 5000) == forecast_ttft_s(replace(ring, lent=()), 5000)
