"""What GET /cluster says of a ring: its stages, its links, its requests."""

from dataclasses import asdict
from typing import Any

from molink.runtime.coordinator_links import CoordinatorLinks
from molink.runtime.link_health import link_health
from molink.runtime.local_ring import LocalRing
from molink.runtime.stage_handle import StageHandle
from molink.runtime.supervision import LinkHealth

__all__ = ["ring_report"]


def ring_report(
    model: str, epoch: int, ring: LocalRing, coordinator: CoordinatorLinks, requests_live: int
) -> dict[str, Any]:
    """Facts as of the last health reports, at most a second old; of requests we know ourselves."""
    head = ring.stages[0].health
    waiting = min(requests_live, (head and head.requests_waiting) or 0)
    return {
        "model": model,
        "epoch": epoch,
        "stages": [_stage(stage) for stage in ring.stages],
        "links": _links(ring, coordinator),
        "requests": {"running": requests_live - waiting, "waiting": waiting},
    }


def _stage(stage: StageHandle) -> dict[str, Any]:
    health, loaded = stage.health, stage.loaded
    assert loaded is not None, "a ring serves only when its stages are loaded"
    return {
        "node": stage.name,
        "pid": stage.child.pid,
        "layers": list(stage.load.layers),
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


def _links(ring: LocalRing, coordinator: CoordinatorLinks) -> list[dict[str, Any]]:
    links = []
    if coordinator.head is not None:
        health = link_health(coordinator.head.statistics())
        links.append(_link(ring, "coordinator", ring.stages[0].name, health))
    for index, stage in enumerate(ring.stages):
        following = ring.stages[(index + 1) % len(ring.stages)].name
        for link in stage.health.links if stage.health else ():
            between = link.name == "next" and stage is not ring.stages[-1]
            target = following if link.name == "next" else "coordinator"
            links.append(_link(ring, stage.name, target, link) | _packing(stage, between))
    return links


def _packing(stage: StageHandle, between: bool) -> dict[str, Any]:
    """Codec of a link between stages and what it has saved; other links carry no activations."""
    if not between or stage.health is None:
        return {}
    return {"wire": stage.health.packed.codec, "bytes_saved": stage.health.bytes_saved}


def _link(ring: LocalRing, source: str, target: str, health: LinkHealth) -> dict[str, Any]:
    link = ring.plan.link
    first = link.steps[0].shape if link else None
    emulated = {"mbps": first.rate_mbps, "one_way_ms": first.one_way_ms} if first else None
    return {
        "from": source,
        "to": target,
        "policy": ring.plan.policy,
        **{key: value for key, value in asdict(health).items() if key != "name"},
        "emulated": emulated,
    }
