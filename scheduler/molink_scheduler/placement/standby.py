"""Nodes that are left over: offer them to every ring, and say why none takes them."""

from collections.abc import Sequence

from molink_scheduler.placement.cluster import best_of
from molink_scheduler.placement.evaluate import Forecast, forecast
from molink_scheduler.placement.neighbourhood import Ways, insertions
from molink_scheduler.placement.objective import WORST, Objective, Placed
from molink_scheduler.placement.problem import Order, Problem

__all__ = ["adopt", "standby_reason"]

GIB = 2**30

RINGS_MAX = 8
"""Rings for which a reason is worked out, those that are nearest to the node: a hundred standbys
beside fifty rings are told in a tenth of a second, and the others are no better."""

TOKEN_MS_MIN = 0.05
"""Less than that on every token is not worth a word."""


def adopt(objective: Objective, found: Sequence[Placed]) -> tuple[list[Placed], set[int]]:
    """Rings that gain from no node left over, and these nodes; the search may have run out of
    effort before it had asked them all."""
    rings = list(found)
    used = {node for ring in rings for node in ring.order}
    pool = set(range(len(objective.problem.nodes))) - used
    while any(_adopted(objective, rings, node, pool) for node in sorted(pool)):
        pass
    return rings, pool


def _adopted(objective: Objective, rings: list[Placed], node: int, pool: set[int]) -> bool:
    """Whether a ring has taken the node."""
    for number, ring in enumerate(rings):
        larger = best_of(objective, _with(objective.problem, ring, node), ring.score)
        if larger is not None:
            rings[number] = larger
            pool.remove(node)
            return True
    return False


def _with(problem: Problem, ring: Placed, node: int) -> list[Order]:
    rows = max(1, -(-ring.score.users // ring.micro_batches))
    return insertions(Ways(problem, rows), ring.order, node)


def standby_reason(
    objective: Objective, rings: Sequence[Placed], forecasts: Sequence[Forecast], node: int
) -> str:
    """Why no ring takes this node, in one sentence without a full stop."""
    problem = objective.problem
    facts, model = problem.nodes[node], problem.model
    layer = min(model.layer_bytes) + problem.goal.context_tokens * model.kv_bytes
    if facts.memory_bytes < layer:
        return (
            f"lends too little memory for one layer and the KV of one user "
            f"({facts.memory_bytes / GIB:.2f} GiB, {layer / GIB:.2f} are needed)"
        )
    near = sorted(
        range(len(rings)),
        key=lambda number: min(problem.delay_s[node][other] for other in rings[number].order),
    )
    tried = [
        (placed, forecasts[number])
        for number in near[:RINGS_MAX]
        if (placed := best_of(objective, _with(problem, rings[number], node), WORST)) is not None
    ]
    if not tried:
        return _no_place(problem, rings)
    return min((_told(problem, placed, now) for placed, now in tried), key=lambda one: one[0])[1]


def _no_place(problem: Problem, rings: Sequence[Placed]) -> str:
    if all(len(ring.order) >= problem.layers for ring in rings):
        return "finds no place: every ring has a node for each of its layers"
    return "lends too little memory to hold its part of any ring"


def _told(problem: Problem, placed: Placed, now: Forecast) -> tuple[tuple[int, float], str]:
    """How bad the ring with the node would be, and in words."""
    nodes = [problem.nodes[number] for number in placed.order]
    then = forecast(problem.model, nodes, placed.counts, problem.network, problem.goal)
    lost = now.users - then.users
    longer_ms = 1e3 * (then.tpot_alone_s - now.tpot_alone_s)
    parts = []
    if longer_ms >= TOKEN_MS_MIN:
        parts.append(f"lengthen every token by {_milliseconds(longer_ms)}")
    if lost > 0:
        parts.append(f"cost {lost} of {now.users} users")
    elif now.users == 0 and longer_ms < TOKEN_MS_MIN:
        parts.append("shorten no token enough to be worth the risk of one more PC")
    else:
        parts.append("add no users" if now.users else "bring none within the bound")
    return (lost, longer_ms), "would " + " and ".join(parts)


def _milliseconds(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"
