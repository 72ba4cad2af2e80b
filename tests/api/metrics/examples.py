"""A service with two rings, and requests of every kind of end, for tests of its metrics."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import generate_latest

from molink.api.metrics.route import Metrics
from molink.errors import RingError
from molink.findings.watch import ClusterWatch
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from molink.serving.events import EventLedger
from molink.serving.request_log import RequestLog
from molink.serving.timeline import Arrival, RequestTimeline
from molink_scheduler.routing.admission import NO_TARGETS, Targets

TIERS = {"host_tokens": 160, "file_tokens": 320, "fetched_tokens": 64, "lost_tokens": 16}


PAIR = {
    "sends": True,
    "linked": True,
    "blocks": 40,
    "size_bytes": 4000,
    "seconds": 1.5,
    "used": 38,
    "lost": 2,
    "held_bytes": 300,
    "held_byte_s": 12.5,
    "why": "",
}


def stage(name: str, **figures: Any) -> dict[str, Any]:
    return {
        "node": name,
        "busy_share": 0.5,
        "busy_s": 10.0,
        "steps": 7,
        "decode_step_s": 0.02,
        "prefill_row_s": 0.001,
        "kv_tokens_used": 30,
        "kv_tokens_capacity": 400,
        "kv_tokens_cached": 48,
        "state_slots_used": 2,
        "state_slots_capacity": 16,
        "weights_bytes": 1000,
        "frames_refused": 1,
        "micro_batch_count": 3,
        "decode_round_s": 0.2,
        "pair": PAIR,
    } | figures


def link(source: str, target: str, **figures: Any) -> dict[str, Any]:
    return {
        "from": source,
        "to": target,
        "rate_mbps": 20.0,
        "rtt_ms": 60.0,
        "queueing_delay_ms": 5.0,
        "bytes_sent": 100,
        "messages_sent": 4,
        "in_flight_bytes": 10,
        "chunk_bytes": 4096,
        "decode_queued_bytes": 1,
        "prefill_queued_bytes": 2,
        "foreign_upload": True,
        "acks_refused": 0,
        "bytes_saved": -50,
    } | figures


def node(name: str, state: str = "serving") -> dict[str, Any]:
    given = {"uptime_s": 60, "token_layers": 900, "bytes_sent": 5000}
    return {"name": name, "state": state, "contribution": given}


def ring(*names: str) -> dict[str, Any]:
    ends = zip(names, (*names[1:], names[0]), strict=True)
    return {
        "stages": [stage(name) for name in names],
        "links": [link(*pair) for pair in ends],
        "requests": {"running": 2, "waiting": 1},
        "prefix_cache": {"tokens": 48, "tiers": TIERS},
    }


@dataclass
class ObservedService:
    """As much of a service as its metrics look at."""

    report: ClusterReport | dict[str, Any]
    request_log: RequestLog = field(default_factory=RequestLog)
    events: EventLedger = field(default_factory=EventLedger)
    watch: ClusterWatch = field(default_factory=ClusterWatch)

    def cluster(self) -> ClusterReport:
        is_made = isinstance(self.report, ClusterReport)
        return self.report if is_made else from_plain(ClusterReport, self.report)


def timeline(at: float = 0.0, operation: str = "chat") -> RequestTimeline:
    return RequestTimeline("demo", 100, 8, arrival=Arrival("r", operation, at=at, unix_s=1000.0))


def answered(
    log: RequestLog,
    *,
    moves: int = 0,
    forecast_ttft_s: float | None = None,
    targets: Targets = NO_TARGETS,
) -> None:
    """A request that waited 1 s, had its first token after 3 s and its third and last after 5 s."""
    one = timeline()
    one.targets = targets
    with log.following(one):
        for number in range(moves):
            one.submitted(number, (), 1.0)
            one.moved("The ring has ended.", 1.0)
        one.submitted(moves, (), 1.0)
        if forecast_ttft_s is not None:
            one.promised(forecast_ttft_s, 0.5, 0.6)
        for at in (3.0, 4.0, 5.0):
            one.tokens_came(1, at)
        one.finished("stop", 5.0)


def ended_with(log: RequestLog, error: BaseException) -> None:
    try:
        with log.following(timeline()):
            raise error
    except (RingError, asyncio.CancelledError):
        return


def observed_service() -> ObservedService:
    nodes = [node("anna"), node("ben"), node("carl", "standby")]
    rings = [ring("anna", "ben")]
    told = {"rings": rings, "nodes": nodes, "unready_reason": None}
    build = {"version": "0.1.0+g1a2b3c4", "protocol": 8, "protocol_min": 8}
    ends = {
        "certificates": [{"name": "api", "ends_unix_s": 2e9}],
        "invites": {"open": 2, "next_ends_unix_s": 1.9e9},
    }
    return ObservedService(told | ends | {"build": build, "disk_free_bytes": 5 * 10**10})


def scraped(metrics: Metrics) -> str:
    """What a scrape of now would get, after one request."""
    if not metrics.service.request_log.ended:
        answered(metrics.service.request_log)
    metrics.look()
    return generate_latest(metrics.registry).decode()
