"""Report of a cluster: its rings, with their stages, links and requests.

Figures are those of the last health reports, at most a second old; of requests we know ourselves.
A figure that nobody has measured is None here, and nowhere else.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from molink.config.link_schedule import LinkShape
from molink.control.versions import own_protocols
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.ring import COORDINATOR, Ring
from molink.coordinator.ring.stage_watch import silences_s
from molink.report import cluster
from molink.report.cell import StageLenderReport
from molink.report.cluster import (
    BuildReport,
    ClusterReport,
    RingForecast,
    RingLink,
    RingReport,
)
from molink.report.drafts import DrafterReport
from molink.report.nodes import NodeReport
from molink.report.shared_fields import report_of
from molink.stage_protocol.health import DrafterHealth, PackingHealth, StageHealth
from molink.version import version
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.link.facts import LinkReport
from molink_scheduler.routing.gap_times import KNOWN_GAPS

NOTHING_PACKED = PackingHealth("raw", raw_bytes=0, packed_bytes=0, seconds=0.0)

NO_HEALTH = StageHealth(
    kv_tokens_used=0,
    busy_s=0.0,
    busy_share=0.0,
    steps=0,
    requests_running=None,
    requests_waiting=None,
    frames_refused=0,
    packed=NOTHING_PACKED,
    unpacked=NOTHING_PACKED,
    bytes_saved=0,
    decode_round_s=None,
    micro_batch_count=None,
    decode_step_s=0.0,
    prefill_row_s=0.0,
    links=(),
)
"""Health of a stage that has not reported."""


@dataclass(frozen=True, slots=True)
class _Hop:
    """Directed link of a ring; stages by their number."""

    source: int
    target: int
    report: LinkReport


def _hops(ring: Ring, to_head: LinkReport | None) -> Iterator[_Hop]:
    """Links in the order in which a request meets them; of a stage that has not reported, none, and
    none to shadows.
    `to_head` is the report of the coordinator's own link."""
    if to_head is not None:
        yield _Hop(COORDINATOR, 0, to_head)
    for index, stage in enumerate(ring.stages):
        following = (index + 1) % len(ring.stages)
        for link in stage.health.links if stage.health else ():
            if link.name == "shadow":
                continue
            yield _Hop(index, following if link.name == "next" else COORDINATOR, link)


def service_report(
    service: ClusterService, nodes: Sequence[NodeReport] = (), trouble: Sequence[str] = ()
) -> ClusterReport:
    """Report of all rings and `nodes`. `trouble`: sentences, of which empty ones are dropped;
    sentences on missing drafters and impossible targets are added."""
    log = service.request_log
    ends = (ring.client.ring.stages[end].loaded for ring in service.rings for end in (0, -1))
    targets = service.intake.trouble(service.rings)
    undrafted = dict.fromkeys(one.drafter_trouble or "" for one in ends if one is not None)
    return ClusterReport(
        model=service.model.name,
        rings=tuple(ring_report(ring.client, ring.number, ring.promised) for ring in service.rings),
        unready_reason=service.unready_reason,
        intake_paused=service.intake_paused,
        nodes=tuple(nodes),
        build=build_report(),
        goodput=log.goodput.report,
        unix_s=service.events.clock(),
        last_minute=log.endings.report(log.clock()),
        trouble=tuple(one for one in (*trouble, *undrafted, targets) if one),
    )


def ring_report(
    client: RingClient, number: int = 0, forecast: RingForecast | None = None
) -> RingReport:
    """Report of one ring."""
    ring, live, forecaster, codec = (
        client.ring,
        client.requests_live,
        client.forecaster,
        client.codec,
    )
    head = ring.stages[0].health
    waiting = min(live, (head or NO_HEALTH).requests_waiting or 0)
    without_room = min(waiting, len((head or NO_HEALTH).without_room))
    return RingReport(
        model=client.card.name,
        epoch=ring.epoch,
        stages=_stages(ring),
        links=tuple(_link(ring, hop) for hop in _hops(ring, client.links.report)),
        requests=cluster.RequestCounts(live - waiting, waiting, without_room),
        wire=cluster.RingCodec(codec.codec, codec.reason, codec.check_passed),
        prefix_cache=None if forecaster.mirror is None else client.cache_use.report(head),
        requests_left_lying=forecaster.watch.starved_count,
        number=number,
        forecast=forecast,
        drafters=tuple(_drafter(one) for one in (head or NO_HEALTH).drafters if one.rounds),
        pace=pace_report(client),
        quiet_s=_quiet_s(client),
    )


