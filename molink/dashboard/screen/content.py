"""Content of the screen's middle: a view, or a page over it (details, keys, an invite)."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from itertools import islice

from molink.dashboard.model.history import History
from molink.dashboard.pages.columns import ordered
from molink.dashboard.pages.details import details
from molink.dashboard.pages.lines import Glyphs, Line, Row, TextSpan, text_of
from molink.dashboard.pages.people import given_rows, key_rows
from molink.dashboard.pages.ring_page import ring_rows
from molink.dashboard.pages.tables import (
    alert_rows,
    event_rows,
    forecast_rows,
    header_of,
    link_rows,
    node_rows,
    request_rows,
)
from molink.dashboard.pages.whole import log_lines, whole_lines
from molink.dashboard.screen.keys import help_rows
from molink.dashboard.screen.orders import invite_rows

WIDTH_MIN, HEIGHT_MIN = 80, 24
"""Least size of the terminal; below it rows would lose what makes them worth reading."""

ROWS_MAX = 4000
"""Rows of one view: nobody scrolls further, and / finds what is beyond."""

EMPTY = {
    "nodes": "No PC has joined yet: i makes an invite.",
    "requests": "Nobody has asked anything yet.",
    "links": "There are no links: no ring serves.",
    "events": "Nothing has happened yet.",
    "forecast": "There is no forecast: no ring serves.",
    "alerts": "Nothing stands out.",
    "keys": "Nobody has asked anything in the last five minutes.",
    "given": "No PC has joined yet: i makes an invite.",
}

OVER_ROWS = {
    "details": "It is not there any more: Esc.",
    "whole": "It is not there any more: Esc.",
    "log": "Nothing has happened to it that is still known: Esc.",
}
"""Kinds of pages about one row, and what is said where there is nothing to tell."""

FILLED_FROM = 5
"""Lines left below the rings from which requests and events are shown there, too."""

UNKNOWN = "This server does not tell its {view}: update it."


@dataclass(frozen=True, slots=True)
class Page:
    """Page of the dashboard: a view, or what lies over it."""

    view: str
    kind: str = "view"
    """Kind of page: view, details, whole, log, help or invite."""
    key: str = ""
    """Key of the row whose details are shown; of an invite, its command."""

    @property
    def has_cursor(self) -> bool:
        """Whether a row can be chosen."""
        return self.kind == "view"


def titles_of(page: Page, width: int) -> Line:
    """The line above the rows; empty where a page needs none."""
    return header_of(page.view, width) if page.kind == "view" and page.view != "ring" else ()


def page_rows(
    page: Page,
    history: History,
    size: tuple[int, int],
    glyphs: Glyphs,
    *,
    zone: tzinfo | None = None,
    filter_text: str = "",
    sort_by: tuple[int, bool] | None = None,
    is_replay: bool = False,
    read_only: bool = False,
) -> Sequence[Row]:
    """The rows of a page, `size` columns wide and so many lines high, filtered."""
    width, height = size
    if page.kind == "help":
        return help_rows(page.view, is_replay=is_replay, read_only=read_only)
    if page.kind == "invite":
        return invite_rows(page.key, width)
    if page.kind in OVER_ROWS:
        lines = _lines_over(page, history, glyphs, zone)
        return [Row(one) for one in lines] or [Row(_plain(OVER_ROWS[page.kind]))]
    rows = _view_rows(page.view, history, width, height, glyphs, zone)
    if sort_by is not None and rows:
        rows = ordered(rows, sort_by[0], rising=sort_by[1])
    if not rows:
        known = page.view != "requests" or history.requests is not None
        known = known and (page.view != "events" or history.knows_events)
        return [Row(_plain(EMPTY[page.view] if known else UNKNOWN.format(view=page.view)))]
    return _filtered(rows, filter_text)


def _plain(sentence: str) -> Line:
    return (TextSpan(f" {sentence}", "dim"),)


def _view_rows(
    view: str, history: History, width: int, height: int, glyphs: Glyphs, zone: tzinfo | None
) -> list[Row]:
    match view:
        case "ring":
            rows = ring_rows(history, width, height, glyphs)
            return rows + _below_rings(history, width, height - len(rows), glyphs, zone)
        case "nodes":
            return list(node_rows(history, width, glyphs))[:ROWS_MAX]
        case "requests":
            return list(request_rows(history, width, glyphs))[:ROWS_MAX]
        case "links":
            return list(link_rows(history, width, glyphs))[:ROWS_MAX]
        case "events":
            return list(event_rows(history, width, glyphs, zone))[:ROWS_MAX]
        case "forecast":
            return list(forecast_rows(history, width, glyphs))[:ROWS_MAX]
        case "keys":
            return list(key_rows(history, width, glyphs))[:ROWS_MAX]
        case "given":
            return list(given_rows(history, width, glyphs))[:ROWS_MAX]
        case _:
            return list(alert_rows(history, width, glyphs))[:ROWS_MAX]


def _below_rings(
    history: History, width: int, room: int, glyphs: Glyphs, zone: tzinfo | None
) -> list[Row]:
    """Live requests and the latest events, as far as there is room for them below the rings."""
    if room < FILLED_FROM:
        return []
    live = [one for one in request_rows(history, width, glyphs)][: (room - 4) // 2]
    events = list(islice(event_rows(history, width, glyphs, zone), room - 4 - len(live)))
    found = list[Row]()
    for name, rows in (("requests", live), ("events", events)):
        if rows:
            found += [Row(()), Row(header_of(name, width))]
            found += [replace(row, key="") for row in rows]
    return found


def _lines_over(
    page: Page, history: History, glyphs: Glyphs, zone: tzinfo | None
) -> Sequence[Line]:
    match page.kind:
        case "whole":
            return whole_lines(history, page.view, page.key, glyphs)
        case "log":
            return log_lines(history, page.key, glyphs, zone)
        case _:
            return details(history, page.view, page.key, glyphs, zone)


def filter_pattern(wanted: str) -> re.Pattern[str]:
    """A filter as a regular expression; what is none is looked for as it is."""
    try:
        return re.compile(wanted, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError):
        return re.compile(re.escape(wanted), re.IGNORECASE)


def filter_line(wanted: str, view: str, rows: Sequence[Row], of: Sequence[Row]) -> list[Line]:
    """Line that tells of a filter and what it leaves of all rows; none without a filter."""
    if not wanted:
        return []
    left, whole = (sum(bool(row.key) for row in some) for some in (rows, of))
    told = f"  {left} of {whole} {view}; Esc shows all"
    return [(TextSpan(f" /{wanted}", "accent"), TextSpan(told, "dim"))]


def _filtered(rows: Sequence[Row], wanted: str) -> Sequence[Row]:
    if not wanted:
        return rows
    pattern = filter_pattern(wanted)
    found = [row for row in rows if pattern.search(f"{row.found_by} {text_of(row.line).rstrip()}")]
    return found or [Row(_plain(f"Nothing here has {wanted!r} in it: Esc shows all."))]


def is_too_small(width: int, height: int) -> bool:
    """Whether a terminal is too small for the views."""
    return width < WIDTH_MIN or height < HEIGHT_MIN


def too_small_lines(width: int, height: int) -> list[Line]:
    """Lines for a terminal that is too small, short enough to fit in it."""
    sentence = f"{width} x {height} is too small: enlarge it to {WIDTH_MIN} x {HEIGHT_MIN}."
    lines = textwrap.wrap(sentence, max(1, width))[:height]
    # Blank ones wipe out what stood there before.
    return [(TextSpan(one),) for one in (*lines, *[""] * (height - len(lines)))]
