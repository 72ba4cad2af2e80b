"""What requests come to hold is forecast by how answers have ended; a flood does not make a ring
compute everything twice, and leaves little of its KV empty."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.head.kv_forecast import BLOCKS_AHEAD, KvForecast
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.recording.values import decode
from molink_scheduler.recording.writing import encode

answers = st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=200)
running = st.lists(
    st.tuples(st.integers(1, 90), st.integers(0, 5000), st.integers(1, 5000)), max_size=12
)


def sequence_of(make_request, prompt: int, generated: int, left: int) -> Sequence:
    sequence = Sequence(make_request(1, prompt, generated + left))
    sequence.known.extend([7] * generated)
    return sequence


def learned(make_request, ended) -> KvForecast:
    forecast = KvForecast()
    for tokens, by_itself in ended:
        forecast.ended(sequence_of(make_request, 5, tokens, 1), by_itself=by_itself)
    return forecast


@settings(max_examples=50, deadline=None)
@given(ended=answers, sequences=running)
def test_nobody_is_taken_to_hold_more_than_it_may(make_request, ended, sequences):
    """Nor less than it does hold, now; and all hold what each does."""
    forecast = learned(make_request, ended)
    all_of_them = [sequence_of(make_request, *one) for one in sequences]
    for one in all_of_them:
        held = forecast.tokens_held([one])
        assert held[0] >= min(len(one.known), one.request.tokens_max)
        assert all(0 <= tokens <= one.request.tokens_max + 1e-6 for tokens in held)
    together = [forecast.tokens_held([one]) for one in all_of_them]
    sums = [sum(column) for column in zip(*together, strict=True)]
    assert forecast.tokens_held(all_of_them) == pytest.approx(sums or [0] * len(BLOCKS_AHEAD[1:]))


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(16, 400), min_size=1, max_size=10))
def test_where_all_use_up_what_they_ask_for_the_ends_are_known(make_request, sizes):
    forecast = learned(make_request, [(1000, False)] * 128)
    sequences = [sequence_of(make_request, 16, 0, size) for size in sizes]
    held = forecast.tokens_held(sequences)
    for ahead, until, told in zip(BLOCKS_AHEAD, BLOCKS_AHEAD[1:], held, strict=False):
        now, then = ahead * BLOCK_TOKENS, until * BLOCK_TOKENS
        true = sum(min(15 + size, 16 + then) for size in sizes if size > now)
        assert told == pytest.approx(true, rel=0.05)


def test_answers_that_end_by_themselves_are_not_expected_to_go_on(make_request):
    forecast = learned(make_request, [(64, True)] * 128)
    held = forecast.tokens_held([sequence_of(make_request, 16, 0, 1000)])
    assert max(held) == pytest.approx(16 + 64, rel=0.05)
    assert held[4] < 5, "after 64 tokens it has ended"


def test_users_change(make_request):
    forecast = learned(make_request, [(640, True)] * 128 + [(64, True)] * 512)
    assert max(forecast.tokens_held([sequence_of(make_request, 16, 0, 1000)])) < 16 + 64 + 20


def test_it_is_recorded_with_the_core(make_request):
    forecast = learned(make_request, [(64, True), (5000, False)])
    again = decode(encode(forecast))
    one = sequence_of(make_request, 16, 20, 100)
    assert again.tokens_held([one]) == forecast.tokens_held([one])


def flood(make_ring, make_request, lengths: list[int], seed: int, **options):
    ring = make_ring(seed=seed, stage_count=3, kv_tokens=640, micro_batch_count=3, **options)
    for request_id, length in enumerate(lengths, 1):
        ring.submit_at(0.01 * request_id, make_request(request_id, 16, length))
    ring.run()
    assert len(ring.ended) == len(lengths)
    ring.assert_nothing_left()
    return ring


@pytest.mark.parametrize("lengths", [[64] * 40, [16 + 12 * (n * 7 % 9) for n in range(60)]])
def test_a_flood_is_hardly_computed_twice(make_ring, make_request, lengths):
    """On rings with room for eight; which requests meet is chance, so of six of them."""
    carefree = flood(make_ring, make_request, lengths, 0, forecasts=False)
    rings = [flood(make_ring, make_request, lengths, seed) for seed in range(6)]
    again = sum(ring.preemptions for ring in rings) / len(rings)
    assert again <= 0.11 * len(lengths) < carefree.preemptions
    assert rings[0].now < 1.15 * carefree.now, "and takes hardly longer"


def test_who_has_several_tokens_a_round_holds_more_at_each_moment(make_request):
    forecast = learned(make_request, [(1000, False)] * 128)
    slow, quick = (sequence_of(make_request, 16, 0, 320) for _ in range(2))
    for _ in range(80):
        quick.round_came(4)
    held = [forecast.tokens_held([one]) for one in (slow, quick)]
    assert held[1][0] == pytest.approx(held[0][3], rel=0.05), "four blocks are full, not one"
    assert held[1][5] < 1 < held[0][5], "and it has ended, when the other has not"
