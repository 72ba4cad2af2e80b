"""The trace of a server: requests with their rings, links, stages, events; each thing once."""

import pytest

from molink.report.plain import to_plain
from molink.report.requests import StageLayers
from molink.serving.events import EventLedger
from molink.serving.request_log import RequestLog
from molink.serving.timeline import Arrival, RequestTimeline
from tests.trace.chrome_trace import checked
from tools.trace.recorder import Recorder, began_unix_s
from tools.trace.trace_file import TraceFile

UNIX_S = 1_900_000_000.0
"""When the coordinator's own clock was 0."""

LINKS = 3


class World:
    """A server's answers as it makes them, and the trace of them."""

    def __init__(self, path):
        self.path, self.log, self.news = path, RequestLog(), EventLedger()
        self.recorder = Recorder(TraceFile.create(path, UNIX_S))

    def arrival(self, at, request_id="r"):
        arrival = Arrival(request_id, at=at, unix_s=UNIX_S + at)
        return RequestTimeline("m", 9, 30, arrival=arrival)

    def answers(self, now):
        return [to_plain(one.report(now)) for one in (*self.log.live, *self.log.ended)]

    def link(self, now, bytes_sent, epoch=7):
        figures = {"rate_mbps": 20.0, "rtt_ms": 60.0, "bytes_sent": bytes_sent}
        queued = {"decode_queued_bytes": 30, "prefill_queued_bytes": 40}
        link = {"from": "anna", "to": "ben", **figures, **queued}
        stage = {"node": "anna", "busy_share": 0.5}
        ring = {"ring": 0, "epoch": epoch, "stages": [stage], "links": [link]}
        self.recorder.cluster({"rings": [ring]}, UNIX_S + now)

    def events(self):
        self.recorder.trace.close()
        return checked(self.path)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "trace.json")


def begun(events):
    return [(e["name"], e["ts"] / 1e6) for e in events if e["ph"] == "b"]


def test_a_link_is_told_by_what_it_has_sent_between_two_looks(world):
    for now, bytes_sent in ((1.0, 100), (1.5, 100), (2.0, 1400)):
        world.link(now, bytes_sent)
    world.link(3.0, 50, epoch=8)
    world.link(3.5, 60, epoch=8)
    slices = [e for e in world.events() if e["ph"] == "X" and e["pid"] == LINKS]
    assert [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in slices] == [
        ("1,300 bytes", 1.5, 0.5),
        ("10 bytes", 3.0, 0.5),
    ]


def test_what_stages_and_links_have_to_do_are_counters(world):
    world.link(1.0, 100)
    counters = {e["name"]: e["args"] for e in world.events() if e["ph"] == "C"}
    assert counters == {
        "anna busy share": {"busy": 0.5},
        "anna to ben waiting bytes": {"decode": 30, "prompts": 40},
    }


def test_a_request_is_a_row_with_its_rings(world):
    timeline = world.arrival(1.0)
    with world.log.following(timeline):
        timeline.submitted(0, (StageLayers("anna", (0, 2)),), 1.5)
        timeline.moved("anna is lost.", 2.0)
        timeline.submitted(1, (StageLayers("ben", (0, 2)),), 3.0)
        timeline.prompt_computed(9, 0.5, now=9.0)
        timeline.tokens_came(4, 4.0)
        timeline.tokens_came(4, 5.0)
        timeline.finished("length", 5.0)
    for now in (5.0, 5.5):
        world.recorder.requests(world.answers(now))
    assert begun(world.events()) == [
        ("request r", 1.0),
        ("ring 0: anna", 1.5),
        ("prefill", 1.5),
        ("ring 1: ben", 3.0),
        ("wait", 3.0),
        ("prefill", 3.5),
        ("decode", 4.0),
    ]


def test_pieces_of_a_prompt_lie_within_prefill_and_pauses_within_decode(world):
    timeline = world.arrival(1.0)
    with world.log.following(timeline):
        timeline.submitted(0, (StageLayers("anna", (0, 2)),), 1.0)
        timeline.prompt_computed(9, 0.5, now=2.0)
        timeline.piece_sent(0, 5, 0.5, now=2.0)
        timeline.piece_sent(5, 9, 0.75, now=2.0)
        for at in (2.0, 2.125, 2.25, 4.25):
            timeline.tokens_came(1, at)
        timeline.finished("length", 4.25)
    world.recorder.requests(world.answers(5.0))
    rows = [e for e in world.events() if e["ph"] in "be"]
    told = [(e["ph"], e["name"], e["ts"] / 1e6) for e in rows if "ring" not in e["name"]]
    assert told[3:] == [
        ("b", "prefill", 1.5),
        ("b", "tokens 0 to 5", 1.5),
        ("e", "tokens 0 to 5", 1.75),
        ("b", "tokens 5 to 9", 1.75),
        ("e", "tokens 5 to 9", 2.0),
        ("e", "prefill", 2.0),
        ("b", "decode", 2.0),
        ("b", "pause", 2.25),
        ("e", "pause", 4.25),
        ("e", "decode", 4.25),
        ("e", "request r", 4.25),
    ]


def test_requests_that_run_are_told_at_the_end_and_one_that_ended_is_not_told_again(world):
    ended, running = world.arrival(1.0, "early"), world.arrival(2.0, "late")
    with world.log.following(ended):
        ended.finished("stop", 1.5)
    with world.log.following(running):
        world.recorder.requests(world.answers(2.5))
        world.recorder.requests(world.answers(3.0), at_the_end=True)
        running.finished("stop", 3.0)
    rows = [(e["name"], e["ts"] / 1e6) for e in world.events() if e["ph"] in "be"]
    assert rows == [
        *(("request early", 1.0), ("request early", 1.5)),
        *(("request late", 2.0), ("request late", 3.0)),
    ]


def test_events_bear_their_node_and_their_own_time(world):
    world.news.clock = lambda: UNIX_S + 4.0
    world.news.add("node_lost", "ben is gone", node="ben")
    world.recorder.events(to_plain(world.news.report(0))["events"])
    (event,) = [e for e in world.events() if e["name"] == "ben is gone"]
    assert (event["args"]["node"], event["ts"] / 1e6) == ("ben", 4.0)


def test_a_trace_begins_with_the_earliest_that_is_known(world):
    timeline = world.arrival(1.0)
    with world.log.following(timeline):
        timeline.finished("stop", 1.5)
    requests = world.answers(2.0)
    assert began_unix_s(requests, [{"unix_s": UNIX_S}], UNIX_S + 9) == UNIX_S
    assert began_unix_s(requests, [], UNIX_S + 9) == UNIX_S + 1
    assert began_unix_s([], [], UNIX_S + 9) == UNIX_S + 9
