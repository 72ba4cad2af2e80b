"""What the views say, as text; colours and keys are tested on the screen."""

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from molink.dashboard.model.circling import CIRCLING_MIN, circling
from molink.dashboard.pages.details import details
from molink.dashboard.pages.lines import ASCII, UNICODE, fitted, text_of
from molink.dashboard.pages.panel import finding_lines, header, panel_lines
from molink.dashboard.pages.ring_page import ring_rows
from molink.dashboard.screen.content import Page, page_rows, titles_of
from molink.dashboard.screen.keys import VIEWS
from molink.printable import is_printable
from molink.report.figures import mbps
from tests.dashboard.scenes import (
    attempt,
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

SIZE = (80, 15)


def texts(view, history, glyphs=UNICODE, size=SIZE, **more):
    rows = page_rows(Page(view), history, size, glyphs, zone=UTC, **more)
    return [text_of(row.line).rstrip() for row in rows]


def test_the_ring_from_head_to_tail():
    assert texts("ring", history_of(*steady())) == [
        "ring 1  3 micro-batches, round 60 ms  2 running, 1 waiting  wire lossless",
        "  coordinator ▼  40.0 Mbps   30 ms  ░░░░░░   0 %",
        "╭    anna          0-7     ████░░░░░░  40 % step   12 ms KV  12 %",
        "│    ▼  40.0 Mbps   30 ms  ░░░░░░   0 %   decode      0 B",
        "│                                         prefill     0 B",
        "│    ben           8-15    ████░░░░░░  40 % step   12 ms KV  12 %",
        "│    ▼  40.0 Mbps   30 ms  ░░░░░░   0 %   decode      0 B",
        "│                                         prefill     0 B",
        "╰    carl          16-23   ████░░░░░░  40 % step   12 ms KV  12 %",
        "     ▲  40.0 Mbps   30 ms  ░░░░░░   0 %   decode      0 B",
    ]


def test_what_the_ring_has_cached():
    body = cluster()
    body["rings"][0]["prefix_cache"] = {"tokens": 4096, "recent_hit_rate": 0.625}
    assert _title(body, 120).endswith("  wire lossless  cached 62 %, 4096 tokens")
    body["rings"][0]["prefix_cache"] = {"tokens": 52_340, "recent_hit_rate": 0.0}
    assert _title(body, 120).endswith("cached 0 %, 52k tokens")
    tiers = {"host_tokens": 4096, "file_tokens": 0, "fetched_tokens": 32, "lost_tokens": 0}
    body["rings"][0]["prefix_cache"]["tiers"] = tiers
    assert _title(body, 120).endswith("cached 0 %, 52k tokens, 4096 in host memory")
    tiers["file_tokens"] = 81_920
    assert _title(body, 140).endswith("52k tokens, 4096 in host memory, 82k on disk")


def test_what_the_cache_saves_fits_the_smallest_terminal():
    body = cluster()
    body["rings"][0]["prefix_cache"] = {"tokens": 4096, "recent_hit_rate": 0.625}
    begin = "ring 1  3 micro-batches, round 60 ms  2 running, 1 waiting"
    assert _title(body, 84) == f"{begin}  cached 62 %, 4096 tokens"
    assert _title(body, 80) == f"{begin}  cached 62 %"


def test_the_drafter_that_guesses_most_stands_in_the_title():
    body = cluster()
    copying, small = (
        {"name": name, "rounds": rounds, "acceptance": 0.5, "width": 4, "tokens_per_round": tokens}
        for name, rounds, tokens in (("copy", 4, 5.0), ("small", 90, 2.64))
    )
    assert "a round" not in _title(body, 120)
    for drafters in ([copying, small], [small, copying]):
        body["rings"][0]["drafters"] = drafters
        assert "1 waiting  drafts of small: 2.6 tokens a round  wire" in _title(body, 120)


def _title(body, width):
    return texts("ring", history_of(look(0, body)), size=(width, 15))[0]


def holding(*held, circling):
    """A look at a ring whose stages hold so many micro-batches."""
    stages = [
        stage(name, 8 * at, micro_batches_held=count)
        for at, (name, count) in enumerate(zip(("anna", "ben", "carl"), held, strict=True))
    ]
    stages[0]["micro_batches_circling"] = circling
    return look(0, cluster(stages=stages))


def dots(rows):
    return [row[1:4].strip() for row in rows[2:] if "prefill" not in row]


def test_micro_batches_stand_where_most_of_them_are():
    rows = texts("ring", history_of(holding(0.3, 1.9, 0.2, circling=2.9)))
    assert rows[0].startswith("ring 1  2.9 of 3 micro-batches, round 60 ms")
    assert dots(rows) == ["●", "", "●●", "", "", ""]
    assert dots(texts("ring", history_of(holding(0.1, 0.1, 0.1, circling=0.9)))) == [
        *("", "●", "", "", "", ""),
    ]
    assert dots(texts("ring", history_of(holding(0.0, 5.6, 0.2, circling=6.0)), ASCII)) == [
        *("", "", "6o", "", "", ""),
    ]


def test_a_ring_that_rests_or_does_not_tell_has_no_micro_batches():
    for one in (holding(0.0, 0.0, 0.0, circling=0.0), holding(0.3, None, 0.2, circling=1.0)):
        assert not any(dots(texts("ring", history_of(one))))


@given(
    held=st.lists(st.floats(0, 9), min_size=3, max_size=3),
    more=st.floats(-1, 30),
)
def test_as_many_micro_batches_are_shown_as_circle(held, more):
    look_at = holding(*held, circling=sum(held) + more)
    (ring,) = history_of(look_at).state.rings
    found = circling(ring)
    if found is None:
        assert sum(held) + more < CIRCLING_MIN
    else:
        assert sum((*found.stages, *found.links)) == max(1, round(sum(held) + more))


def test_a_slowed_pc_has_a_mark_and_a_word():
    (row,) = [one for one in texts("ring", history_of(*steady(), *slowed())) if "ben" in one]
    assert row.endswith("99 % step   36 ms KV  12 %  ▲ 3.0x slower")


def test_what_is_queued_stands_decode_above_prefill():
    links = [
        link(
            "anna", "ben", decode_queued_bytes=1200, decode_waiting=2, prefill_queued_bytes=120_000
        )
    ]
    rows = texts("ring", history_of(look(0, cluster(links=links))))
    assert rows[2].endswith("decode   1.2 KB ●●")
    assert rows[3].endswith("prefill  120 KB")


def test_many_stages_take_a_line_each():
    stages = [stage(f"pc{at}", 8 * at) for at in range(40)]
    links = [link(f"pc{at}", f"pc{(at + 1) % 40}") for at in range(40)]
    rows = texts("ring", history_of(look(0, cluster(stages=stages, links=links))))
    assert len(rows) == 41
    assert rows[1].endswith("KV  12 %  ▼ 40.0 Mbps")


def test_without_a_ring_progress_is_shown():
    nodes = [node("anna", 0, state="loading", loaded=0.43), node("dora")]
    body = cluster(nodes=nodes) | {"rings": [], "stages": []}
    assert texts("ring", history_of(look(0, body))) == [
        "No ring serves.  1 loading, 1 standby",
        "  anna                 43 % loaded",
    ]


def test_nodes_say_what_they_do_and_why_not():
    loading = node("ben", 8, state="loading", loaded=0.5)
    nodes = [node("anna", 0, doubts=["It lies."]), loading, node("dora", loaded=0.0)]
    rows = texts("nodes", history_of(look(0, cluster(nodes=nodes))), size=(100, 15))
    assert "▲ It lies." in rows[0] and "40.0 Mbps" in rows[0]
    assert "████░░░░ 50 %" in rows[1]
    assert rows[2].startswith("dora          standby") and "It would slow" in rows[2]


def test_requests_tell_progress_of_the_prompt_and_their_end():
    requests = [
        timeline(1, 0, state="prefill", prompt_tokens_done=40, prefill_s=None),
        timeline(2, 12, state="ended", finish_reason="error", error="Its ring was lost."),
        timeline(3, 5, attempts=[attempt(1, moved_because="lost"), attempt(2)]),
    ]
    first, third, second = texts("requests", history_of(look(0, requests=requests)), size=(100, 9))
    assert "prefill" in first and "40/100" in first
    assert "error" in second and "Its ring was lost." in second
    assert "moved 1x" in third


ABOUT = ["about", "as", "planned"]


def test_what_is_quicker_than_planned_is_said_in_words():
    stages = [stage("anna", 0, 0.012 / 27), stage("ben", 8, 0.01), stage("carl", 16, 0.015)]
    rows = texts("forecast", history_of(look(0, cluster(stages=stages))))
    assert rows[-3].endswith("27 times quicker") and rows[-2].endswith("about as planned")
    assert rows[-1].endswith("1.2 times slower")


def test_a_ring_of_one_pc_has_no_links_to_itself():
    links = [link("coordinator", "anna"), link("anna", "anna"), link("anna", "coordinator")]
    history = history_of(look(0, cluster(stages=[stage("anna", 0)], links=links)))
    assert [row.split()[:2] for row in texts("links", history)] == [
        ["coordinator", "anna"],
        ["anna", "coordinator"],
    ]
    assert len(texts("ring", history)) == 3


def test_a_large_screen_shows_requests_and_events_below_the_rings():
    requests, events = [timeline(1), timeline(2)], [event(one) for one in range(1, 60)]
    history = history_of(look(0, requests=requests, events=events))
    for width, height in ((120, 34), (200, 54)):
        rows = texts("ring", history, size=(width, height))
        assert len(rows) == height
        assert sum("anna has joined" in row for row in rows) == height - 10 - 4 - 2
        assert sum(row.startswith("0000") for row in rows) == 2
    assert len(texts("ring", history, size=(80, 13))) == 10


def test_rows_are_sorted_by_figures_of_any_unit_and_what_is_unknown_comes_last():
    nodes = [
        node("anna", 0, profile={"upload_mbps": 900.0}),
        node("ben", 8, profile={"upload_mbps": 1200.0}),
        node("carl", 16, profile={"upload_mbps": 9.5}),
        node("dora", profile=None),
    ]
    history = history_of(look(0, cluster(nodes=nodes)))
    order = [row.split()[0] for row in texts("nodes", history, sort_by=(5, False))]
    assert order == ["ben", "anna", "carl", "dora"]
    order = [row.split()[0] for row in texts("nodes", history, sort_by=(5, True))]
    assert order == ["carl", "anna", "ben", "dora"]


def test_keys_and_what_nodes_have_given():
    requests = [
        timeline(1, key_id="k1"),
        timeline(2, key_id="k1", state="ended", finish_reason="overloaded"),
        timeline(3, key_id="k2", state="queued"),
    ]
    nodes = [
        node("anna", 0, version="1.0", contribution={"token_layers": 300, "uptime_s": 60}),
        node("ben", 8, version="0.9", contribution={"token_layers": 900, "uptime_s": 3600}),
    ]
    history = history_of(look(0, cluster(nodes=nodes), requests=requests))
    assert [row.split() for row in texts("keys", history)] == [
        ["k1", "1", "0", "2", "200", "20", "0.50", "s", "1", "refused"],
        ["k2", "0", "1", "1", "100", "10", "0.50", "s"],
    ]
    assert [row.split()[:6] for row in texts("given", history)] == [
        ["ben", "1h00m", "900", "75", "%", "0"],
        ["anna", "1m00s", "300", "25", "%", "0"],
    ]


def test_ten_thousand_events_are_shown_up_to_the_last_two_thousand():
    events = [event(one, text=f"number {one}") for one in range(1, 10_001)]
    rows = texts("events", history_of(look(0, events=events)))
    assert len(rows) == 2000 and rows[0].endswith("number 10000")
    assert (
        len(texts("events", history_of(look(0, events=events)), filter_text="number 99.9$")) == 10
    )


def test_a_row_is_shown_whole_and_what_happened_to_its_node():
    history = history_of(look(0, events=[event(1, "node_lost", "ben", "ben is gone"), event(2)]))
    rows = page_rows(Page("nodes", "whole", "b" * 16), history, SIZE, UNICODE)
    whole = [text_of(row.line) for row in rows]
    assert "name: ben" in whole and "  upload_mbps: 40.0" in whole and "layers: 8, 16" in whole
    (log,) = page_rows(Page("nodes", "log", "b" * 16), history, SIZE, UNICODE, zone=UTC)
    assert text_of(log.line).split() == ["08:00:01", "node_lost", "ben", "is", "gone"]


def test_while_answers_wait_the_header_does_not_say_that_it_serves():
    body = cluster()
    body["rings"][0]["quiet_s"] = 9.0
    shown = header(history_of(look(0, body)), "http://x", 80, UNICODE, UTC)
    assert "answers wait" in text_of(shown)


def test_the_forecast_stands_beside_what_is_measured():
    rows = texts("forecast", history_of(*steady(), *slowed()))
    assert rows[0].split() == ["1", "time", "per", "token,", "p50", "50", "ms", "50", "ms", *ABOUT]
    assert "40.0/s     20.0/s" in rows[2]
    (ben,) = [row for row in rows if "step of ben" in row]
    assert ben.endswith("12 ms      36 ms   3.0 times slower")


def test_events_come_newest_first():
    events = [event(1), event(2, "loss", "ben", "ben is lost")]
    assert texts("events", history_of(look(0, events=events))) == [
        "08:00:02 loss         ben           ben is lost",
        "08:00:01 join         anna          anna has joined",
    ]


def test_a_filter_keeps_what_has_it_and_says_when_nothing_has():
    history = history_of(look(0))
    assert len(texts("nodes", history, filter_text="BE")) == 1
    assert texts("nodes", history, filter_text="zzz") == [
        " Nothing here has 'zzz' in it: Esc shows all."
    ]


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


def test_ring_rows_of_an_empty_cluster():
    (row,) = ring_rows(history_of(look(0, {"rings": [], "nodes": []})), 80, 10, UNICODE)
    assert text_of(row.line) == "No ring serves.  No PC has joined."


@pytest.mark.parametrize(
    ("rate", "shown"), [(None, "-"), (3.3, "3.3 Mbps"), (108.2, "108 Mbps"), (15435, "15.4 Gbps")]
)
def test_rates(rate, shown):
    assert mbps(rate) == shown


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
