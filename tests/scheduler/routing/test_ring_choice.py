from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.routing.ring_choice import Routing, choose_ring
from molink_scheduler.routing.ring_forecast import RingPace, RingState, forecast_ttft_s

PACE = RingPace(
    prefill_tokens_per_s=1000.0, first_token_s=0.1, tpot_alone_s=0.05, tpot_each_s=0.005
)
IDLE = RingState(PACE)


@st.composite
def states(draw: st.DrawFn) -> RingState:
    pace = RingPace(
        draw(st.floats(1, 1e5)),
        draw(st.floats(0, 10)),
        draw(st.floats(1e-3, 5)),
        draw(st.floats(0, 1)),
    )
    counts = st.integers(0, 10_000)
    return RingState(
        pace,
        draw(counts),
        draw(st.integers(0, 64)),
        draw(st.integers(0, 64)),
        draw(counts),
        draw(st.floats(1, 2000)),
        draw(counts),
        draw(st.floats(0.1, 1000)),
    )


ALL_STATES = st.lists(states(), min_size=1, max_size=6)


def loaded(outstanding_tokens: int, tokens_per_s: float = 1.0) -> RingState:
    return replace(IDLE, outstanding_tokens=outstanding_tokens, tokens_per_s=tokens_per_s)


def test_by_load_an_idle_ring_is_taken_before_a_busy_one():
    assert choose_ring(Routing.LOAD, [loaded(500), loaded(0), loaded(0)], 60, 40) == 1


def test_by_load_a_quick_ring_takes_more():
    rings = [loaded(300, 1.0), loaded(900, 4.0)]
    assert choose_ring(Routing.LOAD, rings, 60, 40) == 1


@given(st.lists(st.integers(1, 3000), min_size=30, max_size=120), st.integers(1, 8))
def test_by_load_no_ring_has_more_than_a_request_over_the_least(requests, count):
    outstanding = [0] * count
    for tokens in requests:
        rings = [loaded(one) for one in outstanding]
        outstanding[choose_ring(Routing.LOAD, rings, tokens, 0)] += tokens
    assert max(outstanding) - min(outstanding) <= max(requests)


def test_by_cache_the_longest_prefix_is_followed_onto_a_busy_ring():
    rings = [IDLE, replace(IDLE, cached_tokens=320, decoding=6)]
    assert choose_ring(Routing.CACHE, rings, 400, 10) == 1


def test_by_cache_a_ring_with_many_more_requests_is_passed_over():
    rings = [loaded(50), loaded(10), replace(IDLE, cached_tokens=320, decoding=9)]
    assert choose_ring(Routing.CACHE, rings, 400, 10) == 1


@given(ALL_STATES, st.floats(0, 1, exclude_max=True))
def test_at_random_every_draw_names_a_ring(rings, draw):
    assert 0 <= choose_ring(Routing.RANDOM, rings, 100, 10, draw) < len(rings)


def test_at_random_draws_are_spread_evenly():
    rings = [IDLE] * 4
    chosen = [choose_ring(Routing.RANDOM, rings, 1, 1, draw / 100) for draw in range(100)]
    assert [chosen.count(ring) for ring in range(4)] == [25] * 4


def test_a_cached_prefix_counts_for_the_time_that_it_saves():
    cached = replace(IDLE, cached_tokens=1600, waiting_tokens=500, waiting_requests=1)
    assert choose_ring(Routing.MOLINK, [IDLE, cached], 2000, 10) == 1


def test_a_ring_that_is_too_busy_is_passed_over():
    cached = replace(IDLE, cached_tokens=1600, waiting_tokens=5000, waiting_requests=3)
    assert choose_ring(Routing.MOLINK, [cached, IDLE], 2000, 10) == 1


def test_of_rings_that_begin_alike_the_one_with_faster_tokens_is_taken():
    slow = replace(IDLE, pace=replace(PACE, first_token_s=0.099, tpot_alone_s=0.2))
    assert choose_ring(Routing.MOLINK, [slow, IDLE], 1000, 10) == 1


@given(ALL_STATES, st.integers(1, 10_000))
def test_where_nobody_waits_no_ring_begins_much_sooner_than_the_chosen_one(rings, prompt_tokens):
    rings = [replace(ring, waiting_requests=0) for ring in rings]
    chosen = choose_ring(Routing.MOLINK, rings, prompt_tokens, 10)
    least_s = min(forecast_ttft_s(ring, prompt_tokens) for ring in rings)
    assert forecast_ttft_s(rings[chosen], prompt_tokens) <= 1.05 * least_s * (1 + 1e-9)


def test_the_more_wait_the_more_a_cached_prefix_is_worth():
    idle = replace(IDLE, waiting_tokens=4000)
    near = replace(IDLE, waiting_tokens=6000, cached_tokens=1000)
    for waiting, taken in ((0, 0), (4, 1)):
        rings = [replace(one, waiting_requests=waiting) for one in (idle, near)]
        assert choose_ring(Routing.MOLINK, rings, 2000, 10) == taken


@pytest.mark.parametrize("routing", Routing)
def test_of_equals_the_first_is_taken(routing):
    assert choose_ring(routing, [IDLE] * 3, 100, 10) == 0
