"""What GET /cluster shows of nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from molink.control.messages.payloads import Profile
from molink.coordinator.members.discrepancies import Sightings, discrepancies
from molink.coordinator.members.ledger import Contribution
from molink.coordinator.members.node_book import Node

__all__ = ["nodes_report"]

NOTHING = Contribution()


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
        _entry(node, given.get(node.node_id, NOTHING))
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
        "reason": "",
        "ring": assignment.ring if assignment is not None and work is not None else None,
        "layers": list(work.layers) if work is not None else None,
        "loaded": fact.fraction if fact is not None and fact.kind != "ready" else None,
        "device": None,
        "memory": _memory(node.profile),
        "paths": _paths(node),
        "profile": _profile(node.profile),
        "contribution": {
            "uptime_s": round(given.uptime_s),
            "token_layers": given.token_layers,
            "bytes_sent": given.bytes_sent,
        },
    }


def _reason(node: Node, standby: str) -> str:
    if not node.is_here and node.wants != "leave":
        return node.presence.reason if node.presence is not None else ""
    if node.wish is not None and node.wants != "serve":
        return node.wish.reason
    fact = node.current_fact
    if fact is not None and fact.kind == "failed":
        return fact.message
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
