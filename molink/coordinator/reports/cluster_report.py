"""The body of GET /cluster: a ring's stages, links and requests, and the nodes.

Figures are those of the last health reports, at most a second old; of requests we know ourselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from molink.control.messages.payloads import Profile, StageFact
from molink.control.versions import own_protocols
from molink.coordinator.nodes.discrepancies import Sightings, discrepancies
from molink.coordinator.nodes.node_book import Contribution, Node
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.ring import COORDINATOR, AgentStage, Ring
from molink.stage_protocol.progress import ShadowLag
from molink.version import version
from molink_scheduler.link.facts import LinkReport

NO_CONTRIBUTION = Contribution()

DRAINED = "The operator has drained it: it serves again once it is resumed."


@dataclass(frozen=True, slots=True)
class _RingLink:
    """Directed link of a ring; stages by their number."""

    source: int
    target: int
    report: LinkReport


def _ring_links(ring: Ring, to_head: LinkReport | None) -> Iterator[_RingLink]:
    """Links in the order in which a request meets them; of a stage that has not reported, none, and
    none to shadows.
    `to_head` is the report of the coordinator's own link."""
    if to_head is not None:
        yield _RingLink(COORDINATOR, 0, to_head)
    for index, stage in enumerate(ring.stages):
        following = (index + 1) % len(ring.stages)
        for link in stage.health.links if stage.health else ():
            if link.name == "shadow":
                continue
            yield _RingLink(index, following if link.name == "next" else COORDINATOR, link)


def service_report(service: ClusterService) -> dict[str, Any]:
    """The first ring's figures at the top, as of a single ring, then all rings."""
    rings = [
        ring_report(ring.client) | {"ring": ring.number, "forecast": ring.promised}
        for ring in service.rings
    ]
    first = rings[0] if rings else {"model": service.model.name, "stages": [], "links": []}
    own = {"unready_reason": service.unready_reason, "intake_paused": service.intake_paused}
    return first | {"rings": rings} | own


def ring_report(client: RingClient) -> dict[str, Any]:
    """Part of one ring."""
    ring, live, prospects = client.ring, client.requests_live, client.prospects
    head = ring.stages[0].health
    waiting = min(live, (head and head.requests_waiting) or 0)
    return {
        "model": client.card.name,
        "epoch": ring.epoch,
        "stages": [_stage(stage) for stage in ring.stages],
        "links": _links(ring, client.links.report),
        "requests": {"running": live - waiting, "waiting": waiting},
        "wire": asdict(client.codec),
        "prefix_cache": None if prospects.mirror is None else client.cache_use.report(head),
        "requests_left_lying": prospects.watch.lying,
    }


def _stage(stage: AgentStage) -> dict[str, Any]:
    health, loaded = stage.health, stage.loaded
    assert loaded is not None, "a ring serves only when its stages are loaded"
    return {
        "node": stage.name,
        "pid": stage.pid,
        "layers": list(stage.layers),
        "device": loaded.device,
        "dtype": loaded.dtype,
        "kv_dtype": loaded.kv_dtype,
        "attention_fallback": loaded.attention_fallback,
        "decode_fallback": loaded.decode_fallback,
        "fusion_fallback": loaded.fusion_fallback,
        "swap_fallback": loaded.swap_fallback,
        "weights_bytes": loaded.weights_bytes,
        "kv_tokens_capacity": loaded.kv_tokens_capacity,
        "kv_tokens_used": health.kv_tokens_used if health else 0,
        "kv_tokens_cached": health.kv_tokens_cached if health else None,
        "state_slots_capacity": loaded.state_slots,
        "state_slots_used": health.state_slots_used if health else None,
        "busy_s": round(health.busy_s, 3) if health else 0.0,
        "busy_share": health.busy_share if health else 0.0,
        "steps": health.steps if health else 0,
        "decode_step_s": health.decode_step_s if health else None,
        "prefill_row_s": health.prefill_row_s if health else None,
        "decode_round_s": health.decode_round_s if health else None,
        "micro_batch_count": health.micro_batch_count if health else None,
        "micro_batches_held": health.micro_batches_held if health else None,
        "micro_batches_circling": health.micro_batches_circling if health else None,
        "frames_refused": health.frames_refused if health else 0,
    }


def _links(ring: Ring, to_head: LinkReport | None) -> list[dict[str, Any]]:
    return [
        _link(ring, link) | _packing(ring.stages[link.source], link)
        for link in _ring_links(ring, to_head)
    ]


def _packing(stage: AgentStage, link: _RingLink) -> dict[str, Any]:
    """Codec of a link between stages and what it has saved; other links carry no activations."""
    if link.source == COORDINATOR or link.target <= link.source or stage.health is None:
        return {}
    return {"wire": stage.health.packed.codec, "bytes_saved": stage.health.bytes_saved}


