"""The least round trip plus weight x slowest stage, proven by a solver (HiGHS, through scipy).

What the search of `molink_scheduler.placement` is measured against where its objective is linear.
Variables: for each node whether it is used and how many layers it has, for each ordered pair
whether it is a link, and the slowest stage's time. The links make circles; that they are one circle
a flow ensures: the used node with the smallest number is its source, and every other used node
keeps one unit of it.

scipy comes with the extra `test`; nothing that ships needs it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from molink_scheduler.placement.problem import Problem

__all__ = ["round_optimum"]

Term = tuple[int, float]
"""A variable's number and its factor."""

Vector = NDArray[np.float64]
"""A number for each variable."""


@dataclass(slots=True)
class _Rows:
    """Constraints, one after the other."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: Iterable[Term], low: float, high: float) -> None:
        """low <= sum of the terms <= high."""
        for column, value in terms:
            self.rows.append(len(self.low))
            self.columns.append(column)
            self.values.append(value)
        self.low.append(low)
        self.high.append(high)


class _Variables:
    """Where each kind of them begins."""

    def __init__(self, nodes: int) -> None:
        self.arcs = [(i, j) for i in range(nodes) for j in range(nodes) if i != j]
        self.used, self.has, self.source, self.link = 0, nodes, 2 * nodes, 3 * nodes
        self.flow = self.link + len(self.arcs)
        self.slowest = self.flow + len(self.arcs)
        self.count = self.slowest + 1


def round_optimum(
    problem: Problem, weight: float, at_most: float = inf, limit_s: float = 60.0
) -> float | None:
    """Seconds; None if there is no ring below `at_most`, or none was proven best within `limit_s`.

    Knowing that there is one with `at_most` only shortens the proof. For equal layers, without
    tables and wires, and rings of two nodes or more.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    v, room = _Variables(len(problem.nodes)), _rooms(problem)
    price = [a + b for a, b in zip(problem.fixed_s, problem.row_s, strict=True)]
    cost = _cost(problem, weight, price, v)
    rows = _constraints(problem.layers, price, room, v)
    rows.add([(int(column), cost[column]) for column in np.flatnonzero(cost)], -inf, at_most)
    matrix = coo_array((rows.values, (rows.rows, rows.columns)), shape=(len(rows.low), v.count))
    top, whole = _limits(room, v)
    found: Any = milp(
        cost,
        constraints=LinearConstraint(matrix.tocsr(), rows.low, rows.high),
        bounds=Bounds(np.zeros(v.count), top),
        integrality=whole,
        options={"time_limit": limit_s, "mip_rel_gap": 0.0},
    )
    return float(found.fun) if found.status == 0 else None


def _cost(problem: Problem, weight: float, price: list[float], v: _Variables) -> Vector:
    """Of one of each variable, in seconds."""
    cost = np.zeros(v.count)
    cost[v.has : v.has + len(price)] = price
    cost[v.link : v.flow] = [problem.delay_s[i][j] for i, j in v.arcs]
    cost[v.slowest] = weight
    return cost


def _limits(room: list[int], v: _Variables) -> tuple[Vector, Vector]:
    """The most of each variable, and 1 where it is a whole number."""
    top, whole = np.ones(v.count), np.ones(v.count)
    top[v.has : v.has + len(room)] = room
    top[v.flow : v.slowest], top[v.slowest] = len(room), inf
    whole[v.flow :] = 0
    return top, whole


def _rooms(problem: Problem) -> list[int]:
    each = problem.model.layer_bytes[0] + problem.goal.context_tokens * problem.model.kv_bytes
    return [min(problem.layers, node.memory_bytes // each) for node in problem.nodes]


def _constraints(layers: int, price: list[float], room: list[int], v: _Variables) -> _Rows:
    nodes, rows = range(len(price)), _Rows()
    out: list[list[int]] = [[] for _ in nodes]
    into: list[list[int]] = [[] for _ in nodes]
    for arc, (i, j) in enumerate(v.arcs):
        out[i].append(arc)
        into[j].append(arc)
        rows.add([(v.flow + arc, 1), (v.link + arc, -len(price))], -inf, 0)
    rows.add([(v.has + i, 1) for i in nodes], layers, layers)
    rows.add([(v.source + i, 1) for i in nodes], 1, 1)
    for i in nodes:
        used = (v.used + i, -1.0)
        rows.add([(v.has + i, 1), (v.used + i, -room[i])], -inf, 0)
        rows.add([(v.has + i, 1), used], 0, inf)
        rows.add([(v.has + i, price[i]), (v.slowest, -1)], -inf, 0)
        rows.add([*((v.link + arc, 1.0) for arc in out[i]), used], 0, 0)
        rows.add([*((v.link + arc, 1.0) for arc in into[i]), used], 0, 0)
        kept = [(v.flow + arc, 1.0) for arc in into[i]] + [(v.flow + arc, -1.0) for arc in out[i]]
        rows.add([*kept, used, (v.source + i, len(price))], 0, inf)
        rows.add([(v.source + i, 1), used], -inf, 0)
        rows.add([(v.used + i, 1), *((v.source + j, -1) for j in range(i + 1))], -inf, 0)
    return rows
