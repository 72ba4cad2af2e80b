"""The plain alternative to a search: all nodes in one ring, as they came, with equal shares.

What somebody would do by hand who knows nothing of the nodes. It is there to be compared with, and
for operators who want to decide the order themselves by the order in which PCs join. Layers that
do not divide go to the first nodes, one each.
"""

from collections.abc import Sequence

from molink_scheduler.placement.evaluate import Forecast, forecast
from molink_scheduler.placement.facts import Goal, ModelCost, Network, NodeFacts
from molink_scheduler.placement.plan import Plan
from molink_scheduler.placement.problem import Problem
from molink_scheduler.placement.shortage import GIB, Shortage, shortage

__all__ = ["SPLITS", "even_plan"]

SPLITS = ("planned", "even")
"""Ways to divide a model: as a search finds best, or like this."""

REMEDY = "let the plan split the model, or lend more"


def even_plan(
    model: ModelCost, nodes: Sequence[NodeFacts], network: Network, goal: Goal
) -> Plan | Shortage:
    """One ring of all nodes in their order, equal layers each; or what is missing for that."""
    lent = sum(node.memory_bytes for node in nodes)
    if not nodes:
        missing = shortage(Problem(model, nodes, network, goal))
        assert missing is not None, "nobody holds anything"
        return missing
    if len(nodes) > model.layers:
        return Shortage(
            0,
            0,
            lent,
            f"an even split of {model.layers} layers leaves some of {len(nodes)} PCs without one: "
            "let the plan split the model, or let fewer join.",
        )
    ring = forecast(model, nodes, _counts(model.layers, len(nodes)), network, goal)
    return _lacking(ring, model, goal, lent) or Plan(goal, (ring,))


def _counts(layers: int, nodes: int) -> list[int]:
    return [layers // nodes + (place < layers % nodes) for place in range(nodes)]


def _lacking(ring: Forecast, model: ModelCost, goal: Goal, lent: int) -> Shortage | None:
    """Of the node that is furthest from holding its share with the KV of one user."""
    each = goal.context_tokens * model.kv_bytes
    needs = {
        stage: stage.weights_bytes + (stage.layers[1] - stage.layers[0]) * each
        for stage in ring.stages
    }
    worst = max(ring.stages, key=lambda stage: needs[stage] - stage.memory_bytes)
    missing = needs[worst] - worst.memory_bytes
    if missing <= 0:
        return None
    start, end = worst.layers
    return Shortage(
        end - start,
        missing,
        lent,
        f"an even split gives {worst.name} {end - start} of {model.layers} layers, "
        f"{needs[worst] / GIB:.2f} GiB with the KV of one user, and it lends "
        f"{worst.memory_bytes / GIB:.2f} GiB: {REMEDY}.",
    )
