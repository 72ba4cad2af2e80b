"""Details of one row: a node, a link, an event, a request as a timeline."""

from datetime import UTC

import pytest
from rich.cells import cell_len

from molink.dashboard.pages.details import details
from molink.dashboard.pages.lines import ASCII, UNICODE, text_of
from molink.dashboard.screen.content import Page, page_rows
from tests.dashboard.page_texts import SIZE
from tests.dashboard.scenes import (
    attempt,
    cluster,
    event,
    history_of,
    look,
    stage,
    steady,
    timeline,
)


def test_a_row_is_shown_whole_and_what_happened_to_its_node():
    history = history_of(look(0, events=[event(1, "node_lost", "ben", "ben is gone"), event(2)]))
    rows = page_rows(Page("nodes", "whole", "b" * 16), history, SIZE, UNICODE)
    whole = [text_of(row.line) for row in rows]
    assert "name: ben" in whole and "  upload_mbps: 40.0" in whole and "layers: 8, 16" in whole
    (log,) = page_rows(Page("nodes", "log", "b" * 16), history, SIZE, UNICODE, zone=UTC)
    assert text_of(log.line).split() == ["08:00:01", "node_lost", "ben", "is", "gone"]


@pytest.mark.parametrize(
    ("view", "key", "says"),
    [
        ("nodes", "a" * 16, "lends 4.3 GB of 8.6 GB"),
        ("nodes", "a" * 16, "2h05m here, 12,000 tokens x layers, 5.0 MB sent"),
        ("links", "anna>ben", "40.0 Mbps, 0 % used"),
        ("events", "1", "anna has joined"),
        ("requests", f"{1:024x} 0", "95 of at most 128 tokens, 50 ms a token"),
        ("requests", f"{1:024x} 0", "ring 1  anna 0-7, ben 8-15, carl 16-23"),
    ],
)
def test_details(view, key, says):
    history = history_of(*steady(), look(20, requests=[timeline(1, 95)], events=[event(1)]))
    lines = details(history, view, key, UNICODE, UTC)
    assert says in "\n".join(map(text_of, lines))


def test_a_request_tells_what_was_cached_and_what_was_forecast():
    told = {"cached_tokens": 64, "forecast_ttft_s": 0.75, "forecast_tpot_s": 0.04}
    for more, is_told in ((told, True), ({}, False)):
        history = history_of(look(0, requests=[timeline(1, 95, **more)]))
        lines = details(history, "requests", f"{1:024x} 0", UNICODE, UTC)
        page = "\n".join(map(text_of, lines))
        assert ("100 of 100 tokens, 64 of them cached" in page) is is_told
        assert ("0.40 s  36 tokens" in page) is is_told, "of its prefill"
        assert ("first token in 0.75 s, 40 ms a token" in page) is is_told
        assert ("100 of 100 tokens computed" in page) is not is_told


AXIS = ("wait", "prefill ", "pieces", "decode", "pauses", "recovery")


def drawn(request, glyphs=UNICODE):
    lines = details(history_of(look(0, requests=[request])), "requests", f"{1:024x} 0", glyphs)
    return [text_of(one).rstrip() for one in lines if text_of(one).startswith(AXIS)]


def test_a_request_is_a_timeline():
    request = timeline(1, 21, queue_s=0.5, prefill_s=0.5, decode_s=1.0, total_s=2.0)
    assert drawn(request) == [
        f"wait     {'█' * 9}{' ' * 27}   0.50 s",
        f"prefill  {' ' * 9}{'█' * 9}{' ' * 18}   0.50 s  100 tokens",
        f"decode   {' ' * 18}{'█' * 18}   1.00 s  20 rounds",
    ]


def rounds(count, *pauses):
    told = [{"began_s": at, "length_s": long, "tokens": 3} for at, long in pauses]
    figures = {"p50_s": 0.05, "p95_s": 0.09, "longest_s": 0.6}
    return {"count": count, **figures, "pauses": told}


def test_a_timeline_has_pieces_rounds_pauses_and_recoveries():
    pieces = [{"tokens": [0, 64], "sent_s": 0.5}, {"tokens": [64, 100], "sent_s": 0.75}]
    left = attempt(
        1, ended_s=1.5, moved_because="ben was lost", pieces=pieces, rounds=rounds(9, (1.1, 0.3))
    )
    took = attempt(2, submitted_s=1.5, first_token_s=1.75, rounds=rounds(5))
    request = timeline(
        1, 16, queue_s=0.5, prefill_s=0.5, decode_s=1.0, total_s=2.0, attempts=[left, took]
    )
    lines = drawn(request)
    assert lines[2] == f"pieces   {' ' * 9}●{' ' * 4}●"
    assert lines[1].endswith("100 tokens, 2 pieces") and lines[3].endswith("14 rounds, p50 50 ms")
    assert lines[4] == f"pauses   {' ' * 20}{'█' * 5}{' ' * 11}   0.30 s  in 1"
    assert lines[5] == f"recovery {' ' * 27}{'█' * 5}{' ' * 4}   0.25 s  moved 1x"
    assert drawn(request, ASCII)[2].endswith("o    o")
    page = details(history_of(look(0, requests=[request])), "requests", f"{1:024x} 0", UNICODE)
    told = [text_of(one).strip() for one in page]
    assert "tokens of the prompt: 0-64 at 0.50 s, 64-100 at 0.75 s" in told
    assert "9 rounds: p50 50 ms, p95 90 ms, longest 0.60 s" in told
    assert "pause of 0.30 s at 1.10 s, after 3 tokens" in told
    assert max(cell_len(one) for one in told) <= 80


def test_what_is_gone_has_no_details():
    page = Page("nodes", "details", "z" * 16)
    (row,) = page_rows(page, history_of(look(0)), SIZE, UNICODE)
    assert "not there any more" in text_of(row.line)


def test_a_node_with_states_says_of_how_many_requests():
    stages = [stage("anna", 0, state_slots_capacity=9, state_slots_used=2), stage("ben", 8)]
    history = history_of(look(0, cluster(stages=stages)))
    anna, ben = (
        [text_of(row) for row in details(history, "nodes", name * 16, UNICODE)] for name in "ab"
    )
    assert [row.split() for row in anna if "states" in row] == [
        ["states", "of", "2", "requests,", "room", "for", "9"]
    ]
    assert not [row for row in ben if "states" in row]
