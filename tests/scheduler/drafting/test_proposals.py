"""Drafts hold for one position of their request, and are taken once."""

import pytest

from molink_scheduler.drafting.proposals import COPY, NOTHING, TAIL, DraftTally, Proposals


def proposals() -> Proposals:
    made = Proposals()
    made.offer(1, 8, (5, 6, 7), TAIL)
    made.offer(2, 8, (9,), TAIL)
    return made


def test_drafts_are_taken_once_and_for_their_position_alone():
    made = proposals()
    assert made.take(1, 8, 2) == ((5, 6), TAIL)
    assert made.take(1, 8, 2) == NOTHING
    for position in (7, 9):
        other = proposals()
        assert other.take(1, position, 16) == NOTHING
        assert other.take(1, 8, 16) == NOTHING, "they are of no use any more"
    assert made.take(2, 8, 16) == ((9,), TAIL), "another request's stay"


def test_the_last_who_has_something_to_say_counts():
    made = proposals()
    made.offer(1, 8, (), COPY)
    made.offer(2, 8, (4,), COPY)
    assert made.take(1, 8, 16) == ((5, 6, 7), TAIL)
    assert made.take(2, 8, 16) == ((4,), COPY)


def test_nothing_is_left_of_a_request_that_has_gone():
    made = proposals()
    made.forget(1)
    made.forget(99)
    assert made.take(1, 8, 16) == NOTHING
    assert made.take(2, 8, 0) == NOTHING


def test_a_tally_counts_what_followed_right_drafts():
    tally = DraftTally()
    tally.judged(4, 2)
    tally.judged(4, 4)
    assert (tally.rounds, tally.drafts, tally.tried, tally.right) == (2, 8, 7, 6)


@pytest.mark.parametrize(
    ("rounds", "right", "is_hopeless"), [(199, 0, False), (200, 0, True), (500, 1, False)]
)
def test_a_layer_that_was_loaded_wrongly_is_told_from_a_poor_one(rounds, right, is_hopeless):
    tally = DraftTally()
    for number in range(rounds):
        tally.judged(4, right if number % 10 == 0 else 0)
    assert tally.is_hopeless == is_hopeless
