"""Where cached blocks go, and when it is worth fetching them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.kv.tiers import CacheTiers, FetchPace, PromptPace, blocks_worth_fetching

SECONDS = st.floats(0, 10)


def pace(row_s, trip_s):
    measured = PromptPace()
    measured.returned(1, 8, trip_s, under_way=True, pending=False)
    measured.returned(1, 8, 8 * row_s, under_way=False, pending=False)
    return measured


@given(st.integers(0, 99), st.integers(0, 99), SECONDS, SECONDS, SECONDS, SECONDS, st.floats(1, 32))
def test_nothing_is_fetched_that_is_computed_sooner(
    host, file, copy_s, read_s, row_s, trip_s, slowness
):
    tiers, measured = CacheTiers(99, 99, copy_s, read_s), pace(row_s, trip_s)
    answers = FetchPace()
    answers.slowness = slowness
    blocks = blocks_worth_fetching(host, file, tiers, measured, answers)
    assert blocks in (0, host, host + file)
    fetch_s = slowness * max(0, blocks - host) * read_s
    fetch_s += max(slowness * trip_s, blocks * copy_s)
    assert not blocks or fetch_s < 16 * blocks * row_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("read_block_s", "blocks"),
    [(0.001, 125), (0.017, 25), (1.0, 25)],
)
def test_a_slow_file_is_left_alone(read_block_s, blocks):
    """Rows come out each millisecond: a block is computed in 16 ms."""
    tiers = CacheTiers(1000, 1000, 0.0001, read_block_s)
    assert blocks_worth_fetching(25, 100, tiers, pace(0.001, 0.1), FetchPace()) == blocks


def test_a_few_blocks_are_not_worth_a_trip_round_the_ring():
    tiers = CacheTiers(1000, 0, 0.0001)
    assert blocks_worth_fetching(6, 0, tiers, pace(0.001, 0.1), FetchPace()) == 0
    assert blocks_worth_fetching(7, 0, tiers, pace(0.001, 0.1), FetchPace()) == 7


def test_the_pace_of_fetches_is_learned_and_forgotten():
    answers = FetchPace()
    answers.answered(1.0, 0.5)
    assert answers.slowness == 1.0, "nothing is quicker than what was measured at loading"
    for _ in range(20):
        answers.answered(0.1, 100.0)
    assert 3.9 < answers.slowness <= 4
    tiers = CacheTiers(1000, 1000, 0.0, 0.005)
    assert blocks_worth_fetching(0, 100, tiers, pace(0.001, 0.001), FetchPace()) == 100
    assert blocks_worth_fetching(0, 100, tiers, pace(0.001, 0.001), answers) == 0
    for _ in range(300):
        answers.request_ended()
    assert answers.slowness < 1.1


def test_a_file_of_which_nothing_comes_is_left_alone_for_a_while():
    answers, tiers = FetchPace(), CacheTiers(1000, 1000, 0.0, 0.006)
    measured = pace(0.001, 0.1)
    for _ in range(3):
        assert blocks_worth_fetching(0, 40, tiers, measured, answers) == 40
        answers.came(0, 40)
    assert blocks_worth_fetching(0, 40, tiers, measured, answers) == 0
    assert blocks_worth_fetching(25, 40, tiers, measured, answers) == 65
    answers.came(0, 40)
    answers.came(0, 40)
    assert blocks_worth_fetching(25, 40, tiers, measured, answers) == 25
    for _ in range(50):
        answers.request_ended()
    assert blocks_worth_fetching(0, 40, tiers, measured, answers) == 40


def test_nothing_is_fetched_before_the_pace_is_known():
    measured = PromptPace()
    for request_id in (1, 2):
        measured.returned(request_id, 8, 0.5, under_way=False, pending=False)
    assert (measured.row_s, measured.trip_s) == (None, 0.5)
    assert blocks_worth_fetching(100, 0, CacheTiers(100), measured, FetchPace()) == 0


def test_rows_that_were_sent_one_by_one_tell_no_slower_pace_than_others():
    measured = PromptPace()
    for elapsed_s in (0.5, 0.16, 0.08, 0.4):
        measured.returned(1, 8, elapsed_s, under_way=False, pending=True)
    assert (measured.trip_s, measured.row_s) == (0.5, 0.01)
    measured.forget(1)
    measured.returned(1, 8, 0.5, under_way=True, pending=True)
    measured.returned(1, 8, 0.16, under_way=False, pending=False)
    assert measured.row_s == pytest.approx(0.012)


def test_a_ring_has_the_room_of_its_smallest_stage_and_the_pace_of_its_slowest():
    stages = [CacheTiers(10, 0, 0.1, 0.0), CacheTiers(4, 7, 0.2, 0.3)]
    assert CacheTiers.of_ring(stages) == CacheTiers(4, 0, 0.2, 0.3)


@pytest.mark.parametrize("room", [{"host_blocks": -1}, {"read_block_s": float("inf")}])
def test_what_no_memory_has_is_no_tier(room):
    with pytest.raises(ValueError, match="of the cache"):
        CacheTiers(**room)
