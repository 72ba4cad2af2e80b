"""Tables as the documentation holds them. Pure."""

from collections.abc import Sequence

__all__ = ["markdown_table", "milliseconds"]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, numbers to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def milliseconds(value_s: float) -> str:
    """For a cell."""
    return f"{value_s * 1000:,.0f}" if abs(value_s) >= 0.1 else f"{value_s * 1000:,.1f}"
