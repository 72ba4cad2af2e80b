"""Tables of what a sweep has tried, in a page between two marks of the sweep's name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NOT_TRIED = "–"
"""There is no such combination, or its turn did not come."""


@dataclass(frozen=True)
class Cell:
    """What one test found."""

    row: str
    column: str
    text: str


@dataclass(frozen=True)
class Sweep:
    """All that was found by one command."""

    name: str
    below: str
    """When and with what, as a clause."""
    cells: Sequence[Cell]


def written(page: str, sweep: Sweep) -> str:
    """The page with the sweep's table anew. Raises ValueError where its marks are missing."""
    begin, end = f"<!-- make {sweep.name} -->\n", f"<!-- end of make {sweep.name} -->\n"
    before, found, rest = page.partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise ValueError(f"The page has no place for a table: write {begin}{end} where it belongs.")
    return f"{before}{begin}\n{_table(sweep)}\n\n{sweep.below}.\n\n{end}{after}"


def _table(sweep: Sweep) -> str:
    columns = _in_order(cell.column for cell in sweep.cells)
    texts = {(cell.row, cell.column): cell.text for cell in sweep.cells}
    lines = ["| " + " | ".join(["", *columns]) + " |", "|---" * (len(columns) + 1) + "|"]
    for row in _in_order(cell.row for cell in sweep.cells):
        found = [texts.get((row, column), NOT_TRIED) for column in columns]
        lines.append("| " + " | ".join([row, *found]) + " |")
    return "\n".join(lines)


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
