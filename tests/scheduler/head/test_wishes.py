"""A ring keeps what a request wished for, by the head's clock, and what it answers is the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.kv.tiers import CacheTiers

CHAT = tuple(range(1, 65))
"""Four blocks."""


def prefilled(ring, first, until=None):
    """Prompt tokens that the first stage computed of some requests."""
    return sum(
        span.tokens
        for stage, span in ring.prefill_spans
        if stage == 0 and first <= span.request_id < (until or first + 1)
    )


@pytest.mark.parametrize(
    ("wishes", "comes_back_at", "computed"),
    [
        ((), 100.0, 65),
        (((64, 300),), 100.0, 1),
        (((32, 300),), 100.0, 33),
        (((64, 300),), 400.0, 65),
        (((32, 3600), (64, 300)), 400.0, 33),
    ],
)
def test_a_chat_that_comes_back_finds_what_it_wished_for(
    make_ring, make_request, wishes, comes_back_at, computed
):
    """Others turn over a ring with room for 16 blocks meanwhile, before and after it lapses."""
    ring = make_ring(1, 2, 16 * 16, prefix_cache=True)
    ring.submit_at(0.0, make_request(0, (*CHAT, 99), 4, wishes=wishes))
    for number in range(1, 40):
        prompt = tuple(range(100 * number, 100 * number + 60))
        ring.submit_at(10.0 * number - 5.0, make_request(number, prompt, 4))
    ring.submit_at(comes_back_at, make_request(40, (*CHAT, 98), 4))
    ring.run()
    assert ring.answers[40] == ring.expected_answer(40)
    assert prefilled(ring, 40) == computed


def test_a_hit_renews_the_wish(make_ring, make_request):
    ring = make_ring(1, 2, 16 * 16, prefix_cache=True)
    ring.submit_at(0.0, make_request(0, (*CHAT, 99), 4, wishes=((64, 300),)))
    ring.submit_at(200.0, make_request(1, (*CHAT, 98), 4))
    for number in range(2, 42):
        prompt = tuple(range(100 * number, 100 * number + 60))
        ring.submit_at(10.0 * number + 5.0, make_request(number, prompt, 4))
    ring.submit_at(427.0, make_request(42, (*CHAT, 97), 4))
    ring.run()
    assert prefilled(ring, 42) == 1


@pytest.mark.parametrize(("wishes", "computed"), [((), 65), (((64, 3600),), 1)])
def test_a_wished_chat_goes_down_and_comes_back_where_another_is_forgotten(
    make_ring, make_request, wishes, computed
):
    """Requests that fill the devices push it down, where others are pushed out beneath it."""
    tiers = CacheTiers(8, 8, 1e-6, 1e-6)
    ring = make_ring(1, 2, 16 * 16, prefix_cache=True, tiers=tiers)
    ring.submit_at(0.0, make_request(0, (*CHAT, 99), 4, wishes=wishes))
    for number in range(1, 12):
        prompt = tuple(range(1000 * number, 1000 * number + 15 * 16))
        ring.submit_at(10.0 * number, make_request(number, prompt, 4))
    ring.submit_at(130.0, make_request(12, (*CHAT, 98), 4))
    ring.run()
    assert ring.answers[12] == ring.expected_answer(12)
    assert prefilled(ring, 12) == computed
    assert ring.head.book.fetches.fetched_blocks == (4 if wishes else 0)


@st.composite
def wishing(draw):
    requests = []
    for number in range(draw(st.integers(1, 10))):
        own = tuple(2000 + 100 * draw(st.integers(0, 2)) + at for at in range(30))
        prompt = CHAT[: draw(st.integers(0, 64))] + own[: draw(st.integers(1, 30))]
        wishes = draw(
            st.lists(st.tuples(st.integers(1, len(prompt)), st.integers(1, 5)), max_size=4)
        )
        at, salt = draw(st.floats(0, 9)), draw(st.sampled_from(["", "@anna", "ours@ben"]))
        requests.append((number, prompt, draw(st.integers(1, 20)), at, salt, tuple(wishes)))
    return requests


@given(wishing(), st.integers(0, 2**16), st.integers(8, 30), st.sampled_from([0, 6]))
def test_whatever_is_wished_every_answer_is_right(
    make_ring, make_request, asked, seed, blocks, low
):
    """With and without room below the devices' memory."""
    tiers = CacheTiers(low, low, 1e-4, 1e-4) if low else None
    ring = make_ring(seed, 2, 16 * blocks, prefix_cache=True, tiers=tiers)
    for number, prompt, answer, at, salt, wishes in asked:
        if len(prompt) + answer <= 16 * blocks:
            request = make_request(number, prompt, answer, cache_salt=salt, wishes=wishes)
            ring.submit_at(at, request)
    ring.run()
    for number in ring.requests:
        assert ring.answers[number] == ring.expected_answer(number)
    ring.assert_nothing_left()
    ring.assert_caches_agree()
