from tools.experiments.harness.results import markdown_table, milliseconds


def test_a_table():
    assert markdown_table(["", "ms"], [["a", "1"]]) == "|  | ms |\n| --- | ---: |\n| a | 1 |"
    assert [milliseconds(value) for value in (0.0123, 0.1, 1.2345)] == ["12.3", "100", "1,234"]
