"""Times of a node, and a batch that is decoded without planning a token."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_sim.pools.node import (
    ROOM_TOKENS,
    DecodeBatch,
    prefill_s,
    step_s,
    worth_fetching_bytes_per_s,
)

ANSWERS = st.lists(st.tuples(st.integers(1, 100_000), st.integers(2, 300)), min_size=1, max_size=12)


def token_by_token(answers):
    """Moments at which answers that begin together end."""
    running, now, ends = [[tokens, left - 1] for tokens, left in answers], 0.0, {}
    while len(ends) < len(answers):
        live = [one for number, one in enumerate(running) if number not in ends]
        now += step_s(len(live), sum(one[0] for one in live))
        for number, one in enumerate(running):
            if number not in ends:
                one[0] += 1
                one[1] -= 1
                if not one[1]:
                    ends[number] = now
    return ends


@given(answers=ANSWERS)
def test_answers_end_when_their_tokens_say(answers):
    batch, found = DecodeBatch(), {}
    for number, (tokens, left) in enumerate(answers):
        batch.join(number, tokens, left, number)
    while batch.rows:
        batch.advance(batch.next_end())
        found |= {number: batch.now for number, _ in batch.pop_ended()}
    assert found == pytest.approx(token_by_token(answers), rel=0.01)
    assert (batch.room_tokens, batch.kv_tokens) == (ROOM_TOKENS, 0)


@given(answers=ANSWERS, looks=st.lists(st.floats(0, 1), max_size=5))
def test_looking_changes_nothing(answers, looks):
    left, right = DecodeBatch(), DecodeBatch()
    for number, (tokens, more) in enumerate(answers):
        left.join(number, tokens, more, number)
        right.join(number, tokens, more, number)
    end = left.next_end()
    for share in sorted(looks):
        left.advance(share * end)
    assert left.next_end() == pytest.approx(right.next_end())


def test_nothing_decodes_in_an_empty_batch():
    batch = DecodeBatch()
    batch.advance(10.0)
    assert batch.next_end() == math.inf
    assert (batch.steps, batch.pop_ended()) == (0, [])


def test_a_prompt_takes_the_operations_of_the_papers_equation():
    """By hand: 80 layers of 4 n^2 d + 22 n d^2 at half of eight A800, beside starts of layers."""
    tokens, width = 8_192, 8_192
    operations = 80 * (4 * tokens**2 * width + 22 * tokens * width**2)
    assert prefill_s(tokens, 0) == pytest.approx(operations / (8 * 156e12), rel=0.01)
    assert prefill_s(tokens, tokens - 1) < 0.02 < prefill_s(tokens, 4_096) < prefill_s(tokens, 0)


def test_lines_from_which_a_prefix_is_worth_fetching_are_the_papers():
    """FAST'25 says 6 GB/s for eight A800 and 19 for eight H800, behind 8,192 tokens."""
    assert worth_fetching_bytes_per_s(8_192, 8 * 312e12) == pytest.approx(6e9, rel=0.03)
    assert worth_fetching_bytes_per_s(8_192, 8 * 989e12) == pytest.approx(19e9, rel=0.03)
