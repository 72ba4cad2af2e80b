"""What so many users would get of a plan, whatever its goal's bound: each on the ring where a token
comes soonest."""

from collections.abc import Sequence
from functools import cache

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement.evaluate import Forecast, crowded_tpot_s, forecast
from molink_scheduler.placement.facts import Network, NodeFacts
from molink_scheduler.placement.plan import Plan


def loaded_rings(
    plan: Plan, model: ModelCost, nodes: Sequence[NodeFacts], network: Network, users: int
) -> list[Forecast] | None:
    """The plan's rings under the load of `users` users, those without a user left out; None where
    the KV of so many finds no room. Users who come one by one choose the fastest ring."""
    by_id = {node.id: node for node in nodes}

    @cache
    def under(ring: int, load: int) -> Forecast:
        stages = plan.rings[ring].stages
        counts = [stage.layers[1] - stage.layers[0] for stage in stages]
        members = [by_id[stage.node_id] for stage in stages]
        return forecast(model, members, counts, network, plan.goal, load)

    loads = [0] * len(plan.rings)
    for _ in range(users):
        rooms = [ring for ring in range(len(loads)) if loads[ring] < plan.rings[ring].users_memory]
        if not rooms:
            return None
        loads[min(rooms, key=lambda ring: under(ring, loads[ring] + 1).tpot_s)] += 1
    return [under(ring, load) for ring, load in enumerate(loads) if load]


def tokens_per_s_together(
    plan: Plan, model: ModelCost, nodes: Sequence[NodeFacts], network: Network, users: int
) -> float | None:
    """Tokens per second of all these users, between the first and the last of each answer, with
    what prompts of others cost them; None where they find no room."""
    rings = loaded_rings(plan, model, nodes, network, users)
    if rings is None:
        return None
    by_id = {node.id: node for node in nodes}
    total = 0.0
    for ring in rings:
        counts = [stage.layers[1] - stage.layers[0] for stage in ring.stages]
        members = [by_id[stage.node_id] for stage in ring.stages]
        asked = members, counts, network, plan.goal
        total += ring.users / crowded_tpot_s(model, *asked, ring.users)
    return total
