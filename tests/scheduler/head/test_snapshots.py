"""Rings whose layers keep states: a request begins with a snapshot of the right ones, or anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

SYSTEM = tuple(range(1, 161))
"""Two and a half chunks of 64 tokens that all users begin with."""


@st.composite
def crowds(draw):
    """Requests of a few families: some begin with the same tokens, some answer for long."""
    requests = []
    for number in range(draw(st.integers(1, 9))):
        shared = SYSTEM[: draw(st.sampled_from([0, 60, 64, 100, 130, 160]))]
        family = 2000 + 1000 * draw(st.integers(0, 1))
        own = tuple(family + at for at in range(draw(st.integers(1, 80))))
        answer, at = draw(st.integers(1, 80)), draw(st.floats(0, 6))
        requests.append((number, shared + own, answer, at, draw(st.sampled_from(["", "", "b"]))))
    return requests


def prefilled(ring):
    """Prompt tokens that the ring's first stage computed."""
    return sum(span.tokens for stage, span in ring.prefill_spans if stage == 0)


def hybrid(make_ring, seed, stages, blocks, slots, snapshots, **more):
    return make_ring(
        seed,
        stages,
        16 * blocks,
        span_tokens=64,
        stage_rows=100,
        prefill_tokens_in_flight_max=192,
        state_slots=slots,
        state_snapshots=snapshots,
        prefix_cache=True,
        **more,
    )


@given(
    crowds(),
    st.integers(0, 2**16),
    st.tuples(st.integers(20, 60), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3)),
    st.lists(st.tuples(st.integers(0, 8), st.floats(0, 8)), max_size=3),
    st.lists(st.floats(0, 8), max_size=2),
    st.booleans(),
)
def test_no_states_are_gone_on_from_but_the_right_ones(
    make_ring, make_request, crowd, seed, sizes, gone, cleared, forecasts
):
    """With room for few, so that some are preempted and snapshots and blocks are dropped; with
    users who go away, and caches that are cleared."""
    blocks, slots, snapshots, stages = sizes
    ring = hybrid(make_ring, seed, stages, blocks, slots, snapshots, forecasts=forecasts)
    for number, prompt, answer, at, salt in crowd:
        if len(prompt) + answer <= 16 * blocks:
            ring.submit_at(at, make_request(number, prompt, answer, cache_salt=salt))
    for number, at in gone:
        ring.cancel_at(at, number)
    for at in cleared:
        ring.clear_at(at)
    ring.run()
    for number in ring.requests.keys() - {number for number, _ in gone}:
        assert ring.answers[number] == ring.expected_answer(number)
    ring.assert_nothing_left()


@pytest.fixture
def ring(make_ring):
    return hybrid(make_ring, 3, 3, 200, 8, 8)


def test_a_next_turn_goes_on_from_the_answers_last_snapshot(ring, make_request):
    ring.submit_at(0.0, make_request(0, tuple(range(100)), 100))
    ring.run()
    before = prefilled(ring)
    history = (*range(100), *ring.answers[0])
    ring.submit_at(ring.now, make_request(1, (*history, *range(500, 520)), 5))
    ring.run()
    assert prefilled(ring) - before == 220 - 192


def test_the_same_prompt_goes_on_from_its_last_chunk(ring, make_request):
    for number in range(2):
        ring.submit_at(9.0 * number, make_request(number, tuple(range(128)), 2))
    ring.run()
    assert prefilled(ring) == 128 + 64


def test_the_third_with_a_system_prompt_begins_where_the_second_parted(ring, make_request):
    for number in range(3):
        tail = range(1000 * (number + 1), 1000 * (number + 1) + 100)
        ring.submit_at(9.0 * number, make_request(number, (*SYSTEM, *tail), 2))
    ring.run()
    assert prefilled(ring) == 260 + 260 + 260 - 128


def test_of_many_at_once_all_but_two_begin_behind_the_system_prompt(ring, make_request):
    for number in range(6):
        tail = range(1000 * (number + 1), 1000 * (number + 1) + 100)
        ring.submit_at(0.001 * number, make_request(number, (*SYSTEM, *tail), 2))
    ring.run()
    assert prefilled(ring) == 6 * 260 - 4 * 128
    ring.assert_nothing_left()


def test_the_least_recently_used_snapshot_makes_room(make_ring, make_request):
    """Room for two: the first chat comes back in time, the second does not."""
    ring = hybrid(make_ring, 1, 2, 200, 4, 2)
    prompts = [tuple(range(1000 * one, 1000 * one + 70)) for one in range(3)]
    for number, which in enumerate((0, 1, 0, 2, 0, 1)):
        ring.submit_at(9.0 * number, make_request(number, prompts[which], 2))
    ring.run()
    assert prefilled(ring) == 4 * 70 + 2 * 6
    ring.assert_nothing_left()


def test_without_room_for_a_snapshot_nothing_is_cached(make_ring, make_request):
    ring = hybrid(make_ring, 1, 2, 100, 4, 0)
    for number in range(2):
        ring.submit_at(9.0 * number, make_request(number, tuple(range(128)), 2))
    ring.run()
    assert prefilled(ring) == 256


def test_a_prompt_that_is_scored_is_computed_whole(ring, make_request):
    for number in range(2):
        request = make_request(number, tuple(range(128)), 2, prompt_logprobs=0)
        ring.submit_at(9.0 * number, request)
    ring.run()
    assert prefilled(ring) == 256
