"""Widgets that draw lines of styled spans: one that stands still, one with a cursor that scrolls.

Only the lines that are visible are turned into cells, so that a hundred nodes cost what a screen
costs. Colours are the terminal's own sixteen.
"""

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from molink.dashboard.pages.lines import Line, Row, Style

STYLES: dict[Style, RichStyle] = {
    "": RichStyle(),
    "dim": RichStyle(dim=True),
    "bold": RichStyle(bold=True),
    "title": RichStyle(bold=True),
    "good": RichStyle(color="green"),
    "warning": RichStyle(color="black", bgcolor="yellow"),  # Yellow alone is unreadable on white.
    "bad": RichStyle(color="red", bold=True),
    "accent": RichStyle(color="cyan"),
    "decode": RichStyle(color="cyan"),
    "prefill": RichStyle(color="magenta"),
}
CURSOR = RichStyle(reverse=True)


def strip_of(line: Line, width: int, *, chosen: bool = False) -> Strip:
    """The cells of a line, cut or filled to `width`."""
    segments = [Segment(span.text, STYLES[span.style]) for span in line if span.text]
    strip = Strip(segments).adjust_cell_length(width, RichStyle())
    return strip.apply_style(CURSOR) if chosen else strip


class LinesView(Widget):
    """Lines that stand still; as high as they are many."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines instead, if they are others."""
        if tuple(lines) == self._lines:
            return
        if len(lines) != len(self._lines):
            self.styles.height = max(1, len(lines))
        self._lines = tuple(lines)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the widget."""
        line = self._lines[y] if y < len(self._lines) else ()
        return strip_of(line, self.size.width)


class RowsView(ScrollView, can_focus=True):
    """Rows that scroll; those with a key can be chosen."""

    class Opened(Message):
        """Message that the user wants the details of the chosen row."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._rows: tuple[Row, ...] = ()
        self.cursor = 0
        self.has_cursor = True

    @property
    def chosen(self) -> Row | None:
        """The row under the cursor."""
        if not self.has_cursor or not self._rows:
            return None
        return self._rows[min(self.cursor, len(self._rows) - 1)]

    @property
    def place(self) -> str:
        """The first visible row and how many there are, when not all are visible."""
        height, top = self.size.height, self.scroll_offset.y
        if len(self._rows) <= height:
            return ""
        return f"{top + 1}/{len(self._rows)}"

    def show(self, rows: Sequence[Row], *, has_cursor: bool = True) -> None:
        """Draw these rows instead; the cursor stays on what it was on, if that is still there."""
        if tuple(rows) == self._rows and has_cursor == self.has_cursor:
            return
        before = self.chosen
        self._rows, self.has_cursor = tuple(rows), has_cursor
        self.cursor = (
            self._found_again(before) if before is not None and before.key else self.cursor
        )
        self.cursor = max(0, min(self.cursor, len(rows) - 1))
        self.virtual_size = Size(self.size.width, len(rows))
        self.refresh()

    def go_to_top(self) -> None:
        """Show the first row, and choose it."""
        self.cursor = 0
        self.scroll_to(0, 0, animate=False)

    def choose(self, key: str) -> None:
        """Choose the row of this key."""
        for index, row in enumerate(self._rows):
            if row.key == key:
                self.move(index - self.cursor)
                return

    def _found_again(self, row: Row) -> int:
        """Index at which the row is now: a row of several lines keeps its place among them."""
        if self.cursor < len(self._rows) and self._rows[self.cursor].key == row.key:
            return self.cursor
        for index, one in enumerate(self._rows):
            if one.key == row.key:
                return index
        return self.cursor

    def move(self, rows: int) -> None:
        """Move the cursor, or what is visible where there is none."""
        if not self.has_cursor:
            self.scroll_relative(y=rows, animate=False)
            return
        self.cursor = max(0, min(self.cursor + rows, len(self._rows) - 1))
        width = max(1, self.size.width)
        self.scroll_to_region(Region(0, self.cursor, width, 1), animate=False, force=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Cells of the line that is visible in row `y`."""
        index = y + self.scroll_offset.y
        if index >= len(self._rows):
            return Strip.blank(self.size.width)
        row = self._rows[index]
        chosen = self.has_cursor and index == self.cursor and bool(row.key) and self.has_focus
        return strip_of(row.line, self.size.width, chosen=chosen)

    def on_key(self, event: events.Key) -> None:
        """Moves of the cursor."""
        page = max(1, self.size.height - 1)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page}
        steps |= {"home": -len(self._rows), "end": len(self._rows)}
        steps |= {"g": -len(self._rows), "G": len(self._rows)}
        if event.key in steps:
            event.stop()
            event.prevent_default()
            self.move(steps[event.key])
        elif event.key == "enter":
            event.stop()
            self.post_message(self.Opened())

    def on_click(self, event: events.Click) -> None:
        """Choose the row that was clicked; twice: its details."""
        self.move(event.y + self.scroll_offset.y - self.cursor)
        if event.chain == 2:
            self.post_message(self.Opened())
