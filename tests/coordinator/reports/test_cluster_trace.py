"""A cluster's trace: steps on one clock, links, requests, events; whatever stages report."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from molink.coordinator.reports import cluster_trace
from molink.coordinator.reports.cluster_report import service_report
from molink.coordinator.reports.cluster_trace import CLOCK_REPORTS, ClusterTrace
from molink.coordinator.requests.cluster_service import ClusterService
from molink.serving.model_card import ModelCard
from molink.serving.timeline import Arrival, RequestTimeline, StageLayers
from molink.serving.trace_file import TraceFile
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink.stage_protocol.messages import StageProgress
from molink_scheduler.link.facts import LinkReport
from tests.chrome_trace import checked

LINK = LinkReport("next", 1, 100, 0, 0, 30, 40, 4096, 20.0, 60.0, 0.0, 0, False, 0)
RAW = PackingHealth("raw", 0, 0, 0.0)
HEALTH = StageHealth(0, 0.0, 0.5, 0, 0, 0, 0, RAW, RAW, 0, None, None, 0.0, 0.0, (LINK,))

ANNAS_CLOCK_S = 5000.0
"""Ahead of ours."""


class World:
    """A service with one ring of one stage, which reports what a test says."""

    def __init__(self, path):
        self.now_s, self.path, self.reports = 0.0, path, 0
        self.stage = SimpleNamespace(name="anna", health=None, node=SimpleNamespace(heard_at=0.0))
        ring = SimpleNamespace(epoch=7, stages=[self.stage])
        client = SimpleNamespace(ring=ring, links=SimpleNamespace(report=None))
        self.service = ClusterService(ModelCard("m", 0, 100, 64, (), None), service_report)
        self.service.rings = [SimpleNamespace(client=client)]
        trace = TraceFile.create(path, 0.0, 0.0)
        self.trace = ClusterTrace(self.service, trace, clock=lambda: self.now_s)

    def report(self, now_s, *steps, late_s=0.0, bytes_sent=100):
        """A report of now, which comes so late; steps as (number, rows, decode, end, took)."""
        self.reports, self.now_s = self.reports + 1, now_s + late_s
        shifted = tuple((n, rows, d, end + ANNAS_CLOCK_S, took) for n, rows, d, end, took in steps)
        self.stage.health = replace(
            HEALTH,
            clock_s=now_s + ANNAS_CLOCK_S,
            recent_steps=shifted,
            links=(replace(LINK, bytes_sent=bytes_sent),),
            progress=StageProgress(reports=self.reports),
        )
        self.stage.node.heard_at = self.now_s
        self.trace.look()

    def events(self):
        self.trace.close()
        return checked(self.path)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "trace.json")


def slices(events, group):
    return [
        (e["name"], e["ts"] / 1e6, e["dur"] / 1e6)
        for e in events
        if e["ph"] == "X" and e["pid"] == group
    ]


STAGES, LINKS = 2, 3


def test_steps_are_told_once_on_our_clock(world):
    first, second = (1, 32, False, 0.9, 0.5), (2, 4, True, 1.4, 0.1)
    world.report(1.0, first, late_s=0.3)
    world.report(1.5, first, second, late_s=0.02)
    world.report(2.0, first, second, late_s=0.4)
    assert slices(world.events(), STAGES) == [
        ("prefill 32", pytest.approx(0.42), pytest.approx(0.5)),
        ("decode 4", pytest.approx(1.32), pytest.approx(0.1)),
    ]


def test_once_a_clock_is_known_later_reports_do_not_shift_it(world):
    for number in range(CLOCK_REPORTS):
        world.report(float(number), late_s=0.1)
    world.report(20.0, (1, 1, True, 19.9, 0.1), late_s=0.001)
    world.report(21.0, (2, 1, True, 20.0, 0.1), late_s=0.5)
    assert [at for _, at, _ in slices(world.events(), STAGES)] == [
        pytest.approx(19.9),
        pytest.approx(20.0),
    ]


def test_steps_wait_until_the_clock_is_known_and_not_without_bound(world, monkeypatch):
    monkeypatch.setattr(cluster_trace, "STEPS_KEPT_MAX", 3)
    for number in range(1, 6):
        world.report(float(number), (number, 1, True, float(number), 0.01))
    assert "decode 1" not in "".join(world.trace.trace._pending)
    assert len(slices(world.events(), STAGES)) == 3


def test_a_link_is_told_by_what_it_has_sent_between_two_looks(world):
    world.report(1.0)
    world.report(1.5, bytes_sent=100)
    world.report(2.0, bytes_sent=1400)
    assert slices(world.events(), LINKS) == [("1,300 bytes", 1.5, 0.5)]


def test_a_request_is_a_row_with_its_rings(world):
    timeline = RequestTimeline("m", 9, 4, arrival=Arrival("r", at=1.0))
    with world.service.request_log.following(timeline):
        timeline.submitted(0, (StageLayers("anna", (0, 2)),), 1.5)
        timeline.moved("anna is lost.", 2.0)
        timeline.submitted(1, (StageLayers("ben", (0, 2)),), 3.0)
        timeline.prompt_computed(9, 0.5, now=9.0)
        timeline.tokens_came(4, 4.0)
        timeline.tokens_came(4, 5.0)
        timeline.finished("length", 5.0)
    spans = [(e["name"], e["ts"] / 1e6) for e in world.events() if e["ph"] == "b"]
    assert spans == [
        ("request r", 1.0),
        ("ring 0: anna", 1.5),
        ("prefill", 1.5),
        ("ring 1: ben", 3.0),
        ("wait", 3.0),
        ("prefill", 3.5),
        ("decode", 4.0),
    ]


def test_pieces_of_a_prompt_lie_within_prefill_and_pauses_within_decode(world):
    timeline = RequestTimeline("m", 9, 30, arrival=Arrival("r", at=1.0))
    with world.service.request_log.following(timeline):
        timeline.submitted(0, (StageLayers("anna", (0, 2)),), 1.0)
        timeline.prompt_computed(9, 0.5, now=2.0)
        timeline.piece_sent(0, 5, 0.5, now=2.0)
        timeline.piece_sent(5, 9, 0.75, now=2.0)
        for at in (2.0, 2.125, 2.25, 4.25):
            timeline.tokens_came(1, at)
        timeline.finished("length", 4.25)
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


def test_requests_that_run_and_events_are_in_it_at_the_end(world):
    timeline = RequestTimeline("m", 9, 4, arrival=Arrival("r", at=1.0))
    world.service.events.add("node_lost", "ben is gone", node="ben")
    with world.service.request_log.following(timeline):
        world.now_s = 3.0
        events = world.events()
        timeline.finished("stop", 3.0)
    assert [e["ts"] / 1e6 for e in events if e["name"] == "request r"] == [1.0, 3.0]
    assert any(e["name"] == "ben is gone" and e["args"]["node"] == "ben" for e in events)


async def test_a_full_disk_is_told_once_and_ends_only_the_trace():
    world = World(Path("/dev/full"))
    await world.trace.run()
    world.trace.close()
    (event,) = world.service.events.after(0)
    assert (event.kind, event.text) == (
        "trouble",
        "the trace cannot be written: No space left on device",
    )


async def test_a_report_that_cannot_be_traced_ends_neither_the_trace_nor_the_cluster(world):
    world.report(1.0)
    world.stage.health = replace(HEALTH, recent_steps=((),), progress=StageProgress(reports=9))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await world.trace.run()
    assert world.trace.guard.counts[IndexError] == 1
    assert world.events()


async def test_a_file_that_has_its_size_is_told(world):
    world.trace.trace.is_full = True
    await world.trace.run()
    assert "written no more" in world.service.events.after(0)[0].text
