"""Runs say the same numbers as the lists that they stand for, joined and cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.number_runs import cut_runs, join_runs, named_runs, number_runs

NUMBERS = st.lists(st.integers(0, 40), unique=True)


def flat(runs):
    return [number for run in runs for number in run]


@given(NUMBERS)
def test_runs_hold_the_numbers_in_their_order_and_are_as_few_as_can_be(numbers):
    runs = number_runs(numbers)
    assert flat(runs) == numbers and all(runs)
    assert all(one.stop != other.start for one, other in pairwise(runs))
    assert join_runs(range(number, number + 1) for number in numbers) == runs


@given(NUMBERS, st.integers(0, 50))
def test_cut_runs_are_the_first_numbers_and_the_others(numbers, count):
    first, others = cut_runs(number_runs(numbers), count)
    assert (flat(first), flat(others)) == (numbers[:count], numbers[count:])


def test_runs_are_named_by_their_first_number_and_their_length():
    assert named_runs([range(3, 5), range(9, 10)]) == ((3, 2), (9, 1))
