"""What GET /cluster says of a ring: its stages, its links, its requests."""

from dataclasses import asdict
from typing import Any

from molink.coordinator.members.ring import COORDINATOR, AgentStage, Ring
from molink.coordinator.requests.ring_client_links import RingClientLinks
from molink.coordinator.requests.ring_links import RingLink, ring_links

__all__ = ["ring_report"]


def ring_report(
    model: str, ring: Ring, coordinator: RingClientLinks, requests_live: int
) -> dict[str, Any]:
    """Facts as of the last health reports, at most a second old; of requests we know ourselves."""
    head = ring.stages[0].health
    waiting = min(requests_live, (head and head.requests_waiting) or 0)
    return {
        "model": model,
        "epoch": ring.epoch,
        "stages": [_stage(stage) for stage in ring.stages],
        "links": _links(ring, coordinator),
        "requests": {"running": requests_live - waiting, "waiting": waiting},
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
        "weights_bytes": loaded.weights_bytes,
        "kv_tokens_capacity": loaded.kv_tokens_capacity,
        "kv_tokens_used": health.kv_tokens_used if health else 0,
        "busy_s": round(health.busy_s, 3) if health else 0.0,
        "busy_share": health.busy_share if health else 0.0,
        "steps": health.steps if health else 0,
        "decode_step_s": health.decode_step_s if health else None,
        "prefill_row_s": health.prefill_row_s if health else None,
        "decode_round_s": health.decode_round_s if health else None,
        "micro_batch_count": health.micro_batch_count if health else None,
        "frames_refused": health.frames_refused if health else 0,
    }


def _links(ring: Ring, coordinator: RingClientLinks) -> list[dict[str, Any]]:
    return [
        _link(ring, link) | _packing(ring.stages[link.source], link)
        for link in ring_links(ring, coordinator)
    ]


def _packing(stage: AgentStage, link: RingLink) -> dict[str, Any]:
    """Codec of a link between stages and what it has saved; other links carry no activations."""
    if link.source == COORDINATOR or link.target <= link.source or stage.health is None:
        return {}
    return {"wire": stage.health.packed.codec, "bytes_saved": stage.health.bytes_saved}


def _link(ring: Ring, link: RingLink) -> dict[str, Any]:
    first = ring.terms.emulated
    emulated = {"mbps": first.rate_mbps, "one_way_ms": first.one_way_ms} if first else None
    return {
        "from": _name(ring, link.source),
        "to": _name(ring, link.target),
        "policy": ring.terms.ring.policy,
        **{key: value for key, value in asdict(link.report).items() if key != "name"},
        "emulated": emulated,
    }


def _name(ring: Ring, place: int) -> str:
    return "coordinator" if place == COORDINATOR else ring.stages[place].name
