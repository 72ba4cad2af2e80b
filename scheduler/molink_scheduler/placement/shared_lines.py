"""Plans in which devices of one PC share its upload.

A search looks at rings one by one and gives each node an upload of its own. Devices of a PC stand
next to each other in nearly every good ring, because what passes between them does not leave the
PC: then one of them uses the line, and all of it is right. Where a plan lets several of them send
out of the PC, in one ring or in two, it is made again with so many shares. Equal shares from the
beginning were rejected: a second card would then halve the first one's upload and make most homes
worse, not better.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from molink_scheduler.placement.facts import NodeFacts
from molink_scheduler.placement.plan import Plan
from molink_scheduler.placement.shortage import Shortage

__all__ = ["plan_on_shared_lines", "senders_of"]

Found = TypeVar("Found", bound=Plan | Shortage)

PASSES_MAX = 3
"""With the whole line, with as many shares as the first plan needs, and, should that plan need
more, with one for every device: that one always holds."""


def plan_on_shared_lines(
    nodes: Sequence[NodeFacts], make: Callable[[Sequence[NodeFacts]], Found]
) -> Found:
    """The plan that `make` finds for these nodes; `upload_bytes_per_s` of each is its PC's."""
    pc_of = {node.id: node.pc for node in nodes}
    shares: Counter[str] = Counter()
    found = make(nodes)
    for _ in range(PASSES_MAX - 1):
        if isinstance(found, Shortage):
            break
        crowded = _crowded(senders_of(found, pc_of), shares, Counter(pc_of.values()))
        if not crowded:
            break
        shares |= crowded
        found = make([_with_share(node, shares[node.pc]) for node in nodes])
    return found


def senders_of(plan: Plan, pc_of: Mapping[str, str]) -> Counter[str]:
    """How many devices of each PC send out of it."""
    senders: Counter[str] = Counter()
    for ring in plan.rings:
        pcs = [pc_of.get(stage.node_id, stage.node_id) for stage in ring.stages]
        following = [*pcs[1:], *pcs[:1]]
        senders.update(pc for pc, to in zip(pcs, following, strict=True) if pc != to)
    return senders


def _crowded(senders: Counter[str], shares: Counter[str], devices: Counter[str]) -> Counter[str]:
    """The shares into which lines have to be cut on which more send than was planned for."""
    more = {pc: count for pc, count in senders.items() if count > max(1, shares[pc])}
    return Counter({pc: devices[pc] if shares[pc] else count for pc, count in more.items()})


def _with_share(node: NodeFacts, shares: int) -> NodeFacts:
    return replace(node, upload_bytes_per_s=node.upload_bytes_per_s / max(1, shares))
