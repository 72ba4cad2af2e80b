"""Where what a node says and what others see of it differ, as sentences for people."""

from collections.abc import Mapping, Sequence

from molink.runtime.cluster.claims import believed_rate, believed_upload, is_doubtful
from molink.runtime.cluster.node_book import Node

__all__ = ["doubts", "rates_seen"]

Seen = Mapping[str, Mapping[str, float]]
"""Sender to receiver to Mbps; the coordinator's own count has "" for a receiver."""

DOUBTS_MAX = 8
"""Of one node; a liar's hundred links are not all named."""


def rates_seen(nodes: Sequence[Node]) -> dict[str, dict[str, float]]:
    """All that receivers have counted."""
    found: dict[str, dict[str, float]] = {}
    for node in nodes:
        for sender, rate in node.seen.items():
            found.setdefault(sender, {})[node.node_id] = rate
        if node.coordinator_saw_mbps > 0:
            found.setdefault(node.node_id, {})[""] = node.coordinator_saw_mbps
    return found


def doubts(node: Node, nodes: Sequence[Node], seen: Seen) -> list[str]:
    """What a plan counts otherwise than this node says; empty for most."""
    rates = seen.get(node.node_id, {})
    found = [*_upload(node, rates), *_steps(node), *_links(node, nodes, rates)]
    return found[:DOUBTS_MAX]


def _upload(node: Node, rates: Mapping[str, float]) -> list[str]:
    told = node.profile.upload_mbps if node.profile is not None else 0.0
    believed = believed_upload(told, list(rates.values()))
    if not is_doubtful(told, believed):
        return []
    what = f"others have seen {believed:.1f}" if rates else "nobody has seen it send"
    return [f"It says that it uploads {told:.1f} Mbps, and {what}: {believed:.1f} are planned."]


def _steps(node: Node) -> list[str]:
    times = node.pace.worst
    if times <= 1:
        return []
    return [f"Its steps take {times:.1f} times as long as it has told, and are planned so."]


def _links(node: Node, nodes: Sequence[Node], rates: Mapping[str, float]) -> list[str]:
    found = []
    for to, path in node.paths.items():
        believed = believed_rate(path.rate_mbps, rates.get(to))
        if is_doubtful(path.rate_mbps, believed):
            name = next((one.name for one in nodes if one.node_id == to), to)
            found.append(
                f"It says that it sends {path.rate_mbps:.1f} Mbps to {name}, "
                f"who has seen {believed:.1f}."
            )
    return found
