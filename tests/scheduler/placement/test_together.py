"""Layers that stay together: no planner parts them, and none loses users to a worse plan."""

from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import Goal, Network, Plan, Shortage, even_plan, forecast
from molink_scheduler.placement.grow import recipes_for_users
from molink_scheduler.placement.objective import Objective
from molink_scheduler.placement.plan import make_plan
from molink_scheduler.placement.problem import Problem
from molink_scheduler.placement.search import local_search
from molink_scheduler.placement.split import contiguous, even
from tests.scheduler.placement.clusters import small_cluster
from tests.scheduler.placement.oracles import best_of_rings, splits
from tests.scheduler.placement.test_plan import GIB, GOAL, NETWORK, node

RUNS = {
    "at the end": ((2, 6),),
    "in front": ((0, 3),),
    "two": ((0, 2), (3, 5)),
    "everything": ((0, 6),),
}
ANY_RUN = st.sampled_from([((2, 6),), ((0, 3),), ((0, 2), (3, 5)), ((1, 3), (3, 6)), ((0, 6),)])


def tied(problem, together, *, everywhere=False):
    model = problem.model
    fields = {
        name: getattr(model, name) for name in ("kv_bytes", "row_bytes", "tied", "layer_work")
    }
    ends = {"head_bytes": model.head_bytes, "tail_bytes": model.tail_bytes}
    cost = ModelCost(
        model.layer_bytes, **fields, **ends, together=together, embeds_everywhere=everywhere
    )
    return Problem(cost, problem.nodes, problem.network, problem.goal)


def is_whole(model, counts):
    return all(model.may_end[end] for end in accumulate(counts))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), ANY_RUN, st.booleans())
def test_no_planner_parts_them(seed, nodes, together, everywhere):
    problem = tied(small_cluster(seed, nodes, 6), together, everywhere=everywhere)
    facts = (problem.model, problem.nodes, problem.network, problem.goal)
    objective = Objective(problem)
    searched = local_search(objective, recipes_for_users(problem), None, 2_000)
    assert all(is_whole(problem.model, ring.counts) for ring in searched)
    for found in (make_plan(*facts, effort_max=2_000), even_plan(*facts)):
        if isinstance(found, Shortage):
            assert found.sentence
            continue
        for ring in found.rings:
            ends = {stage.layers[1] for stage in ring.stages}
            assert all(problem.model.may_end[end] for end in ends)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("seed", range(6))
def test_nobody_serves_more_users_with_a_handful_of_nodes(seed, runs, monkeypatch):
    problem = tied(small_cluster(seed, 4, 6), RUNS[runs], everywhere=seed % 2 == 1)
    allowed = [one for n in range(1, 7) for one in splits(6, n) if is_whole(problem.model, one)]
    monkeypatch.setattr(
        "tests.scheduler.placement.oracles.splits",
        lambda layers, stages: [one for one in allowed if len(one) == stages],
    )
    _, several = best_of_rings(problem)
    found = make_plan(problem.model, problem.nodes, problem.network, problem.goal)
    assert (found.users if isinstance(found, Plan) else 0) == several


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(1, 5), st.data())
def test_equal_shares_are_as_equal_as_can_be(layers, stages, data):
    may_end = (True, *(data.draw(st.booleans()) for _ in range(layers - 1)), True)
    ways = [one for one in splits(layers, stages) if all(may_end[n] for n in accumulate(one))]
    found = even(layers, stages, may_end)
    if found is None:
        assert not ways
        return
    assert found in ways
    assert sum(n * n for n in found) == min(sum(n * n for n in one) for one in ways)


@pytest.mark.parametrize("seed", range(30))
def test_the_cheapest_split_among_those_that_part_nothing(seed):
    r = Random(seed)
    sizes = [r.choice([2, 3, 5]) for _ in range(7)]
    before, stages = [0, *accumulate(sizes)], r.randint(1, 4)
    may_end = [True, *(r.random() < 0.6 for _ in range(6)), True]
    prices = [float(r.randint(1, 9)) for _ in range(stages)]
    most = [r.randint(4, 30) for _ in range(stages)]
    found = contiguous(prices, most, most, before, before, may_end)
    costs = {
        one: sum(
            price * (before[end] - before[end - n])
            for price, n, end in zip(prices, one, accumulate(one), strict=True)
        )
        for one in splits(7, stages)
        if all(may_end[end] for end in accumulate(one))
        and all(
            before[end] - before[end - n] <= limit
            for limit, n, end in zip(most, one, accumulate(one), strict=True)
        )
    }
    assert (found is None) == (not costs)
    if found is not None:
        assert costs[found] == min(costs.values())


def test_many_nodes_find_the_one_that_takes_them():
    """Of twelve PCs one has room for the five last layers; it becomes the tail."""
    model = ModelCost((GIB,) * 8, 4096, 8192, together=((3, 8),))
    nodes = [node(f"n{number}", 2) for number in range(11)] + [node("large", 6)]
    found = make_plan(model, nodes, NETWORK, GOAL)
    assert isinstance(found, Plan) and found.layers_of["large"] == (3, 8)


def test_a_shortage_says_which_layers_need_one_pc():
    model = ModelCost((GIB,) * 8, 4096, 8192, together=((3, 8),))
    found = make_plan(model, [node("a", 4), node("b", 4), node("c", 4)], NETWORK, GOAL)
    assert isinstance(found, Shortage) and found.layers == 0 and found.bytes > 0
    assert found.sentence.startswith("layers 3 to 7 of 8 stay on one PC and take 5.0 GiB")


def test_every_stage_counts_the_embedding_table():
    model = ModelCost((GIB,) * 4, 4096, 8192, GIB, GIB + 5, tied=True, embeds_everywhere=True)
    assert [model.stage_bytes(*one) for one in ((0, 2), (1, 3), (2, 4), (0, 4))] == [
        3 * GIB,
        3 * GIB,
        3 * GIB + 5,
        5 * GIB + 5,
    ]
    each = ModelCost((GIB,) * 4, 4096, 8192, GIB, embeds_everywhere=True, each_file_bytes=7)
    assert each.fetched_bytes(1, 3) == 3 * GIB + 7
    plan = make_plan(model, [node("a", 4), node("b", 4)], NETWORK, GOAL)
    assert isinstance(plan, Plan) and len(plan.rings[0].stages) == 2
    assert isinstance(make_plan(model, [node("a", 2.9), node("b", 3.9)], NETWORK, GOAL), Shortage)


def test_a_forecast_refuses_a_ring_that_parts_them():
    model = ModelCost((GIB,) * 4, 4096, 8192, together=((1, 4),))
    with pytest.raises(ValueError, match="stay together"):
        forecast(model, [node("a", 9), node("b", 9)], [2, 2], Network(), Goal())


@pytest.mark.parametrize(
    "together", [((2, 1),), ((0, 5),), ((0, 1),), ((2, 4), (1, 3)), ((-1, 2),)]
)
def test_runs_that_cannot_be_are_refused(together):
    with pytest.raises(ValueError, match="stay together"):
        ModelCost((1,) * 4, 1, 1, together=together)
