"""Views that are tables: nodes, requests, events, forecast, keys, what was given."""

from molink.report.requests import KeyReport
from tests.dashboard.page_texts import texts
from tests.dashboard.scenes import (
    attempt,
    cluster,
    event,
    history_of,
    look,
    node,
    slowed,
    stage,
    steady,
    timeline,
)


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
    (wide,) = texts("requests", history_of(look(0, requests=requests[2:])), size=(120, 9))
    assert wide.split()[-3:] == ["k1", "moved", "1x"]


ABOUT = ["about", "as", "planned"]


def test_what_is_quicker_than_planned_is_said_in_words():
    stages = [stage("anna", 0, 0.012 / 27), stage("ben", 8, 0.01), stage("carl", 16, 0.015)]
    rows = texts("forecast", history_of(look(0, cluster(stages=stages))))
    assert rows[-3].endswith("27 times quicker") and rows[-2].endswith("about as planned")
    assert rows[-1].endswith("1.2 times slower")


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
        ["k1", "1", "0", "2", "220", "-", "-", "0.50", "s", "1", "refused"],
        ["k2", "0", "1", "1", "110", "-", "-", "0.50", "s"],
    ]
    told = (
        KeyReport("k1", "anna", 5000, 4000, 4),
        KeyReport("k9", "dora", 7),
        KeyReport("k8", "eve", 0),
        KeyReport("k7", "finn", 0, None, 2, 3),
    )
    history.keys = {one.id: one for one in told}
    assert [row.split() for row in texts("keys", history)] == [
        ["anna", "1/4", "0", "2", "220", "5,000", "4,000", "0.50", "s", "1", "refused"],
        ["k2", "0", "1", "1", "110", "-", "-", "0.50", "s"],
        ["dora", "0", "0", "0", "0", "7", "-", "-"],
        ["finn", "0/2", "0", "0", "0", "0", "-", "-", "3", "over", "limits"],
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
