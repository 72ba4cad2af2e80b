"""Lines of styled text, bars and sparklines: what every page is made of.

A style is a name with a meaning, not a colour: the terminal chooses (16 colours, or none), and
whatever a style says, a mark or a word says too. Glyphs beyond ASCII are given with the one that
takes their place on a terminal without UTF-8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rich.cells import cell_len, set_cell_size

Style = Literal["", "dim", "bold", "title", "good", "warning", "bad", "accent", "decode", "prefill"]


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Text of one style."""

    text: str
    style: Style = ""


Line = tuple[TextSpan, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Line of a table, with what it is about."""

    line: Line
    key: str = ""
    """Id of the node, request or link that a key press is about; empty: the line is none's."""
    found_by: str = ""
    """Text in which a filter looks beside the line's own."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters beyond letters, for one kind of terminal."""

    levels: str
    """Levels of a sparkline, from nothing to full."""
    bar: str
    bar_rest: str
    down: str
    up: str
    corner_top: str
    corner_bottom: str
    side: str
    mark: str
    """Mark before what is wrong."""
    dot: str
    """Sign of a micro-batch."""
    between: str
    is_ascii: bool = False

    def text(self, text: str) -> str:
        """The text as this terminal can show it."""
        return text.encode("ascii", "replace").decode() if self.is_ascii else text

    def bar_of(self, share: float | None, width: int) -> str:
        """Bar of a share of 1."""
        filled = 0 if share is None else round(min(1.0, max(0.0, share)) * width)
        return self.bar * filled + self.bar_rest * (width - filled)

    def sparkline(self, values: Sequence[float], width: int, top: float | None = None) -> str:
        """The last values, as many as there is room for; several share a place where there are
        more, and the greatest of them is shown. `top` is what is full: without it the greatest."""
        shown = _resampled(values, width)
        full = top if top is not None else max(shown, default=0.0)
        steps = len(self.levels) - 1
        levels = (
            self.levels[0 if full <= 0 else min(steps, max(0, round(value / full * steps)))]
            for value in shown
        )
        return "".join(levels).rjust(width)


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "█", "░", "▼", "▲", "╭", "╰", "│", "▲", "●", "·")
ASCII = Glyphs("_.-=+*%#", "#", ".", "v", "^", "+", "+", "|", "!", "o", "-", is_ascii=True)


def line(*parts: TextSpan | str) -> Line:
    """A line of spans; plain texts have no style."""
    return tuple(TextSpan(one) if isinstance(one, str) else one for one in parts)


def field_line(name: str, value: str, style: Style = "") -> Line:
    """A line of a page of details: what it is, and its value."""
    return line(TextSpan(f"{name:<15}", "dim"), TextSpan(value, style))


def text_of(spans: Line) -> str:
    """The line without its styles."""
    return "".join(span.text for span in spans)


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly so many cells; what is cut off is shown by a mark."""
    size = cell_len(text)
    if size <= width:
        return " " * (width - size) + text if right else text + " " * (width - size)
    return set_cell_size(text, max(0, width - 1)) + "~" if width else ""


def _resampled(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [index * len(values) // width for index in range(width + 1)]
    return [max(values[first:last]) for first, last in pairwise(edges)]
