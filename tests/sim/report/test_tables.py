from dataclasses import replace
from io import StringIO

from rich.console import Console

from molink_sim.outcome import StageOutcome
from molink_sim.report.summary import summary
from molink_sim.report.tables import Table, busy_table, print_summary, print_table, spread_table


def shown(show):
    console = Console(file=StringIO(), width=100)
    show(console)
    return console.file.getvalue()


def test_one_run_on_the_terminal(outcome_of):
    text = shown(lambda console: print_summary(summary(outcome_of()), console, "a [title]"))
    for words in ("a [title]", "time to first token", "ring 0 link 2", "40 of 40 requests"):
        assert words in text


def test_cells_are_no_markup():
    text = shown(lambda console: print_table(Table("[red]", ["[b]"], [["[/i]"]]), console))
    assert "[red]" in text and "[b]" in text and "[/i]" in text


def test_a_missing_time_is_a_dash(outcome_of):
    nothing = summary(replace(outcome_of(), requests=()))
    assert spread_table(nothing).rows[0] == ["time to first token", *"-----"]


def test_of_many_nodes_the_busiest_are_shown(outcome_of):
    stages = tuple(StageOutcome(ring, 0, ring / 100, 1) for ring in range(99))
    table = busy_table(summary(replace(outcome_of(), stages=stages, links=())))
    assert table.title.endswith("the busiest 24 of 99")
    assert [row[:2] for row in table.rows[:2]] == [
        ["ring 98 stage 0", "98.0%"],
        ["ring 97 stage 0", "97.0%"],
    ]
