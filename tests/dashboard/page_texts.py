"""What a view says, as text; colours and keys are tested on the screen."""

from datetime import UTC

from molink.dashboard.pages.lines import UNICODE, text_of
from molink.dashboard.screen.content import Page, page_rows

SIZE = (80, 15)


def texts(view, history, glyphs=UNICODE, size=SIZE, **more):
    rows = page_rows(Page(view), history, size, glyphs, zone=UTC, **more)
    return [text_of(row.line).rstrip() for row in rows]
