"""How long does a placement take, and how far is it from what cannot be exceeded?

    python -m tools.experiments.placement.placement_speed --out DIR

Three parts. *Homes*: whole plans of clusters of home PCs, as a coordinator asks for them, with the
users that they serve and the bound of `bound`. *Flow*: the same with a lax bound on the
time per token and no tables, where a plain flow is a fair measure. *Solver*: the linear objective
against HiGHS, which proves an optimum; needs scipy.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from molink_scheduler.placement import Goal, Plan, make_plan
from molink_scheduler.placement.problem import Problem
from molink_scheduler.placement.search import local_search
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.placement.bound import users_bound
from tools.experiments.placement.placement_clusters import home_cluster, round_cluster
from tools.experiments.placement.round_objective import RoundObjective, recipes_for_round
from tools.experiments.placement.round_optimum import round_optimum

__all__ = ["main"]

HOME_SIZES = (10, 20, 30, 50, 100)
HOME_LAYERS = (32, 80)
FLOW_SIZES = (10, 20, 30, 40, 50)
FLOW_TPOT_S = 1.0
SOLVER_CASES = ((10, 10), (30, 5))
"""Nodes, and how many seeds."""

WEIGHT = 5.0
"""Micro-batches that wait for the slowest stage, about."""

SAME = 1e-6
"""Share by which a float sum and the solver's tolerance may differ."""

Row = dict[str, Any]


@experiment
@click.option("--seeds", default=3, show_default=True, help="Clusters of each kind.")
@click.option("--solver/--no-solver", default=True, show_default=True, help="Ask HiGHS, too.")
def main(out: Path, seeds: int, solver: bool) -> None:
    """Time placements of random clusters and measure their distance from bounds and optima."""
    report = {"homes": _homes(seeds), "flow": _flow(seeds)}
    if solver:
        report["solver"] = [row for case in SOLVER_CASES for row in _solved(*case)]
    for title, rows in report.items():
        cells = [[_shown(value) for value in row.values()] for row in rows]
        show(f"{title}\n\n{markdown_table(list(rows[0]), cells)}")
    write_report(out, "placement", report)


def _homes(seeds: int) -> list[Row]:
    rows = []
    for layers in HOME_LAYERS:
        for nodes in HOME_SIZES:
            problems = [home_cluster(seed, nodes, layers) for seed in range(1, seeds + 1)]
            rows.append({"layers": layers, "nodes": nodes, **_planned(problems, tolls=True)})
    return rows


def _flow(seeds: int) -> list[Row]:
    goal, rows = Goal(tpot_s=FLOW_TPOT_S), []
    for nodes in FLOW_SIZES:
        problems = [
            home_cluster(seed, nodes, 32, goal, table_bytes=0) for seed in range(1, seeds + 1)
        ]
        rows.append({"layers": 32, "nodes": nodes, **_planned(problems, tolls=False)})
    return rows


def _planned(problems: Sequence[Problem], *, tolls: bool) -> Row:
    wall_s, cpu_s, gaps, users, rings = [], [], [], [], []
    for problem in problems:
        began, cpu_began = time.perf_counter(), time.process_time()
        plan = make_plan(problem.model, problem.nodes, problem.network, problem.goal)
        wall_s.append(time.perf_counter() - began)
        cpu_s.append(time.process_time() - cpu_began)
        served = plan.users if isinstance(plan, Plan) else 0
        rings.append(len(plan.rings) if isinstance(plan, Plan) else 0)
        bound = users_bound(problem, tolls=tolls)
        users.append(served)
        gaps.append(1 - served / bound if bound else 0.0)
    return {
        "cpu_s_max": round(max(cpu_s), 2),
        "wall_s_max": round(max(wall_s), 2),
        "rings": rings,
        "users": users,
        "gap_percent": [round(100 * gap, 1) for gap in gaps],
    }


def _solved(nodes: int, seeds: int) -> list[Row]:
    equal, worst, search_s, solver_s = 0, 0.0, [], []
    for seed in range(1, seeds + 1):
        problem = round_cluster(seed, nodes)
        objective = RoundObjective(problem, WEIGHT)
        began = time.perf_counter()
        (ring,) = local_search(objective, recipes_for_round(problem), 1)
        search_s.append(time.perf_counter() - began)
        began = time.perf_counter()
        proven = round_optimum(problem, WEIGHT)
        solver_s.append(time.perf_counter() - began)
        if proven is not None:
            above = ring.score.cost / proven - 1
            equal, worst = equal + (above < SAME), max(worst, above)
    row = {"nodes": nodes, "seeds": seeds, "equal": equal, "worst_percent": round(100 * worst, 4)}
    row |= {"search_s_max": round(max(search_s), 2), "solver_s_max": round(max(solver_s), 2)}
    return [row]


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    main()
