"""Cached blocks that leave device memory come back as they were, or not at all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.head.fetches import FETCH_FACTOR, FETCH_WAIT_MIN_S, Fetch, Fetches
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.changes import Fetched
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.ring_cache import RingCache
from molink_scheduler.kv.tiers import FETCHES_MAX, CacheTiers, PromptPace
from molink_scheduler.recording.values import decode
from molink_scheduler.recording.writing import encode
from tests.scheduler.head.test_prefix_cache import crowds, prefilled

ROOM = st.builds(CacheTiers, st.integers(0, 12), st.integers(0, 20))


@given(
    crowds(),
    st.integers(0, 2**16),
    st.integers(7, 20),
    st.integers(1, 3),
    ROOM,
    st.sampled_from([0.0, 0.0, 0.3]),
    st.lists(st.floats(0, 18), max_size=2),
    st.sampled_from([0.5, 15.0]),
)
def test_no_row_is_read_that_other_tokens_wrote(
    make_ring, make_request, crowd, seed, blocks, n, room, lost, cleared, read_s
):
    """With little room in each tier, blocks that some stage loses or reads too late, and a cache
    that is cleared."""
    ring = make_ring(
        *(seed, n, 16 * blocks, n),
        prefix_cache=True,
        tiers=room,
        lost=lost,
        read_s=read_s,
    )
    for turn in range(2):
        for number, prompt, answer, at, salt in crowd:
            if len(prompt) + answer <= 16 * blocks:
                request = make_request(10 * turn + number, prompt, answer, cache_salt=salt)
                ring.submit_at(9.0 * turn + at, request)
    for at in cleared:
        ring.clear_at(at)
    ring.run()
    for number in ring.requests:
        assert ring.answers[number] == ring.expected_answer(number)
    ring.assert_nothing_left()


@given(
    crowds(), st.integers(0, 2**16), ROOM, st.lists(st.tuples(st.integers(0, 19), st.floats(0, 12)))
)
def test_users_who_go_away_hold_up_nobody(make_ring, make_request, crowd, seed, room, gone):
    """Also while blocks come back for them, and where running requests are pushed out."""
    ring = make_ring(seed, 2, 16 * 9, prefix_cache=True, tiers=room, lost=0.1, forecasts=False)
    for turn in range(2):
        for number, prompt, answer, at, salt in crowd:
            if len(prompt) + answer <= 16 * 9:
                request = make_request(10 * turn + number, prompt, answer, cache_salt=salt)
                ring.submit_at(5.0 * turn + at, request)
    for number, at in gone:
        ring.cancel_at(at, number)
    ring.run()
    ring.assert_nothing_left()


@pytest.mark.parametrize(
    ("room", "computed"),
    [
        (CacheTiers(8, 0), 1),
        (CacheTiers(0, 8), 1),
        (CacheTiers(3, 5), 1),
        (CacheTiers(3, 0), 65),
        (CacheTiers(), 113),
    ],
)
def test_a_prompt_whose_blocks_were_put_away_is_not_computed_again(
    make_ring, make_request, room, computed
):
    """Ten blocks of KV; another prompt takes nine of them in between."""
    ring = make_ring(1, 3, 16 * 10, prefix_cache=True, tiers=room)
    first, other = tuple(range(129)), tuple(range(900, 1029))
    ring.submit_at(0.0, make_request(0, first, 2))
    ring.submit_at(50.0, make_request(1, other, 2))
    ring.run()
    before = prefilled(ring)
    ring.submit_at(100.0, make_request(2, first, 2))
    ring.run()
    assert prefilled(ring) - before == computed
    ring.assert_nothing_left()


def run_until(ring, is_so):
    while not is_so():
        assert ring.until < 1000.0, "it never comes to that"
        ring.stop_at(ring.until + 0.25)
        ring.run()


@pytest.mark.parametrize("room", [CacheTiers(12), CacheTiers(3, 12)])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_request_comes_back_as_often_as_it_was_preempted(make_ring, make_request, times, room):
    """Each time that one that goes first has outgrown the room: of what it held only rows that
    fill no block are computed again."""
    ring = make_ring(1, 3, 16 * 12, prefix_cache=True, tiers=room, forecasts=False)
    ring.submit_at(0.0, make_request(90, 97, 75))
    ring.stop_at(0.0)
    for number in range(times):
        goes_on_at = len(ring.answers[90]) + 3
        run_until(ring, lambda: len(ring.answers[90]) >= goes_on_at)  # noqa: B023 - it runs here
        first = 1000 * (number + 1)
        ring.submit_at(ring.until, make_request(number, tuple(range(first, first + 16)), 150))
        run_until(ring, lambda: number in ring.ended)  # noqa: B023 - it runs here
    ring.stop_at(float("inf"))
    ring.run()
    computed = [span for stage, span in ring.prefill_spans if stage == 0 and span.request_id == 90]
    assert ring.preemptions == times
    assert sum(span.tokens for span in computed) <= 97 + 16 * times
    assert ring.head.book.fetches.fetched_blocks >= 4 * times
    assert ring.answers[90] == ring.expected_answer(90)
    ring.assert_nothing_left()


def test_others_go_on_while_blocks_come_back(make_ring, make_request):
    ring = make_ring(1, 3, 16 * 10, prefix_cache=True, tiers=CacheTiers(8))
    first, other = tuple(range(129)), tuple(range(900, 1029))
    for number, prompt in enumerate((first, other, first, (7, 7, 7))):
        ring.submit_at(50.0 * min(number, 2) + 0.001 * number, make_request(number, prompt, 2))
    ring.run()
    order = [span.request_id for stage, span in ring.prefill_spans if stage == 0]
    assert ring.fetches == 1 and order[-2:] == [3, 2]
    fetches = ring.head.book.fetches
    assert (fetches.fetched_blocks, fetches.lost_blocks) == (7, 0)


def test_what_is_lost_is_computed_again(make_ring, make_request):
    ring = make_ring(1, 3, 16 * 10, prefix_cache=True, tiers=CacheTiers(8), lost=1.0)
    first, other = tuple(range(129)), tuple(range(900, 1029))
    for number, prompt in enumerate((first, other, first)):
        ring.submit_at(50.0 * number, make_request(number, prompt, 2))
    ring.run()
    assert ring.fetches == 1 and prefilled(ring) == 2 * 129 + 113
    fetches = ring.head.book.fetches
    assert (fetches.fetched_blocks, fetches.lost_blocks) == (0, 7)
    ring.assert_nothing_left()


@pytest.mark.parametrize(("room", "least"), [(CacheTiers(0, 8), 0.0), (CacheTiers(8, 0), 1.0)])
def test_what_a_file_loses_is_expected_of_it(make_ring, make_request, room, least):
    ring = make_ring(1, 3, 16 * 10, prefix_cache=True, tiers=room, lost=1.0)
    prompts = tuple(range(129)), tuple(range(900, 1029))
    for number in range(12):
        ring.submit_at(50.0 * number, make_request(number, prompts[number % 2], 2))
    ring.run()
    fetches = ring.head.book.fetches
    assert fetches.lost_blocks and not fetches.fetched_blocks
    assert least <= fetches.answers.file_share <= least + 0.25


def test_a_head_with_a_fetch_under_way_is_written_and_read(make_ring, make_request):
    """What the event log keeps of it goes on as it would have."""
    ring = make_ring(1, 3, 16 * 10, prefix_cache=True, tiers=CacheTiers(3, 8))
    first, other = tuple(range(129)), tuple(range(900, 1029))
    for number, prompt in enumerate((first, other, first)):
        ring.submit_at(50.0 * number, make_request(number, prompt, 2))
    ring.stop_at(100.0)
    ring.run()
    book = ring.head.book
    book.fetches.pace = PromptPace()
    (fetch_id,) = book.fetches.under_way
    read = decode(json.loads(json.dumps(encode(book))))
    for one in (book, read):
        assert one.fetches.answered(Fetched(fetch_id, 5), 101.0) is None
    assert read.cache.take_changes() == book.cache.take_changes()
    assert read.cache.tree.blocks_in == book.cache.tree.blocks_in


def in_turn(ring, make_request, numbers):
    """Two prompts by turns, each of which takes nine of ten blocks, 50 s apart."""
    prompts = tuple(range(129)), tuple(range(900, 1029))
    for number in numbers:
        ring.submit_at(50.0 * number, make_request(number, prompts[number % 2], 2))


@pytest.mark.parametrize("silent", [0, 1])
def test_what_a_stage_never_answers_is_computed(make_ring, make_request, silent):
    """Also where the blocks that were to come have taken most of the room."""
    ring = make_ring(1, 2, 160, prefix_cache=True, tiers=CacheTiers(8), silent={silent})
    in_turn(ring, make_request, range(3))
    ring.run()
    assert ring.answers[2] == ring.expected_answer(2) and prefilled(ring) == 2 * 129 + 113
    assert FETCH_WAIT_MIN_S < ring.now - 100.0 < FETCH_WAIT_MIN_S + 2.0
    fetches = ring.head.book.fetches
    assert (fetches.fetched_blocks, fetches.lost_blocks) == (0, 7)
    ring.assert_nothing_left()


def test_room_that_a_fetch_held_is_for_whoever_waits(make_ring, make_request):
    """Although the request for which it was begun has gone."""
    ring = make_ring(1, 2, 160, prefix_cache=True, tiers=CacheTiers(8), silent={1})
    in_turn(ring, make_request, range(3))
    ring.submit_at(101.0, make_request(3, tuple(range(500, 629)), 2))
    ring.cancel_at(102.0, 2)
    ring.run()
    assert ring.fetches == 1 and ring.answers[3] == ring.expected_answer(3)
    ring.assert_nothing_left()


def test_a_ring_whose_stage_never_answers_soon_fetches_no_more(make_ring, make_request):
    ring = make_ring(1, 2, 160, prefix_cache=True, tiers=CacheTiers(8), silent={1})
    in_turn(ring, make_request, range(12))
    ring.run()
    assert ring.fetches == FETCHES_MAX
    assert all(ring.answers[one] == ring.expected_answer(one) for one in range(12))
    ring.assert_nothing_left()


def test_an_answer_that_comes_late_is_no_fault(make_ring, make_request):
    """The next fetch is begun as any other."""
    ring = make_ring(1, 2, 160, prefix_cache=True, tiers=CacheTiers(16), read_s=0.0)
    ring.push(90.0, lambda: setattr(ring, "read_s", 30.0))
    ring.push(140.0, lambda: setattr(ring, "read_s", 0.0))
    in_turn(ring, make_request, range(4))
    ring.run()
    fetches = ring.head.book.fetches
    assert (ring.fetches, fetches.lost_blocks, fetches.fetched_blocks) == (2, 7, 7)
    assert not fetches.late
    ring.assert_nothing_left()


def test_a_fetch_is_waited_for_as_long_as_is_forecast(make_request):
    """Some times over, and behind those that are read before it."""

    def due_at(expected_s):
        fetch = Fetch(Sequence(make_request(1, 40, 2)), 0, 2, 2, 10.0, expected_s)
        fetches.awaiting(fetch)
        return [*fetches.under_way.values()][-1].due_at

    fetches = Fetches(RingCache(KvLedger(8), CacheTiers(8)))
    assert due_at(0.1) == 10.0 + FETCH_WAIT_MIN_S
    assert due_at(4.9) == 10.0 + FETCH_FACTOR * 5.0
    fetches.answers.slowness = 2.0
    assert due_at(1.0) == 10.0 + FETCH_FACTOR * 2.0 * 6.0
    assert fetches.due_at == 10.0 + FETCH_WAIT_MIN_S
