"""Content of the screen's middle: a view, or a page over it (details, keys, an invite)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo

from molink.dashboard.model.history import History
from molink.dashboard.pages.details import details
from molink.dashboard.pages.lines import Glyphs, Line, Row, TextSpan, text_of
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
from molink.dashboard.screen.keys import help_rows
from molink.dashboard.screen.orders import invite_rows

ROWS_MAX = 4000
"""Rows of one view: nobody scrolls further, and / finds what is beyond."""

EMPTY = {
    "nodes": "No PC has joined yet: i makes an invite.",
    "requests": "Nobody has asked anything yet.",
    "links": "There are no links: no ring serves.",
    "events": "Nothing has happened yet.",
    "forecast": "There is no forecast: no ring serves.",
    "alerts": "Nothing stands out.",
}

UNKNOWN = "This server does not tell its {view}: update it."


@dataclass(frozen=True, slots=True)
class Page:
    """Page of the dashboard: a view, or what lies over it."""

    view: str
    kind: str = "view"
    """Kind of page: view, details, help or invite."""
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
    is_replay: bool = False,
    read_only: bool = False,
) -> Sequence[Row]:
    """The rows of a page, `size` columns wide and so many lines high, filtered."""
    width, height = size
    if page.kind == "help":
        return help_rows(page.view, is_replay=is_replay, read_only=read_only)
    if page.kind == "invite":
        return invite_rows(page.key, width)
    if page.kind == "details":
        lines = details(history, page.view, page.key, glyphs, zone)
        return [Row(one) for one in lines] or [Row(_plain("It is not there any more: Esc."))]
    rows = _view_rows(page.view, history, width, height, glyphs, zone)
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
            return ring_rows(history, width, height, glyphs)
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
        case _:
            return list(alert_rows(history, width, glyphs))[:ROWS_MAX]


def _filtered(rows: Sequence[Row], wanted: str) -> Sequence[Row]:
    if not wanted:
        return rows
    word = wanted.lower()
    found = [row for row in rows if word in (row.found_by + " " + text_of(row.line)).lower()]
    return found or [Row(_plain(f"Nothing here has {wanted!r} in it: Esc shows all."))]
