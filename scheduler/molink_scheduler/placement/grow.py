"""Rings to begin a search with: grown from one node, for a number of users decided beforehand.

How many layers a node can take depends on how many users the ring is to serve: each of them wants
KV in every layer and a part of the bound on the time per token. Once that number is fixed (a
`Recipe`) every node has a room in layers and a price in seconds of the trip, and a ring is good
when it gets its layers for few seconds: so the next node is always the one with the fewest seconds
for each layer that it brings, its delay to the ring included. Recipes for few users make small
rings in great number, those for many users long ones; which is better depends on the cluster, so
all are tried.
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.placement.neighbourhood import PairCosts, insertions
from molink_scheduler.placement.problem import Order, Problem

USERS_FACTOR = 1.5
"""Factor from one number of users to the next that is tried."""

USERS_MAX = 4096
"""Most users of one ring; the scheduler has never been measured with more."""

GROUPS = (1, 4, 12)
"""Micro-batches assumed: of a lone node, a short ring and a long one."""


class Recipe(NamedTuple):
    """Layers and prices of every node, for a ring of a given number of users."""

    rooms: list[int]
    """Most layers."""
    prices: list[float]
    """Seconds of a trip for each layer."""
    rows: float
    """Rows of a micro-batch."""
    users: int


def recipes_for_users(problem: Problem) -> list[Recipe]:
    """Recipes for rings of 1 to as many users as the goal allows."""
    most, users, numbers = min(USERS_MAX, problem.goal.users_max), 1.0, []
    while users < most:
        numbers.append(round(users))
        users = max(users + 1, users * USERS_FACTOR)
    pairs = [(n, groups) for n in (*numbers, most) for groups in GROUPS if groups <= n]
    recipes = [_recipe_for_users(problem, n, groups) for n, groups in pairs]
    return [recipe for recipe in recipes if sum(recipe.rooms) >= problem.layers]


def _recipe_for_users(problem: Problem, users: int, groups: int) -> Recipe:
    rows, bound_s = -(-users // groups), problem.goal.tpot_s
    prompts = users * problem.goal.prompt_rows_per_token
    prices = [fixed + rows * row for fixed, row in zip(problem.fixed_s, problem.row_s, strict=True)]
    times = [
        (bound_s - (groups + prompts / SPAN_TOKENS) * node.step_fixed_s)
        / (groups * price + prompts * prefill)
        for node, price, prefill in zip(problem.nodes, prices, problem.prefill_s, strict=True)
    ]
    rooms = [
        max(0, min(memory, int(min(time, memory))))
        for memory, time in zip(memory_rooms(problem, users), times, strict=True)
    ]
    return Recipe(rooms, prices, rows, users)


def memory_rooms(problem: Problem, users: int) -> list[int]:
    """Layers that fit beside so many users, all layers being as the mean one."""
    layer = problem.bytes_before[-1] / problem.layers
    return [
        min(problem.layers, int(node.memory_bytes / (layer + users * kv_bytes)))
        for node, kv_bytes in zip(problem.nodes, problem.user_bytes, strict=True)
    ]


def grow(problem: Problem, recipe: Recipe, pool: Iterable[int], seed: int = 0) -> Order | None:
    """A ring of nodes of `pool` whose rooms add up to all layers; None when they do not.

    It begins with the node that is the `seed`-th best.
    """
    costs = PairCosts(problem, recipe.rows)
    free = [node for node in pool if recipe.rooms[node] >= 1]
    roomy = [node for node in free if recipe.rooms[node] >= problem.together_max]
    if not roomy or sum([recipe.rooms[node] for node in free]) < problem.layers:
        return None
    near = _nearest(problem, free)
    order: Order = ()
    left = problem.layers
    while left > 0:
        able = free if order else roomy  # Who takes the layers that stay together comes first.
        ranked = sorted(able, key=lambda node: _seconds(problem, recipe, near, left, node))
        chosen = ranked[seed % len(ranked)] if not order else ranked[0]
        free.remove(chosen)
        left -= recipe.rooms[chosen]
        others = insertions(costs, order, chosen) if order else [(chosen,)]
        order = min(others, key=costs.round_s)
        near = {
            node: min(near[node] if len(order) > 1 else inf, problem.delay_s[chosen][node])
            for node in free
        }
    return order


def _nearest(problem: Problem, free: list[int]) -> dict[int, float]:
    """Delay from each of them to the nearest other one."""
    there = set(free)
    return {
        node: next(
            (problem.delay_s[node][other] for other in problem.nearest[node] if other in there), 0.0
        )
        for node in free
    }


def _seconds(
    problem: Problem, recipe: Recipe, near: dict[int, float], left: int, node: int
) -> float:
    """Seconds of a trip for each layer that the node would bring."""
    once_s = near[node] + problem.nodes[node].step_fixed_s
    return recipe.prices[node] + once_s / min(left, recipe.rooms[node])
