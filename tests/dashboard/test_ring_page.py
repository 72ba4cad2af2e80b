"""The view of the ring, as text: its stages, links, caches and micro-batches."""

from hypothesis import given
from hypothesis import strategies as st

from molink.dashboard.model.circling import CIRCLING_MIN, circling
from molink.dashboard.pages.lines import ASCII, UNICODE, text_of
from molink.dashboard.pages.ring_page import ring_rows
from tests.dashboard.page_texts import texts
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


def test_ring_rows_of_an_empty_cluster():
    (row,) = ring_rows(history_of(look(0, {"rings": [], "nodes": []})), 80, 10, UNICODE)
    assert text_of(row.line) == "No ring serves.  No PC has joined."
