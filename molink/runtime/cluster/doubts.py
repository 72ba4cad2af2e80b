"""Where what a node says and what others see of it differ, as sentences for people."""

from collections.abc import Mapping, Sequence

from molink.runtime.cluster.claims import believed_rate, believed_upload, is_doubtful
from molink.runtime.cluster.node_book import Node

__all__ = ["doubts", "rates_seen", "uploads_seen"]

Seen = Mapping[tuple[str, str], float]
"""(sender, receiver) to Mbps; the coordinator's own count has "" for a receiver."""

DOUBTS_MAX = 8
"""Of one node; a liar's hundred links are not all named."""


def rates_seen(nodes: Sequence[Node]) -> dict[tuple[str, str], float]:
    """All that receivers have counted."""
    found = {(sender, node.node_id): rate for node in nodes for sender, rate in node.seen.items()}
    own = {(node.node_id, ""): node.coordinator_saw_mbps for node in nodes}
    return found | {pair: rate for pair, rate in own.items() if rate > 0}


def uploads_seen(nodes: Sequence[Node], seen: Seen) -> dict[str, list[float]]:
    """Of each PC what others have seen it upload, by whichever of its devices: they share one line.
    What its devices see of each other does not leave the PC and says nothing of that line."""
    pc_of = {node.node_id: node.pc for node in nodes}
    found: dict[str, list[float]] = {}
    for (sender, receiver), rate in seen.items():
        pc = pc_of.get(sender)
        if pc is not None and pc != pc_of.get(receiver):
            found.setdefault(pc, []).append(rate)
    return found


def doubts(node: Node, nodes: Sequence[Node], seen: Seen) -> list[str]:
    """What a plan counts otherwise than this node says; empty for most."""
    found = [*_upload(node, nodes, seen), *_steps(node), *_links(node, nodes, seen)]
    return found[:DOUBTS_MAX]


def _upload(node: Node, nodes: Sequence[Node], seen: Seen) -> list[str]:
    own = {one.node_id for one in nodes if one.pc == node.pc} | {node.node_id}
    told = node.profile.upload_mbps if node.profile is not None else 0.0
    rates = [rate for (sender, to), rate in seen.items() if sender in own and to not in own]
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


def _links(node: Node, nodes: Sequence[Node], seen: Seen) -> list[str]:
    names = {one.node_id: one.name for one in nodes}
    found = []
    for to, path in node.paths.items():
        believed = believed_rate(path.rate_mbps, seen.get((node.node_id, to)))
        if is_doubtful(path.rate_mbps, believed):
            found.append(
                f"It says that it sends {path.rate_mbps:.1f} Mbps to {names.get(to, to)}, "
                f"who has seen {believed:.1f}."
            )
    return found
