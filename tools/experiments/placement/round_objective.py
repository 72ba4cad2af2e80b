"""One user's round trip and a weight on the slowest stage, as a linear objective of a placement.

A solver can be asked for its optimum, which lets the very search that ships be judged.

`slowest_weighed` puts a price on the slowest stage: whatever the optimum is, its slowest stage
takes one of the times that a node can take with n layers. For each of these as a limit, the
cheapest split is found by `fill`; the best sum is the optimum. Limits are tried from the lowest
that has a split, until the limit alone costs more than the best found.
"""

from collections.abc import Sequence
from math import inf

from molink_scheduler.placement.grow import Recipe, memory_rooms
from molink_scheduler.placement.objective import GAIN_MIN, Objective, PlacedRing, Score
from molink_scheduler.placement.problem import Order, OrderCosts, Problem
from molink_scheduler.placement.split import ROUNDING, Counts, fill

__all__ = ["RoundObjective", "recipes_for_round", "slowest_weighed"]

LIMITS = (1.0, 0.5, 0.3, 0.2, 0.12, 0.07, 0.04)
"""Shares of the fastest node's time for all layers that the slowest stage may take."""


class RoundObjective(Objective):
    """Judge of rings by one user's round trip and a weight on the slowest stage."""

    def __init__(self, problem: Problem, weight: float) -> None:
        """Raises ValueError for a model whose layers differ."""
        if not problem.uniform:
            raise ValueError("the round objective takes layers that are all alike")
        super().__init__(problem)
        self.weight = weight

    def judge(self, order: Order, above: Score) -> PlacedRing | None:
        """Compute the best split of a ring, if it beats `above`."""
        problem, ring = self.problem, OrderCosts(self.problem, order)
        self.effort += len(order)
        kv_bytes = problem.goal.context_tokens * problem.model.kv_bytes
        each = problem.model.layer_bytes[0] + kv_bytes
        rooms = [min(problem.layers, memory // each) for memory in ring.memory_bytes]
        prices = [problem.fixed_s[i] + problem.row_s[i] for i in order]
        rest_s = ring.delay_s + ring.wire_s + ring.step_s
        below = inf if above.users < 0 else above.cost * (1 - GAIN_MIN) - rest_s
        split = slowest_weighed(prices, rooms, problem.layers, self.weight, below)
        if split is None:
            return None
        return PlacedRing(order, Score(0, rest_s + split[0]), 1, split[1])


def recipes_for_round(problem: Problem) -> list[Recipe]:
    """For one user, with several limits on the slowest stage."""
    prices = [fixed + row for fixed, row in zip(problem.fixed_s, problem.row_s, strict=True)]
    memory, most_s = memory_rooms(problem, 1), problem.layers * min(prices, default=0.0)
    recipes = []
    for share in LIMITS:
        rooms = [
            max(0, min(room, int(min(room, share * most_s / price))))
            for room, price in zip(memory, prices, strict=True)
        ]
        recipes.append(Recipe(rooms, prices, 1, 1))
    return [recipe for recipe in recipes if sum(recipe.rooms) >= problem.layers]


def slowest_weighed(
    prices: Sequence[float], rooms: Sequence[int], layers: int, weight: float, below: float = inf
) -> tuple[float, Counts] | None:
    """The split of equal layers with the least sum of n x price plus weight x the largest of them,
    and that cost; None when nothing costs less than `below`."""
    free = fill(prices, rooms, layers)
    if free is None:
        return None
    least = _total(prices, free)
    rate = sum(1 / max(price, 1e-12) for price in prices)
    best: tuple[float, Counts] | None = None
    for limit in _limits(prices, rooms, layers, max(max(prices), layers / rate)):
        if least + weight * limit >= below * (1 - ROUNDING):
            break
        within = [
            min(room, int(limit / max(price, 1e-12) * (1 + ROUNDING)))
            for room, price in zip(rooms, prices, strict=True)
        ]
        counts = fill(prices, within, layers)
        if counts is None:
            continue
        slowest = max(n * price for n, price in zip(counts, prices, strict=True))
        cost = _total(prices, counts) + weight * slowest
        if cost < below:
            best, below = (cost, counts), cost
    return best


def _limits(
    prices: Sequence[float], rooms: Sequence[int], layers: int, least: float
) -> list[float]:
    """Times that a stage can take, from the least that the slowest one can."""
    times = {
        n * price
        for price, room in zip(prices, rooms, strict=True)
        for n in range(1, min(room, layers) + 1)
    }
    return sorted(time for time in times if time >= least * (1 - ROUNDING))


def _total(prices: Sequence[float], counts: Counts) -> float:
    return sum(n * price for n, price in zip(counts, prices, strict=True))
