"""What an operator is told while `molink up` runs."""

import io

from rich.console import Console

from molink.cli.cluster_news import ClusterNews, cluster_now
from molink.cli.terminal import StatusLine

WAITS = "No PC has joined yet: start an agent."


def node(name, state, layers=None, reason=""):
    return {"id": f"id-{name}", "name": name, "state": state, "layers": layers, "reason": reason}


def report(*nodes, unready=WAITS, rings=(), trouble=""):
    return {
        "model": "demo",
        "nodes": list(nodes),
        "rings": list(rings),
        "unready_reason": unready,
        "relay": {"trouble": trouble},
    }


def test_a_pc_is_followed_from_its_coming_to_its_end():
    news, ring = ClusterNews(), {"requests": {"running": 2, "waiting": 1}}
    assert news.update(report()) == []
    assert news.update(report(node("anna", "joining"))) == [
        "anna is here and measures what it can do"
    ]
    assert news.update(report(node("anna", "joining"))) == []
    assert news.update(report(node("anna", "loading", [0, 9]))) == ["anna loads layers 0 to 8"]
    serving = report(node("anna", "serving", [0, 9]), unready=None, rings=[ring])
    assert news.update(serving) == [
        "anna serves layers 0 to 8",
        "requests are answered: demo on 1 PC in 1 ring",
    ]
    assert cluster_now(serving) == "Serving demo on 1 PC in 1 ring; requests: 2 running, 1 waiting."
    assert news.update(report(node("anna", "lost"))) == [
        "anna is gone",
        f"requests are refused until there is another ring: {WAITS}",
    ]
    assert news.update(report()) == ["anna is removed"]


def test_a_reason_is_told_with_the_state():
    spare = node("ben", "standby", reason="would slow everybody down")
    assert ClusterNews().update(report(spare)) == [
        "ben is here and stands by: would slow everybody down"
    ]


def test_who_was_there_before_the_coordinator_started_is_no_news_until_it_is_back():
    news = ClusterNews()
    assert news.update(report(node("anna", "lost"))) == []
    assert news.update(report(node("anna", "standby"))) == ["anna is here and stands by"]


def test_trouble_with_the_relay_is_told_once():
    news = ClusterNews()
    assert news.update(report(trouble="the relay at a:1: silent")) == ["the relay at a:1: silent"]
    assert news.update(report(trouble="the relay at a:1: silent")) == []


def test_while_nothing_serves_it_is_said_what_is_waited_for():
    assert cluster_now(report()) == WAITS


def test_a_log_gets_what_happened_and_nothing_that_moves(capsys):
    written = io.StringIO()
    with StatusLine(Console(file=written, width=40)) as shown:
        shown.status("Loading: 3 %")
        shown.event("anna is here and measures what it can do, which takes some time")
        shown.result("ready http://a:1")
    assert "Loading" not in written.getvalue()
    assert written.getvalue()[2] == ":" and written.getvalue().count("\n") == 1
    assert capsys.readouterr().out == "ready http://a:1\n"


def test_a_terminal_shows_how_it_is_now():
    written = io.StringIO()
    with StatusLine(Console(file=written, width=40, force_terminal=True)) as shown:
        shown.status("Loading: 3 %")
        shown.status("Loading: 3 %")
        assert written.getvalue().count("Loading: 3 %") == 1