def _quiet_s(client: RingClient) -> float | None:
    """Seconds since an answer of a ring got its latest token; None: none has had one, or the ring
    has lost a stage."""
    moved_at = client.served().moved_at
    waits = moved_at > 0.0 and not client.is_paused
    return round(max(0.0, time.monotonic() - moved_at), 1) if waits else None


def pace_report(client: RingClient) -> cluster.PaceReport | None:
    """Report of the pace of one ring beside the answers that it gives now; None: too few gaps have
    told."""
    pace, others = client.forecaster.pace, max(0, client.forecaster.line.running - 1)
    if pace.gaps.total < KNOWN_GAPS:
        return None
    tpot_s = pace.pace.tpot_s(others)
    tbts_s = (tpot_s * pace.gaps.times(others, percentile) for percentile in (90.0, 99.0))
    return cluster.PaceReport(*(round(pace.waits_s + one_s, 6) for one_s in (tpot_s, *tbts_s)))


def _drafter(of_head: DrafterHealth) -> DrafterReport:
    rounds, tried = of_head.rounds, of_head.tried
    return DrafterReport(
        of_head.name,
        rounds,
        of_head.right / tried if tried else None,
        of_head.drafts / rounds,
        1 + of_head.right / rounds,
    )


def _stages(ring: Ring) -> tuple[cluster.StageReport, ...]:
    """Reports of a ring's stages, with how long each of them has been silent."""
    are_watched = all(stage.has_joined for stage in ring.stages)
    seen = [stage.seen for stage in ring.stages] if are_watched else []
    silent_s = silences_s(seen, time.monotonic()) or [0.0] * len(ring.stages)
    both = zip(ring.stages, silent_s, strict=True)
    return tuple(replace(_stage(stage), silent_s=round(one_s, 1)) for stage, one_s in both)


def _stage(stage: AgentStage) -> cluster.StageReport:
    health, loaded = stage.health or NO_HEALTH, stage.loaded
    assert loaded is not None, "a ring serves only when its stages are loaded"
    return report_of(
        cluster.StageReport,
        loaded,
        health,
        node=stage.name,
        pid=stage.pid,
        layers=stage.layers,
        kv_tokens_capacity=BLOCK_TOKENS * stage.offer.blocks,
        state_slots_capacity=loaded.state_slots,
        busy_s=round(health.busy_s, 3),
        decode_step_s=health.decode_step_s if stage.health else None,
        prefill_row_s=health.prefill_row_s if stage.health else None,
        lender=_lender(stage),
    )


def _lender(stage: AgentStage) -> StageLenderReport | None:
    health = (stage.health or NO_HEALTH).lender
    if health is None:
        return None
    return StageLenderReport(
        own_tokens=health.kv_tokens_own,
        borrowed_tokens=max(0, BLOCK_TOKENS * stage.offer.blocks - health.kv_tokens_own),
        held_tokens=health.kv_tokens_away,
        step_wait_s=health.step_wait_s,
        lender=stage.lender,
    )


def _link(ring: Ring, hop: _Hop) -> RingLink:
    source, target = _name(ring, hop.source), _name(ring, hop.target)
    emulated = _emulated(ring.terms.emulated)
    link = report_of(RingLink, hop.report, source=source, target=target, emulated=emulated)
    health = ring.stages[hop.source].health
    if hop.source == COORDINATOR or hop.target <= hop.source or health is None:
        return link  # It carries no activations.
    return replace(link, wire=health.packed.codec, bytes_saved=health.bytes_saved)


def _emulated(shape: LinkShape | None) -> cluster.EmulatedLink | None:
    return None if shape is None else cluster.EmulatedLink(shape.rate_mbps, shape.one_way_ms)


def _name(ring: Ring, index: int) -> str:
    return cluster.COORDINATOR if index == COORDINATOR else ring.stages[index].name


def build_report() -> BuildReport:
    """The coordinator's version of MoLink, and the numbers of the protocol that it speaks."""
    speaks = own_protocols()
    return BuildReport(version(), protocol=speaks.newest, protocol_min=speaks.oldest)
