"""What `GET /cluster` says of rings, their stages and nodes."""

import asyncio
import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from molink.api.status import cluster_body
from molink.config.link_schedule import LinkShape
from molink.control.messages.assignment import Assignment, Load
from molink.control.messages.payloads import (
    AssignedWork,
    NodeHealth,
    NodeState,
    NodeWish,
    PathMeasured,
    StageFact,
    WeightsSource,
)
from molink.coordinator.nodes.node import Contribution, Node
from molink.coordinator.planning.cluster_plan import PlannedRing
from molink.coordinator.reports.cluster_report import ring_report, service_report
from molink.coordinator.reports.node_reports import nodes_report
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.serving_ring import ServingRing
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.ring import Ring
from molink.report.cluster import ClusterReport
from molink.report.nodes import NodeReport
from molink.report.plain import to_plain
from molink.serving.events import EventLedger
from molink.serving.model_card import ModelCard
from molink.stage_protocol.health import StageHealth
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.codec_choice import choose_codec
from molink_scheduler.kv.blocks import blocks_for
from molink_scheduler.kv.capacity import Offer
from molink_scheduler.link.facts import LinkReport
from tests.golden.codec import Codec
from tests.golden.values_placement import forecast_of_two
from tests.golden.values_rings import HEALTH, LINK, NODE_IDS, TERMS, node


@dataclass
class StageDouble:
    name: str
    layers: tuple[int, int]
    loaded: StageLoaded
    health: StageHealth | None
    pid: int | None = None
    node: Node | None = None
    epoch: int = 7
    has_joined: bool = False

    @property
    def offer(self) -> Offer:
        return Offer(0, blocks_for(self.loaded.kv_tokens_capacity))


TO_HEAD = LinkReport("head", 5, 700, 1, 2, 30, 40, 4096, 20.125, 60.12, 3.5, 70_000, False, 1)


@dataclass
class LinksDouble:
    report: LinkReport | None = TO_HEAD


LOADED = StageLoaded(5000, 5001, "cuda:0", "bfloat16", 131_072, 2**40)
CARD = ModelCard("org/model", 1_700_000_000, 300, 4096, (2,), None)


def a_ring(emulated: LinkShape | None = None, health: StageHealth | None = HEALTH) -> Ring:
    coordinator_link = LinkReport(**(asdict(LINK) | {"name": "coordinator"}))
    tail = None
    if health is not None:
        tail = replace(health, links=(LINK, coordinator_link))
        health = replace(health, links=(LINK,))
    stages = [
        StageDouble("stage 0", (0, 2), LOADED, health, 1000, node(0)),
        StageDouble("stage 1", (2, 6), LOADED, tail, None, node(1)),
    ]
    shared = replace(TERMS.ring, prefix_cache=True)
    terms = replace(TERMS, ring=shared, upload_mbps=20.0, emulated=emulated)
    return Ring(stages, terms, TERMS.coordinator)  # type: ignore[arg-type]


def still_events() -> EventLedger:
    """Events of a coordinator whose clock stands still."""
    return EventLedger(clock=lambda: 1_700_000_000.0)


async def ring_service(ring: Ring, links: LinksDouble) -> dict[str, Any]:
    """A ring of which neither number nor forecast is told."""
    client = RingClient(CARD, ring, links, lambda: None)  # type: ignore[arg-type]
    client.codec = choose_codec("lossless", None)
    plain = to_plain(ring_report(client))
    return {name: plain[name] for name in plain if name not in ("ring", "forecast")}


def local_nodes() -> list[NodeReport]:
    """Of a ring that serves for 5.4 seconds and has sent its users ten tokens."""
    given, devices, nodes = {}, {}, []
    for stage in a_ring().stages:
        assert stage.node is not None and stage.health is not None
        start, end = stage.layers
        sent = sum(link.bytes_sent for link in stage.health.links)
        given[stage.node.node_id] = Contribution(5.4, 10 * (end - start), sent)
        devices[stage.node.node_id] = stage.loaded.device
        nodes.append(stage.node)
    return nodes_report(nodes, {}, given, devices)


def some_nodes() -> list[NodeReport]:
    """Of each kind one."""
    assignment = Assignment(
        revision=3,
        ring=1,
        epoch=7,
        command=Load(
            work=AssignedWork(
                layers=(0, 2), device="cpu", dtype="auto", weights=WeightsSource(model="m")
            )
        ),
    )
    way = PathMeasured(to=NODE_IDS[1], path="relay", address="r:1", rtt_ms=1, rate_mbps=1)
    health = NodeHealth(
        incarnation="a" * 12, state=NodeState.SERVING, uptime_s=1, paths={"next": "direct"}
    )
    fact = StageFact(revision=3, kind="loading", fraction=0.5)
    liar = node(2, paths={NODE_IDS[1]: way}, seen={NODE_IDS[0]: 1.0, NODE_IDS[1]: 1.0})
    nodes = [
        node(0, assignment=assignment, fact=fact, health=health, seen={NODE_IDS[1]: 1.0}),
        node(1, wish=NodeWish(wish="pause", reason="On battery.")),
        liar,
        Node("d" * 16),
    ]
    given = {NODE_IDS[0]: Contribution(86_400.6, 1000, 2**40)}
    return nodes_report(nodes, {NODE_IDS[2]: "would slow the ring"}, given, {})


async def cluster_of_agents() -> ClusterReport:
    client = RingClient(CARD, a_ring(), LinksDouble(), lambda: None)  # type: ignore[arg-type]
    forecast = replace(
        forecast_of_two(),
        users=3,
        tpot_s=0.1,
        tpot_alone_s=0.05,
        ttft_s=1.5,
        tokens_per_s=30.0,
        bottleneck="memory",
    )
    service = ClusterService(
        CARD, lambda service: service_report(service, some_nodes()), events=still_events()
    )
    service.rings = [
        ServingRing(1, client, 30.0, PlannedRing((), forecast).promised),
        ServingRing(2, client, 10.0),
    ]
    return service.cluster()


async def cluster_without_rings() -> ClusterReport:
    return ClusterService(CARD, service_report, events=still_events()).cluster()


async def nothing_reported() -> dict[str, Any]:
    return await ring_service(a_ring(health=None), LinksDouble(report=None))


def plain(shown: Any) -> Any:
    """Plain fields, without those of the cluster that are of the coordinator at large."""
    if isinstance(shown, list):
        return [to_plain(one) for one in shown]
    if isinstance(shown, ClusterReport):
        apart = {"build", "trouble"} | (set() if shown.nodes else {"nodes"})
        return {k: v for k, v in cluster_body(shown).items() if k not in apart}
    return shown


def pretty(value: Any) -> str:
    """In the order of its keys, a line for each: to be read when it differs."""
    shown = plain(asyncio.run(value()) if asyncio.iscoroutinefunction(value) else value())
    assert json.loads(json.dumps(shown)) is not None
    return re.sub(r"\n\s*", "\n", json.dumps(shown, indent=0))


async def emulated_ring() -> dict[str, Any]:
    return await ring_service(a_ring(LinkShape(20.0, 30.0)), LinksDouble())


CLUSTER = Codec("cluster-report", pretty)
CLUSTER.add(
    a_ring=lambda: emulated_ring,
    a_ring_that_has_said_nothing=lambda: nothing_reported,
    local_nodes=lambda: local_nodes,
    agents_nodes=lambda: some_nodes,
    a_cluster=lambda: cluster_of_agents,
    a_cluster_without_rings=lambda: cluster_without_rings,
)

CODECS = (CLUSTER,)
"""All of them."""