def _link(ring: Ring, link: _RingLink) -> dict[str, Any]:
    first = ring.terms.emulated
    emulated = {"mbps": first.rate_mbps, "one_way_ms": first.one_way_ms} if first else None
    return {
        "from": _name(ring, link.source),
        "to": _name(ring, link.target),
        **{key: value for key, value in asdict(link.report).items() if key != "name"},
        "emulated": emulated,
    }


def _name(ring: Ring, index: int) -> str:
    return "coordinator" if index == COORDINATOR else ring.stages[index].name


def nodes_report(
    nodes: Sequence[Node],
    standbys: Mapping[str, str],
    given: Mapping[str, Contribution],
    devices: Mapping[str, str],
) -> list[dict[str, Any]]:
    """One entry for each node, by name. `standbys` are the reasons why nodes hold nothing,
    `devices` those of the stages that serve."""
    ordered = sorted(nodes, key=lambda node: (node.name, node.node_id))
    seen = Sightings.of(nodes)
    return [
        _entry(node, given.get(node.node_id, NO_CONTRIBUTION))
        | {
            "reason": _reason(node, standbys.get(node.node_id, "")),
            "device": devices.get(node.node_id) or _device(node.profile),
            "doubts": discrepancies(node, seen),
        }
        for node in ordered
    ]


def _entry(node: Node, given: Contribution) -> dict[str, Any]:
    assignment = node.assignment
    work = assignment.work if assignment is not None else None
    fact = node.current_fact
    return {
        "id": node.node_id,
        "name": node.name,
        "pc": node.pc,
        "state": str(node.state),
        "drained": node.drained,
        "quarantined": bool(node.quarantined),
        "version": node.presence.version if node.presence is not None else None,
        "protocol": node.presence.protocol if node.presence is not None else None,
        "reason": "",
        "ring": assignment.ring if assignment is not None and work is not None else None,
        "layers": list(work.layers) if work is not None else None,
        "covers": node.covers or None,
        "shadow": _shadow(node.behind),
        "loaded": _loaded(fact),
        "device": None,
        "memory": _memory(node.profile),
        "paths": _paths(node),
        "profile": _profile(node.profile),
        "contribution": contribution_report(given),
    }


def _loaded(fact: StageFact | None) -> float | None:
    """The share of its layers that a node has; None: it holds none, or serves."""
    if fact is None or fact.kind == "ready":
        return None
    return 1.0 if fact.kind == "loaded" else fact.fraction


def _shadow(behind: ShadowLag | None) -> dict[str, float] | None:
    """How far a standby's KV is behind that of the stage that it covers."""
    return None if behind is None else {"tokens": behind.tokens, "seconds": behind.seconds}


def build_report() -> dict[str, Any]:
    """Which MoLink the coordinator is, and the numbers of the protocol that it speaks."""
    speaks = own_protocols()
    return {"version": version(), "protocol": speaks.newest, "protocol_min": speaks.oldest}


def contribution_report(given: Contribution) -> dict[str, int]:
    """Figures of what one node has given, or all devices of a PC together."""
    return {
        "uptime_s": round(given.uptime_s),
        "token_layers": given.token_layers,
        "bytes_sent": given.bytes_sent,
    }


def _reason(node: Node, standby: str) -> str:
    if node.suspended:
        return node.suspended
    if node.quarantined:
        return f"It is quarantined: {node.quarantined}"
    if not node.is_here and node.wants != "leave":
        return node.presence.reason if node.presence is not None else ""
    if node.outdated:
        return node.outdated
    if node.drained:
        return DRAINED
    if node.wish is not None and node.wants != "serve":
        return node.wish.reason
    fact = node.current_fact
    if fact is not None and fact.kind == "failed":
        return fact.message
    if node.covers:
        return f"It stands by with the layers of {node.covers}."
    return standby if not node.is_assigned else ""


def _device(profile: Profile | None) -> str | None:
    if profile is None or not profile.devices:
        return None
    first = profile.devices[0]
    return first.kind if first.kind == "cpu" else f"{first.kind}:{first.index}"


def _memory(profile: Profile | None) -> dict[str, int] | None:
    if profile is None or not profile.devices:
        return None
    first = profile.devices[0]
    return {"lent_bytes": first.free_bytes, "total_bytes": first.memory_bytes}


def _paths(node: Node) -> dict[str, str]:
    """Kinds of its links' paths now; before it serves, as it has measured its neighbours."""
    if node.health is not None and node.health.paths:
        return dict(node.health.paths)
    return {to: path.path for to, path in node.paths.items()}


def _profile(profile: Profile | None) -> dict[str, Any] | None:
    if profile is None:
        return None
    return profile.model_dump(
        mode="json",
        include={
            "cpu_threads",
            "upload_mbps",
            "download_mbps",
            "upload_cap_mbps",
            "coordinator_rtt_ms",
            "nat",
            "clock_offset_s",
            "steps",
        },
    )
