"""GET /ring: what a user may see of the cluster, and how often it is made."""

import asyncio
import json
from dataclasses import dataclass, field, replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from molink.api.page.routes import RING_FRESH_S, add_page_routes, lost_stages, ring_view
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from molink.serving.events import EventLedger
from tests.golden.values_cluster import cluster_of_agents, cluster_without_rings


def test_only_what_is_named_is_let_through():
    view = json.loads(json.dumps(ring_view(asyncio.run(cluster_of_agents()), None)))
    stages = [
        {"node": "stage 0", "layers": [0, 2], "busy_share": 0.25},
        {"node": "stage 1", "layers": [2, 6], "busy_share": 0.25},
    ]
    links = [
        {"from": "stage 0", "to": "stage 1", "rate_mbps": 20.125, "rtt_ms": 60.5},
        {"from": "stage 1", "to": "stage 0", "rate_mbps": 20.125, "rtt_ms": 60.5},
    ]
    alike = {"stages": stages, "links": links, "waits_for": None}
    rings = [{"ring": number, **alike} for number in (1, 2)]
    assert view == {"model": "org/model", "serving": True, "reason": None, "rings": rings}


def test_a_ring_waits_for_what_it_has_lost_until_it_goes_on():
    ledger = EventLedger()
    ledger.add("stage_lost", "ring 1 has lost ben", node="ben", ring=1)
    ledger.add("stage_lost", "ring 2 has lost anna", node="anna", ring=2)
    ledger.add("ring_resumed", "ring 2 goes on", ring=2)
    assert lost_stages(ledger.after(0)) == {1: "ben"}
    view = ring_view(asyncio.run(cluster_of_agents()), None, lost_stages(ledger.after(0)))
    assert [ring["waits_for"] for ring in view["rings"]] == ["ben", None]


def test_a_silent_stage_is_waited_for_before_it_is_lost():
    report = asyncio.run(cluster_of_agents())
    first, *others = report.rings
    stages = tuple(replace(one, silent_s=1.5 * (one.node == "stage 1")) for one in first.stages)
    view = ring_view(replace(report, rings=(replace(first, stages=stages), *others)), None)
    assert [ring["waits_for"] for ring in view["rings"]] == ["stage 1", None]


def test_without_a_ring_it_says_why():
    view = ring_view(asyncio.run(cluster_without_rings()), "No PC has joined yet.")
    assert (view["serving"], view["reason"], view["rings"]) == (False, "No PC has joined yet.", [])


@pytest.mark.parametrize("reported", [float("nan"), float("inf"), -float("inf")])
def test_what_no_json_holds_is_left_out(reported):
    report = asyncio.run(cluster_of_agents())
    (first, *_) = report.rings
    stages = [replace(one, busy_share=reported) for one in first.stages]
    links = [replace(one, rtt_ms=reported) for one in first.links]
    spoilt = replace(report, rings=(replace(first, stages=stages, links=links),))
    (ring,) = ring_view(spoilt, None)["rings"]
    assert ring["stages"][0]["busy_share"] is None and ring["links"][0]["rtt_ms"] is None


@dataclass
class CountedService:
    unready_reason: str | None = None
    reports: list[str] = field(default_factory=list)
    events: EventLedger = field(default_factory=EventLedger)

    def cluster(self):
        self.reports.append("")
        return from_plain(ClusterReport, {"model": f"report {len(self.reports)}"})


@pytest.fixture
async def client():
    app, service, now = web.Application(), CountedService(), [100.0]
    add_page_routes(app, service, lambda: now[0])
    async with TestClient(TestServer(app)) as one:
        one.service, one.now = service, now
        yield one


async def test_it_is_made_for_all_who_look_at_once(client):
    seen = []
    for later_s in (0, 0, RING_FRESH_S / 2, RING_FRESH_S / 2):
        client.now[0] += later_s
        async with client.get("/ring") as response:
            assert response.headers["Cache-Control"] == "no-store"
            seen.append(json.loads(await response.text())["model"])
    assert seen == ["report 1", "report 1", "report 1", "report 2"]
