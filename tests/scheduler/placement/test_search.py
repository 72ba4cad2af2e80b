"""The search against everything there is, against a solver, and against a bound."""

from functools import cache

import pytest

from molink_scheduler.placement.cluster import total_score
from molink_scheduler.placement.facts import Goal
from molink_scheduler.placement.grow import recipes_for_users
from molink_scheduler.placement.objective import Objective
from molink_scheduler.placement.search import local_search, search
from tests.scheduler.placement.clusters import home_cluster, round_cluster, small_cluster
from tests.scheduler.placement.oracles import best_of_rings, best_of_subsets
from tests.sweeps import swept
from tools.experiments.placement.bound import users_bound
from tools.experiments.placement.round_objective import RoundObjective, recipes_for_round
from tools.experiments.placement.round_optimum import round_optimum

WEIGHT = 5.0

SMALL = [(seed, 4, 6) for seed in range(24)] + [(seed, 5, 5) for seed in range(24, 40)]
LARGER = [(seed, 6, 4) for seed in range(40, 44)] + [(44, 7, 4)]


@cache
def optimum(seed, nodes, layers, mixed=None):
    """Users in one ring, and in several."""
    return best_of_rings(small_cluster(seed, nodes, layers, mixed))


def found_users(problem, rings_max, how=search, effort=10_000):
    objective = Objective(problem)
    rings = how(objective, recipes_for_users(problem), rings_max, effort)
    return max(0, total_score(rings).users)


@pytest.mark.parametrize("seed, nodes, layers", SMALL + LARGER)
def test_nobody_serves_more_users_with_a_handful_of_nodes(seed, nodes, layers):
    problem = small_cluster(seed, nodes, layers)
    one, several = optimum(seed, nodes, layers)
    assert (found_users(problem, 1), found_users(problem, None)) == (one, several)


@pytest.mark.parametrize("seed, nodes, layers", SMALL + LARGER)
def test_the_local_search_finds_the_same_where_layers_are_equal(seed, nodes, layers):
    problem = small_cluster(seed, nodes, layers, mixed=False)
    one, several = optimum(seed, nodes, layers, False)
    assert found_users(problem, 1, local_search) == one
    assert found_users(problem, None, local_search) == several


def test_small_clusters_put_the_search_to_a_test():
    """Most have an answer, and many have more users in several rings than in one."""
    best = [optimum(*case) for case in SMALL]
    assert sum(one > 0 for one, _ in best) >= len(best) // 2
    assert sum(several > one for one, several in best) >= 5


def round_found(problem, effort=60_000):
    objective = RoundObjective(problem, WEIGHT)
    rings = local_search(objective, recipes_for_round(problem), 1, effort)
    return rings[0].score.cost


@pytest.mark.parametrize("seed", swept([1, 2], 2))
def test_a_solver_finds_no_shorter_round_for_ten_nodes(seed):
    problem = round_cluster(seed, 10)
    assert round_found(problem) == pytest.approx(round_optimum(problem, WEIGHT), rel=1e-6)


def test_a_solver_finds_no_shorter_round_for_thirty_nodes():
    problem = round_cluster(2, 30)
    found = round_found(problem)
    proven = round_optimum(problem, WEIGHT, at_most=found * (1 + 1e-6))
    assert found == pytest.approx(proven, rel=1e-6)


def test_the_solver_finds_what_trying_everything_finds():
    """The oracle itself, on a cluster whose rings can all be listed."""
    problem = round_cluster(7, 5, layers=14)
    costs = []

    def note_cost(problem, order, counts):
        rooms = [problem.nodes[node].memory_bytes // 101 for node in order]
        if len(order) > 1 and all(n <= room for n, room in zip(counts, rooms, strict=True)):
            prices = [problem.fixed_s[node] + problem.row_s[node] for node in order]
            steps = [n * price for n, price in zip(counts, prices, strict=True)]
            hops = zip(order, order[1:] + order[:1], strict=True)
            delay = sum(problem.delay_s[a][b] for a, b in hops)
            costs.append(sum(steps) + delay + WEIGHT * max(steps))
        return 0

    best_of_subsets(problem, note_cost)
    assert round_optimum(problem, WEIGHT) == pytest.approx(min(costs), rel=1e-6)


THROUGHPUT = Goal(tpot_s=1.0)
"""A second for each token: memory and devices bind, as in a flow, and hardly a trip."""

FLOW_CASES = [(20, 1), (40, 2)]
MORE_FLOW_CASES = [pytest.param(*case, marks=pytest.mark.sweeps) for case in ((30, 1), (50, 1))]


@pytest.mark.parametrize("nodes, seed", FLOW_CASES + MORE_FLOW_CASES)
def test_within_five_percent_of_what_a_flow_could_carry(nodes, seed):
    problem = home_cluster(seed, nodes, layers=32, goal=THROUGHPUT, table_bytes=0)
    assert found_users(problem, None, effort=200_000) >= 0.95 * users_bound(problem, tolls=False)


@pytest.mark.parametrize("seed, nodes, layers", SMALL)
def test_the_bound_is_one(seed, nodes, layers):
    problem = small_cluster(seed, nodes, layers)
    _, several = optimum(seed, nodes, layers)
    assert several <= users_bound(problem) + 1e-6
    assert users_bound(problem) <= users_bound(problem, tolls=False) + 1e-6


def test_the_same_facts_give_the_same_rings():
    problem = home_cluster(3, 20, layers=80)
    found = [search(Objective(problem), recipes_for_users(problem), None, 20_000) for _ in range(2)]
    assert found[0] == found[1]


def test_effort_bounds_the_search():
    problem = home_cluster(3, 60, layers=80)
    objective = Objective(problem)
    search(objective, recipes_for_users(problem), None, 30_000)
    assert objective.effort < 33_000
