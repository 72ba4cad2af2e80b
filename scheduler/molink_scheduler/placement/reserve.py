"""Nodes that a plan leaves free, so that they can take the place of others.

What no ring gains from stands by anyway. Where that is fewer than the operator wants, the plan is
made again without one of its nodes, and again, until enough are free: without the one whose absence
leaves most users served. A node that could hold no stage of the plan is no reserve. Where the
others cannot hold the model the plan stays as it is: to serve comes first.

Rejected: to plan for all and to take a standby out of a ring afterwards, which nothing was planned
for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from molink_scheduler.placement.facts import NodeFacts
from molink_scheduler.placement.plan import Plan, Standby
from molink_scheduler.placement.shortage import Shortage

TRIED_MAX = 8
"""Nodes without which a plan is made, the slowest first, to choose the one to hold back."""

TRIED_NODES = 256
"""Nodes in all those plans together: a hundred take a tenth of a second, a thousand three."""

HELD_BACK = "is kept free to stand by for the others"

Make = Callable[[Sequence[NodeFacts]], Plan | Shortage]


def plan_with_reserve(nodes: Sequence[NodeFacts], wanted: int, make: Make) -> Plan | Shortage:
    """The plan that `make` finds, with `wanted` nodes left free that could take another's place;
    fewer where it is made for too few."""
    found, held = make(nodes), list[NodeFacts]()
    while isinstance(found, Plan) and _free(found, nodes, held) < wanted:
        plans = list(_plans_without_one(found, [one for one in nodes if one not in held], make))
        if not plans:
            break
        found, node = max(plans, key=lambda plan: (plan[0].users, plan[0].tokens_per_s))
        held.append(node)
    if isinstance(found, Shortage):
        return found
    kept = (Standby(one.id, one.name, HELD_BACK) for one in held)
    return replace(found, standbys=(*found.standbys, *kept))


def _plans_without_one(
    found: Plan, nodes: Sequence[NodeFacts], make: Make
) -> Iterator[tuple[Plan, NodeFacts]]:
    members = [node for node in nodes if node.id in found.layers_of]
    members.sort(key=lambda node: -node.decode_fixed_s - node.decode_row_s)
    for node in members[: max(1, min(TRIED_MAX, TRIED_NODES // len(nodes)))]:
        plan = make([one for one in nodes if one is not node])
        if isinstance(plan, Plan) and _could_stand_in(node, plan):
            yield plan, node


def _free(plan: Plan, nodes: Sequence[NodeFacts], held: Sequence[NodeFacts]) -> int:
    left = {standby.node_id for standby in plan.standbys}
    return len(held) + sum(_could_stand_in(node, plan) for node in nodes if node.id in left)


def _could_stand_in(node: NodeFacts, plan: Plan) -> bool:
    """Whether it has room for what some stage of the plan holds."""
    stages = (stage for ring in plan.rings for stage in ring.stages)
    return any(stage.used_bytes <= node.memory_bytes for stage in stages)
