"""What stands around each view, and what holds of all: width, ASCII, nothing raw from afar."""

from datetime import UTC

import pytest
from hypothesis import given
from rich.cells import cell_len

from molink.dashboard.pages.details import details
from molink.dashboard.pages.lines import ASCII, UNICODE, fitted, text_of
from molink.dashboard.pages.panel import finding_lines, header, panel_lines
from molink.dashboard.screen.content import Page, page_rows, titles_of
from molink.dashboard.screen.keys import VIEWS
from molink.printable import is_printable
from molink.report.figures import mbps
from tests.dashboard.page_texts import SIZE
from tests.dashboard.scenes import (
    cluster,
    event,
    history_of,
    link,
    look,
    node,
    slowed,
    stage,
    steady,
    timeline,
)
from tests.nasty_text import nasty_texts


def test_while_answers_wait_the_header_does_not_say_that_it_serves():
    body = cluster()
    body["rings"][0]["quiet_s"] = 9.0
    shown = header(history_of(look(0, body)), "http://x", 80, UNICODE, UTC)
    assert "answers wait" in text_of(shown)


def test_the_panel_has_p50_and_p95():
    lines = [text_of(one).rstrip() for one in panel_lines(history_of(*steady()), 80, UNICODE)]
    assert lines[0].endswith("20.0/s  p50  20.0/s  p95  20.0/s  plan  40.0/s")
    assert lines[1].startswith("TTFT") and "0.50 s  p50  0.50 s  p95  0.50 s" in lines[1]
    assert lines[3] == "requests 2 running, 1 waiting   last 5 min: 0 ended, 0 failed, 0 moved"


def test_the_panel_tells_refused_requests_from_failed_ones():
    reasons = ["overloaded", "error", "stop", "overloaded"]
    requests = [
        timeline(number, state="ended", finish_reason=reason)
        for number, reason in enumerate(reasons)
    ]
    lines = panel_lines(history_of(look(0, requests=requests)), 80, UNICODE)
    assert "4 ended, 1 failed, 2 refused, 0 moved" in text_of(lines[3])


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_nothing_that_has_to_be_seen_is_wider_than_the_screen(width, glyphs):
    history = history_of(*steady(), *slowed())
    lines = [*panel_lines(history, width, glyphs), *finding_lines(history, width, 3, glyphs)]
    lines += [header(history, "http://127.0.0.1:8000", width, glyphs, UTC, "replay 1/2")]
    for view in VIEWS:
        lines += [titles_of(Page(view), width)]
        rows = page_rows(Page(view), history, (width, 15), glyphs, zone=UTC)
        lines += [row.line for row in rows]
    assert max(cell_len(text_of(one)) for one in lines) <= width


def test_without_utf8_there_is_only_ascii():
    nodes = [node("änne", 0), node("ben", 8)]
    stages = [stage("änne", 0), stage("ben", 8)]
    history = history_of(look(0, cluster(stages=stages, nodes=nodes), [timeline(1)], [event(1)]))
    lines = [*panel_lines(history, 80, ASCII), *finding_lines(history, 80, 3, ASCII)]
    lines += [header(history, "http://x", 80, ASCII, UTC)]
    for view in VIEWS:
        lines += [row.line for row in page_rows(Page(view), history, SIZE, ASCII, zone=UTC)]
    lines += details(history, "nodes", "ä" * 16, ASCII)
    assert all(text_of(one).isascii() for one in lines)


@given(nasty_texts)
def test_nothing_from_afar_reaches_the_terminal_raw(text):
    first = node("anna", 0) | {"name": text, "reason": text, "doubts": [text]}
    nodes = [first, node("ben", state="lost")]
    stages = [stage(text, 0), stage("ben", 8, 0.2)]
    requests = [timeline(1, error=text, finish_reason=text, state="ended", key_id=text)]
    body = cluster(stages=stages, nodes=nodes, links=[link(text, "ben")], unready_reason=text)
    history = history_of(look(0, body, requests, [event(1, text, text, text)]))
    lines = [header(history, "http://x", 80, UNICODE, UTC), *finding_lines(history, 80, 9, UNICODE)]
    for view in VIEWS:
        lines += [row.line for row in page_rows(Page(view), history, SIZE, UNICODE, zone=UTC)]
    lines += details(history, "nodes", "a" * 16, UNICODE)
    lines += details(history, "requests", f"{1:024x} 0", UNICODE)
    assert all(is_printable(text_of(one)) for one in lines)


@pytest.mark.parametrize(
    ("text", "cells"), [("abc", "abc "), ("abcdef", "abc~"), ("日本語", "日~ ")]
)
def test_cells_are_counted_and_what_is_cut_is_marked(text, cells):
    assert cell_len(fitted(text, 4)) == 4
    assert fitted(text, 4).replace(" ", "") == cells.replace(" ", "")


def test_a_sparkline_shows_the_greatest_of_what_shares_a_place():
    assert UNICODE.sparkline([0, 0, 8, 0, 4, 4], 3) == "▁█▅"
    assert UNICODE.sparkline([], 3) == "   "


@pytest.mark.parametrize(
    ("rate", "shown"), [(None, "-"), (3.3, "3.3 Mbps"), (108.2, "108 Mbps"), (15435, "15.4 Gbps")]
)
def test_rates(rate, shown):
    assert mbps(rate) == shown
