"""Requests that begin alike share KV: never a wrong row of it, and none is computed twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.kv.changes import DropBlocks
from molink_scheduler.kv.ring_cache import RingCache

SYSTEM = tuple(range(1, 65))
"""Four blocks that all users begin with."""


@st.composite
def crowds(draw):
    """Requests of a few families: some begin with the same blocks, some are another's next turn."""
    requests = []
    for number in range(draw(st.integers(1, 10))):
        family = draw(st.integers(0, 2))
        shared = SYSTEM[: draw(st.integers(0, len(SYSTEM)))]
        own = tuple(2000 + 100 * family + at for at in range(draw(st.integers(1, 40))))
        answer = draw(st.integers(1, 20))
        at = draw(st.floats(0, 3))
        salt = draw(st.sampled_from(["", "", "another", "@anna", "another@anna"]))
        requests.append((number, shared + own, answer, at, salt))
    return requests


@given(crowds(), st.integers(0, 2**16), st.integers(7, 40), st.integers(1, 3))
def test_no_row_is_read_that_other_tokens_wrote(make_ring, make_request, crowd, seed, blocks, n):
    """With KV for one request only or for all, over one stage or three."""
    ring = make_ring(seed, n, 16 * blocks, micro_batch_count=n, prefix_cache=True)
    for number, prompt, answer, at, salt in crowd:
        if len(prompt) + answer <= 16 * blocks:
            ring.submit_at(at, make_request(number, prompt, answer, cache_salt=salt))
    ring.run()
    for number in ring.requests:
        assert ring.answers[number] == ring.expected_answer(number)
    ring.assert_nothing_left()


@given(crowds(), st.integers(0, 2**16), st.lists(st.tuples(st.integers(0, 9), st.floats(0, 4))))
def test_users_who_go_away_leave_what_they_computed(make_ring, make_request, crowd, seed, gone):
    ring = make_ring(seed, 2, 16 * 12, prefix_cache=True)
    for number, prompt, answer, at, salt in crowd:
        if len(prompt) + answer <= 16 * 12:
            ring.submit_at(at, make_request(number, prompt, answer, cache_salt=salt))
    for number, at in gone:
        ring.cancel_at(at, number)
    ring.run()
    ring.assert_nothing_left()


def prefilled(ring):
    """Prompt tokens that the ring's first stage computed."""
    return sum(span.tokens for stage, span in ring.prefill_spans if stage == 0)


@given(crowds(), st.integers(0, 2**16), st.integers(9, 40), st.lists(st.floats(0, 4), max_size=3))
def test_a_cleared_cache_leaves_answers_as_they_are(
    make_ring, make_request, crowd, seed, blocks, cleared
):
    """With room for few, so that some are preempted and chains are dropped beside."""
    ring = make_ring(seed, 2, 16 * blocks, prefix_cache=True)
    for number, prompt, answer, at, salt in crowd:
        if len(prompt) + answer <= 16 * blocks:
            ring.submit_at(at, make_request(number, prompt, answer, cache_salt=salt))
    for at in cleared:
        ring.clear_at(at)
    ring.run()
    for number in ring.requests:
        assert ring.answers[number] == ring.expected_answer(number)
    ring.assert_nothing_left()
    ring.clear_at(ring.now)
    ring.run()
    ring.assert_caches_agree()
    assert ring.head.kv.blocks_cached == 0


@pytest.fixture
def ring(make_ring):
    return make_ring(3, 3, 16 * 1000, prefix_cache=True)


def test_a_next_turn_sends_what_is_new(ring, make_request):
    """Answers are cached too; the last token of the answer was never computed."""
    ring.submit_at(0.0, make_request(0, tuple(range(64)), 33))
    ring.run()
    before = prefilled(ring)
    history = (*range(64), *ring.answers[0])
    ring.submit_at(ring.now, make_request(1, (*history, *range(500, 520)), 5))
    ring.run()
    assert prefilled(ring) - before == len(history) + 20 - 96


def test_who_begins_alike_at_once_waits_for_the_first(ring, make_request):
    for number in range(8):
        ring.submit_at(0.01 * number, make_request(number, (*range(160), 900 + number), 4))
    ring.run()
    assert prefilled(ring) == 161 + 7
    ring.assert_nothing_left()


def test_who_shares_nothing_passes_those_that_wait(ring, make_request):
    ring.submit_at(0.0, make_request(0, tuple(range(160)), 4))
    ring.submit_at(0.01, make_request(1, (*range(160), 900), 4))
    ring.submit_at(0.02, make_request(2, (7, 7, 7), 4))
    ring.run()
    first = {}
    for place, (stage, span) in enumerate(ring.prefill_spans):
        first.setdefault((stage, span.request_id), place)
    assert first[0, 2] < first[0, 1]


def test_the_last_token_of_a_prompt_is_computed(ring, make_request):
    for number in range(2):
        ring.submit_at(number * 9.0, make_request(number, tuple(range(64)), 2))
    ring.run()
    assert prefilled(ring) == 64 + 16


