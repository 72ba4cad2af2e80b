import pytest

from molink.errors import UserError
from tools.experiments.harness.experiment import (
    Condition,
    Measured,
    in_turn,
    markdown_table,
    medians,
    milliseconds,
    turns,
)

A, B, C = (Condition(name, ()) for name in "ABC")


def test_each_round_begins_with_another_condition():
    assert "".join(one.name for one in turns([A, B, C], 4)) == "ABCBCACABABC"
    assert list(turns([A], 2)) == [A, A]


def test_medians_are_over_the_rounds_of_each_condition():
    async def measure(condition, number):
        return Measured({"figure": {"A": [5, 1, 3], "B": [2, 9, 4]}[condition.name][number]})

    assert medians(in_turn([A, B], 3, measure)) == {"A": {"figure": 3}, "B": {"figure": 4}}


def test_a_task_groups_failure_comes_out_as_it_is():
    async def measure(condition, number):
        raise ExceptionGroup("tasks", [UserError("the run is void")])

    with pytest.raises(UserError, match="the run is void"):
        in_turn([A], 1, measure)


def test_a_table():
    assert markdown_table(["", "ms"], [["a", "1"]]) == "|  | ms |\n| --- | ---: |\n| a | 1 |"
    assert [milliseconds(value) for value in (0.0123, 0.1, 1.2345)] == ["12.3", "100", "1,234"]
