"""Discrepancies between what a node reports and what others measure, and what is believed.

A node may lie, by mistake or not, and a plan that believes it puts a ring behind its slowness. So
its reports are compared with what others measure: a receiver counts what a sender's line carries,
and a stage that serves shows how long its steps take. Only what is measured to be worse counts; no
node is planned for better than it reports.

Two nodes that stand together can still vouch for each other; the coordinator sees its own share
only.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from molink.coordinator.nodes.node import Node

UPLOAD_UNSEEN_MBPS = 20.0
"""Upload of a node that no other has received from: a usual home uplink, so that reporting nothing,
or anything, brings no node to the front."""

DISCREPANCY_FACTOR = 1.5
"""Both ends count the same bytes by clocks of their own, over windows that differ a little. What
is reported beyond this is shown; the plan counts with what was measured in any case."""

DISCREPANCIES_MAX = 8
"""Most discrepancies that are named of one node; of a hundred links that differ not all are."""


def believed_rate(reported_mbps: float, seen_mbps: float | None) -> float:
    """Rate of a link, as its sender reported and its receiver measured; 0: not known."""
    if not seen_mbps:
        return reported_mbps
    return min(reported_mbps, seen_mbps) if reported_mbps else seen_mbps


def believed_upload(reported_mbps: float, seen_mbps: Iterable[float]) -> float:
    """Upload of a node, as it reported (0: not) and all that received from it measured. Never 0."""
    best = max(seen_mbps, default=0.0) or UPLOAD_UNSEEN_MBPS
    return min(reported_mbps, best) if reported_mbps else best


def line_mbps(node: Node, seen: "Sightings") -> float:
    """Most that a node is believed to send, to other devices of its own PC, too."""
    reported = node.profile.upload_mbps if node.profile is not None else 0.0
    own = seen.links.get(node.node_id, {}).values()
    return max(believed_upload(reported, seen.uploads.get(node.pc, ())), *own, 0.0)


def is_discrepant(reported_mbps: float, believed_mbps: float) -> bool:
    """Whether a report is so far from what is believed that people should know."""
    return reported_mbps > DISCREPANCY_FACTOR * believed_mbps


@dataclass(frozen=True, slots=True)
class Sightings:
    """Rates that nodes have measured of each other, in Mbps."""

    links: Mapping[str, Mapping[str, float]]
    """Sender to receiver to rate; the coordinator's own count has "" for a receiver."""
    uploads: Mapping[str, Sequence[float]]
    """Rates at which others received from each PC, by any of its devices: they share one line. What
    its devices measure of each other does not leave the PC and says nothing of that line."""
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
        if node.coordinator_seen_mbps > 0:
            found.setdefault(node.node_id, {})[""] = node.coordinator_seen_mbps
    return found


def discrepancies(node: Node, seen: Sightings) -> list[str]:
    """Sentences on figures that a plan counts otherwise than this node reports; mostly none."""
    found = [*_upload(node, seen.uploads.get(node.pc, ())), *_served(node), *_links(node, seen)]
    return found[:DISCREPANCIES_MAX]


def _upload(node: Node, rates: Sequence[float]) -> list[str]:
    reported = node.profile.upload_mbps if node.profile is not None else 0.0
    believed = believed_upload(reported, rates)
    if not is_discrepant(reported, believed):
        return []
    what = f"others have seen {believed:.1f}" if rates else "nobody has seen it send"
    return [f"It says that it uploads {reported:.1f} Mbps, and {what}: {believed:.1f} are planned."]


def _served(node: Node) -> list[str]:
    found, slowdown = [], node.slowdown
    if slowdown.worst > 1:
        times = slowdown.worst
        found.append(
            f"Its steps take {times:.1f} times as long as it has told, and are planned so."
        )
    if slowdown.link_mbps < math.inf:
        mbps = slowdown.link_mbps
        found.append(
            f"Its link to the next PC carries {mbps:.1f} Mbps, far less than was measured before, "
            "and is planned so."
        )
    return found


def _links(node: Node, seen: Sightings) -> list[str]:
    rates, found = seen.links.get(node.node_id, {}), []
    for to, path in node.paths.items():
        believed = believed_rate(path.rate_mbps, rates.get(to))
        if is_discrepant(path.rate_mbps, believed):
            found.append(
                f"It says that it sends {path.rate_mbps:.1f} Mbps to {seen.names.get(to, to)}, "
                f"who has seen {believed:.1f}."
            )
    return found