def test_salts_share_nothing(ring, make_request):
    for number, salt in enumerate(("", "one", "two")):
        ring.submit_at(number * 9.0, make_request(number, tuple(range(64)), 2, cache_salt=salt))
    ring.run()
    assert prefilled(ring) == 3 * 64


@pytest.mark.parametrize(("flooding", "computed"), [("@ben", 1), ("@anna", 1025)])
def test_a_flood_of_one_key_leaves_what_another_has_cached(
    make_ring, make_request, flooding, computed
):
    """Anna's prompt of 64 blocks, 28 others of 80 and hers again, with room for 256 blocks: what
    Ben floods with makes room for itself, what Anna does pushes her own out."""
    ring = make_ring(1, 2, 16 * 256, prefix_cache=True)
    ring.submit_at(0.0, make_request(0, tuple(range(1025)), 2, cache_salt="@anna"))
    for number in range(1, 29):
        prompt = tuple(2000 * number + at for at in range(1280))
        ring.submit_at(99.0 * number, make_request(number, prompt, 2, cache_salt=flooding))
    ring.run()
    before = prefilled(ring)
    ring.submit_at(ring.now, make_request(99, tuple(range(1025)), 2, cache_salt="@anna"))
    ring.run()
    assert prefilled(ring) - before == computed
    ring.assert_nothing_left()


def test_a_prompt_that_is_scored_is_computed_whole(ring, make_request):
    for number in range(2):
        request = make_request(number, tuple(range(64)), 2, prompt_logprobs=0)
        ring.submit_at(number * 9.0, request)
    ring.run()
    assert prefilled(ring) == 128


def test_what_is_cached_never_causes_a_preemption(make_ring, make_request):
    """Room for one request and no more; a hundred pass one after the other."""
    ring = make_ring(1, 2, 16 * 6, prefix_cache=True)
    for number in range(20):
        prompt = tuple(100 * number + at for at in range(60))
        ring.submit_at(9.0 * number, make_request(number, prompt, 30))
    ring.run()
    assert ring.preemptions == 0
    ring.assert_nothing_left()


def test_an_answer_that_grows_in_a_full_ring_takes_few_messages(
    make_ring, make_request, monkeypatch
):
    """Room is made for some blocks at once: four of 256."""
    ring, dropped, take_changes = (
        make_ring(0, 2, 16 * 256, prefix_cache=True),
        [],
        RingCache.take_changes,
    )

    def noted(book):
        changes = take_changes(book)
        dropped.extend(len([*one.numbers]) for one in changes if isinstance(one, DropBlocks))
        return changes

    for number in range(17):
        ring.submit_at(number, make_request(number, tuple(range(number, 4400, 17)), 1))
    ring.run()
    monkeypatch.setattr(RingCache, "take_changes", noted)
    ring.submit_at(100.0, make_request(17, (5000,), 159))
    ring.run()
    assert dropped == [4, 4]
    ring.assert_nothing_left()


def test_layers_that_keep_states_cache_nothing(make_ring, make_request):
    ring = make_ring(1, 2, 16 * 100, prefix_cache=True, state_slots=4)
    for number in range(2):
        ring.submit_at(9.0 * number, make_request(number, tuple(range(128)), 2))
    ring.run()
    assert prefilled(ring) == 256


def test_what_was_cleared_is_computed_again(ring, make_request):
    ring.submit_at(0.0, make_request(0, tuple(range(64)), 2))
    ring.clear_at(9.0)
    ring.submit_at(9.1, make_request(1, tuple(range(64)), 2))
    ring.run()
    assert prefilled(ring) == 2 * 64


def test_what_is_in_use_while_it_is_cleared_is_found_by_nobody(ring, make_request):
    """The first request begins with what was cached, and is at its answer when that is cleared."""
    ring.submit_at(0.0, make_request(0, (*range(64), 900), 1))
    ring.submit_at(9.0, make_request(1, (*range(64), 901), 60))
    ring.stop_at(12.0)
    ring.run()
    assert ring.answers[1] and 1 not in ring.ended
    ring.clear_at(12.0)
    ring.submit_at(12.1, make_request(2, (*range(64), 902), 1))
    ring.stop_at(float("inf"))
    ring.run()
    assert prefilled(ring) == 65 + 1 + 65
    ring.assert_nothing_left()
    assert ring.head.kv.blocks_cached == 4


def test_nobody_waits_for_a_prompt_that_was_cleared_while_it_was_computed(ring, make_request):
    ring.submit_at(0.0, make_request(0, tuple(range(160)), 4))
    ring.clear_at(0.02)
    ring.submit_at(0.03, make_request(1, (*range(160), 900), 4))
    ring.run()
    begun = [(stage, span.request_id) for stage, span in ring.prefill_spans]
    last_of_the_first = len(begun) - 1 - begun[::-1].index((2, 0))
    assert begun.index((0, 1)) < last_of_the_first
    assert prefilled(ring) == 160 + 161
