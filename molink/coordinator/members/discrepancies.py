"""Where what a node says is held against what others see, for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from molink.coordinator.members.node_book import Node
from molink.coordinator.members.reported_vs_measured import (
    believed_rate,
    believed_upload,
    is_doubtful,
)

__all__ = ["Sightings", "doubts"]

DOUBTS_MAX = 8
"""Of one node; a liar's hundred links are not all named."""


@dataclass(frozen=True, slots=True)
class Sightings:
    """What nodes have seen of each other, in Mbps."""

    links: Mapping[str, Mapping[str, float]]
    """Sender to receiver to rate; the coordinator's own count has "" for a receiver."""
    uploads: Mapping[str, Sequence[float]]
    """Of each PC, by whichever of its devices: they share one line. What its devices see of each
    other does not leave the PC and says nothing of that line."""
    names: Mapping[str, str]

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> "Sightings":
        """All that receivers have counted."""
        links = _links_seen(nodes)
        pc_of = {node.node_id: node.pc for node in nodes}
        uploads: dict[str, list[float]] = {}
        for sender, rates in links.items():
            pc = pc_of.get(sender)
            seen = [rate for receiver, rate in rates.items() if pc_of.get(receiver) != pc]
            if pc is not None and seen:
                uploads.setdefault(pc, []).extend(seen)
        return cls(links, uploads, {node.node_id: node.name for node in nodes})


def _links_seen(nodes: Sequence[Node]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for node in nodes:
        for sender, rate in node.seen.items():
            found.setdefault(sender, {})[node.node_id] = rate
        if node.coordinator_saw_mbps > 0:
            found.setdefault(node.node_id, {})[""] = node.coordinator_saw_mbps
    return found


def doubts(node: Node, seen: Sightings) -> list[str]:
    """What a plan counts otherwise than this node says; empty for most."""
    found = [*_upload(node, seen.uploads.get(node.pc, ())), *_steps(node), *_links(node, seen)]
    return found[:DOUBTS_MAX]


def _upload(node: Node, rates: Sequence[float]) -> list[str]:
    told = node.profile.upload_mbps if node.profile is not None else 0.0
    believed = believed_upload(told, rates)
    if not is_doubtful(told, believed):
        return []
    what = f"others have seen {believed:.1f}" if rates else "nobody has seen it send"
    return [f"It says that it uploads {told:.1f} Mbps, and {what}: {believed:.1f} are planned."]


def _steps(node: Node) -> list[str]:
    times = node.pace.worst
    if times <= 1:
        return []
    return [f"Its steps take {times:.1f} times as long as it has told, and are planned so."]


def _links(node: Node, seen: Sightings) -> list[str]:
    rates, found = seen.links.get(node.node_id, {}), []
    for to, path in node.paths.items():
        believed = believed_rate(path.rate_mbps, rates.get(to))
        if is_doubtful(path.rate_mbps, believed):
            found.append(
                f"It says that it sends {path.rate_mbps:.1f} Mbps to {seen.names.get(to, to)}, "
                f"who has seen {believed:.1f}."
            )
    return found
