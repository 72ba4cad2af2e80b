"""Columns of tables: their widths, the line of one row, and the order of rows by one of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from molink.dashboard.pages.lines import Line, Row, TextSpan, fitted

UNITS = {
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "B": 1.0,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "Mbps": 1.0,
    "Gbps": 1e3,
    "%": 1.0,
}
"""Factors of the units that figures have in tables; those of one column are of one kind."""

FIGURE = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s?([A-Za-z%]*)")


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table, and how wide it is; 0: what is left."""

    title: str
    width: int
    right: bool = False
    from_columns: int = 0
    """Least width of a terminal that shows the column."""


def table_line(columns: Sequence[Column], cells: Sequence[TextSpan | str], width: int) -> Line:
    """The line of one row: its cells, as wide as their columns, with a blank between them."""
    shown = [one for one in zip(columns, cells, strict=True) if width >= one[0].from_columns]
    taken = sum(column.width for column, _ in shown) + len(shown) - 1
    spans: list[TextSpan] = []
    for column, cell in shown:
        span = TextSpan(cell) if isinstance(cell, str) else cell
        room = column.width or max(8, width - taken)
        if spans:
            spans.append(TextSpan(" "))
        spans.append(TextSpan(fitted(span.text, room, right=column.right), span.style))
    return tuple(spans)


def shown_layers(layers: tuple[int, int]) -> str:
    """Layers as people count them, the last one included, of [first, behind the last]."""
    first, behind = layers
    return f"{first}-{behind - 1}" if behind - first > 1 else f"{first}"


def ordered(rows: Sequence[Row], column: int, *, rising: bool) -> list[Row]:
    """Rows by a column that is shown: figures before words, and what is not known last."""
    known, unknown = list[Row](), list[Row]()
    for row in rows:
        (unknown if _cell(row, column) in ("", "-") else known).append(row)
    known.sort(key=lambda row: _rank(_cell(row, column)), reverse=not rising)
    return known + unknown


def _cell(row: Row, column: int) -> str:
    """Text of a cell; between two cells of a line there is a blank span."""
    return row.line[2 * column].text.strip() if 2 * column < len(row.line) else ""


def _rank(text: str) -> tuple[int, float, str]:
    parts = FIGURE.findall(text) if text[:1].isdigit() else []
    values = [float(number.replace(",", "")) * UNITS.get(unit, 1.0) for number, unit in parts]
    is_time = len(parts) > 1 and all(unit in ("d", "h", "m", "s") for _, unit in parts)
    value = sum(values) if is_time else values[0] if values else 0.0
    return (0 if values else 1, value, text.lower())
