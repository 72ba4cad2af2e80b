"""What the ledger says of a cluster that changes."""

from dataclasses import replace

from molink.coordinator.reports.cluster_news import ClusterNews, cluster_now
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from molink.serving.events import EventLedger

WAITS = "No PC has joined yet: start an agent."


def node(name, state, layers=None, reason=""):
    return {"id": f"id-{name}", "name": name, "state": state, "layers": layers, "reason": reason}


def report(*nodes, unready=WAITS, rings=(), trouble=""):
    body = {
        "model": "demo",
        "nodes": list(nodes),
        "rings": list(rings),
        "unready_reason": unready,
        "relay": {"trouble": trouble},
    }
    return from_plain(ClusterReport, body)


class Looks:
    """Looks of `ClusterNews` at one report after the other."""

    def __init__(self):
        self.reports, self.time_s = [], 0.0
        self.events = EventLedger()
        self.news = ClusterNews(lambda: self.reports[-1], self.events, clock=lambda: self.time_s)

    def at(self, report):
        """What is new with this report: kinds and sentences."""
        self.reports.append(report)
        seq = self.events.last_seq
        self.news.look()
        return [(event.kind, event.text) for event in self.events.after(seq)]


def test_a_pc_is_followed_from_its_coming_to_its_end():
    looks, ring = Looks(), {"requests": {"running": 2, "waiting": 1}}
    assert looks.at(report()) == []
    joining = report(node("anna", "joining"))
    assert looks.at(joining) == [("node_joined", "anna is here and measures what it can do")]
    assert looks.at(joining) == []
    loading = report(node("anna", "loading", [0, 9]))
    assert looks.at(loading) == [("node_changed", "anna loads layers 0 to 8")]
    serving = report(node("anna", "serving", [0, 9]), unready=None, rings=[ring])
    assert looks.at(serving) == [
        ("node_changed", "anna serves layers 0 to 8"),
        ("ready", "requests are answered: demo on 1 PC in 1 ring"),
    ]
    assert looks.news.now == cluster_now(serving)
    assert cluster_now(serving) == "Serving demo on 1 PC in 1 ring; requests: 2 running, 1 waiting."
    assert looks.at(report(node("anna", "lost"))) == [
        ("node_lost", "anna is gone"),
        ("unready", f"requests are refused until there is another ring: {WAITS}"),
    ]
    assert looks.at(report()) == [("node_removed", "anna belongs to this coordinator no more")]
    assert [event.node for event in looks.events.after(0)].count("anna") == 5


def test_it_is_said_for_how_long_requests_were_refused():
    looks = Looks()
    looks.at(report(unready=None))
    looks.at(report())
    looks.time_s = 12.0
    assert looks.at(report(unready=None)) == [
        ("ready", "requests are answered again after 12 s: demo on 0 PCs in 0 rings")
    ]


def test_a_clock_that_is_set_back_silences_no_finding():
    looks, unix_s = Looks(), 1_700_000_000.0
    looks.events.clock = lambda: unix_s

    def told(key):
        looks.time_s += 1.0
        looks.events.add("key_refused", f"the key '{key}' is revoked")
        looks.at(replace(report(), unix_s=unix_s, disk_free_bytes=1))
        return [(one.finding.kind, one.finding.sentence[:13]) for one in looks.news.watch.standing]

    assert ("disk", "The coordinat") in told("anna")
    unix_s -= 7200.0
    after = told("ben")
    assert ("disk", "The coordinat") in after and ("key_refused", "The key 'ben'") in after
    assert ("key_refused", "The key 'anna") not in after, "it was refused in what is now the future"


def test_a_reason_is_told_with_the_state():
    spare = node("ben", "standby", reason="would slow everybody down")
    assert Looks().at(report(spare)) == [
        ("node_joined", "ben is here and stands by: would slow everybody down")
    ]


def test_who_was_there_before_the_coordinator_started_is_no_news_until_it_is_back():
    looks = Looks()
    assert looks.at(report(node("anna", "lost"))) == []
    standby = report(node("anna", "standby"))
    assert looks.at(standby) == [("node_joined", "anna is here and stands by")]


def test_trouble_with_the_relay_is_told_once():
    looks, trouble = Looks(), report(trouble="the relay at a:1: silent")
    assert looks.at(trouble) == [("trouble", "the relay at a:1: silent")]
    assert looks.at(trouble) == []


def test_while_nothing_serves_it_is_said_what_is_waited_for():
    assert cluster_now(report()) == WAITS
