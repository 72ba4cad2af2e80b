"""Numbers in rows: on the terminal and, through `page`, in HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from molink.workload.figures import SPREAD, TIME_LABELS

BUSY_ROWS_MAX = 24
"""Eight rings of three; of more nodes the busiest are shown."""

SHORT_NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "gap_s": "gap", "latency_s": "latency"}
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Table:
    """Text in cells, for the terminal and for HTML; the first column stands left, others right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: bool = True
    """Else the page sets all columns left."""


def spread_table(summary: Mapping[str, Any], title: str = "What users felt") -> Table:
    """Mean and percentiles of the four times."""
    rows = [
        [label, *(_seconds(summary[key][column]) for column in SPREAD)]
        for key, label in TIME_LABELS.items()
    ]
    return Table(title, ["seconds", *SPREAD], rows)


def busy_table(summary: Mapping[str, Any], title: str = "How busy it was") -> Table:
    """Stages and links in their order; where there are too many, the busiest."""
    rows = [
        (one["busy_share"], f"ring {one['ring']} stage {one['stage']}", f"{one['steps']:,} steps")
        for one in summary["stages"]
    ] + [
        (one["busy_share"], f"ring {one['ring']} link {one['link']}", _megabytes(one["bytes"]))
        for one in summary["links"]
    ]
    if len(rows) > BUSY_ROWS_MAX:
        title = f"{title}: the busiest {BUSY_ROWS_MAX} of {len(rows)}"
        rows = sorted(rows, key=lambda row: -row[0])[:BUSY_ROWS_MAX]
    cells = [[name, f"{share:.1%}", work] for share, name, work in rows]
    return Table(title, ["", "busy", "work"], cells)


def figure_label(name: str) -> str:
    """`ttft_s.p95` as `TTFT p95, s`; the mean goes without saying."""
    key, _, column = name.partition(".")
    if key not in SHORT_NAMES:
        return name.replace("_per_s", "/s").replace("_", " ")
    return f"{SHORT_NAMES[key]}{'' if column in ('', 'mean') else f' {column}'}, s"


def totals(summary: Mapping[str, Any]) -> str:
    """How many requests finished, and at which rates, in one sentence."""
    return (
        f"{summary['finished']} of {summary['requests']} requests finished "
        f"({summary['offered']['rate_per_s']:.3g}/s were offered); "
        f"{summary['tokens_per_s']:.1f} tokens/s came."
    )


def print_table(table: Table, console: Console) -> None:
    """Print a table on the terminal."""
    shown = RichTable(title=escape(table.title) or None)
    for number, column in enumerate(table.head):
        shown.add_column(escape(column), justify="right" if number else "left")
    for row in table.rows:
        shown.add_row(*(escape(cell) for cell in row))
    console.print(shown)


def print_summary(summary: Mapping[str, Any], console: Console, title: str) -> None:
    """One run: times, totals, and how busy stages and links were."""
    print_table(spread_table(summary, title), console)
    console.print(totals(summary), markup=False, highlight=False)
    print_table(busy_table(summary), console)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _megabytes(size: int) -> str:
    return f"{size / MEGABYTE:,.1f} MB"
