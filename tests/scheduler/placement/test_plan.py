"""Whole plans: who is left over and why, what is missing, and nodes that lie."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import (
    Goal,
    LinkFacts,
    Network,
    NodeFacts,
    Plan,
    Shortage,
    forecast,
    make_plan,
)
from tests.scheduler.placement.clusters import GIB, home_cluster

MODEL = ModelCost((GIB,) * 8, kv_bytes=4096, row_bytes=8192, head_bytes=GIB, tail_bytes=GIB)
NETWORK = Network(default=LinkFacts(12.5e6, 0.01))
GOAL = Goal(tpot_s=0.2)


def node(name, gib, layer_ms=2.0, **more):
    layer_s = layer_ms / 1e3
    return NodeFacts(name, int(gib * GIB), layer_s, layer_s / 50, layer_s / 50, **more)


def planned(*nodes, goal=GOAL, network=NETWORK, rings_max=None):
    found = make_plan(MODEL, nodes, network, goal, rings_max)
    assert isinstance(found, Plan)
    return found


def reasons(plan):
    return {standby.node_id: standby.reason for standby in plan.standbys}


def test_every_layer_has_one_place_in_each_ring():
    plan = planned(*(node(f"n{number}", 6) for number in range(6)))
    assert len(plan.rings) == 2
    for ring in plan.rings:
        ends = [stage.layers for stage in ring.stages]
        assert ends[0][0] == 0 and ends[-1][1] == 8
        assert all(a[1] == b[0] for a, b in pairwise(ends))
    names = [stage.node_id for ring in plan.rings for stage in ring.stages]
    assert len(set(names)) == len(names) == len(plan.layers_of)


def test_as_many_rings_as_asked_for_at_most():
    nodes = [node(f"n{number}", 12) for number in range(6)]
    assert len(planned(*nodes).rings) == 6
    assert [len(planned(*nodes, rings_max=limit).rings) for limit in (1, 2)] == [1, 2]


def test_a_plan_is_never_worse_than_an_even_split():
    nodes = [node("a", 3.5, 4), node("b", 6, 2), node("c", 9, 1)]
    plan = planned(*nodes, rings_max=1)
    even = forecast(MODEL, nodes, [2, 3, 3], NETWORK, GOAL)
    assert plan.users > even.users > 0


def test_the_slowest_upload_comes_last():
    slow = node("slow", 6, upload_bytes_per_s=125_000)
    plan = planned(slow, node("b", 6), node("c", 3.1))
    assert plan.rings[0].stages[-1].node_id == "slow"


def test_too_little_memory_for_a_layer():
    plan = planned(node("big", 12), node("tiny", 0.5))
    assert reasons(plan) == {
        "tiny": "lends too little memory for one layer and the KV of one user "
        "(0.50 GiB, 1.01 GiB are needed)"
    }


def test_a_node_that_would_slow_everyone_waits():
    plan = planned(node("big", 20), node("slow", 6, layer_ms=60.0))
    users = plan.users
    assert users > 10 and set(reasons(plan)) == {"slow"}
    told = re.fullmatch(
        r"would lengthen every token by 80 ms and cost (\d+) of (\d+) users",
        reasons(plan)["slow"],
    )
    assert told and int(told[2]) == users > int(told[1]) > 0


def test_a_standby_says_how_much_it_would_lengthen_a_token():
    """One layer takes the node 32 ms longer; a hop of 10 ms there, and one back."""
    goal = replace(GOAL, kv_tokens_max=4096)
    plan = planned(node("big", 20), node("slow", 6, layer_ms=34.0), goal=goal)
    assert plan.rings[0].users == 2
    assert reasons(plan) == {"slow": "would lengthen every token by 53 ms and add no users"}


def test_no_user_within_the_bound_is_still_a_plan():
    plan = planned(node("a", 6), node("b", 6), goal=replace(GOAL, tpot_s=0.01))
    (ring,) = plan.rings
    assert plan.users == 0 and ring.tpot_alone_s > 0.01
    assert "of a lonely token's" in ring.bottleneck


@pytest.mark.parametrize("many", [False, True])
def test_a_model_that_does_not_fit_says_what_is_missing(many):
    """Tables take 1 GiB of each end; a layer and its user's KV take 1.0078 GiB."""
    nodes = [node(f"n{number}", 0.9) for number in range(20)] if many else []
    found = make_plan(MODEL, [node("a", 4), node("b", 3.5), *nodes], NETWORK, GOAL)
    assert isinstance(found, Shortage)
    assert found.layers == 4
    assert found.bytes == 4 * (GIB + 2048 * 4096)
    assert "of 8 layers 4 find room" in found.sentence
    assert "4.0 GiB more are needed for the other 4" in found.sentence


def test_nobody_lends_anything():
    found = make_plan(MODEL, [], NETWORK, GOAL)
    assert isinstance(found, Shortage) and found.layers == 8
    assert found.sentence.startswith("no PC lends anything")


def test_a_model_that_just_fits_is_placed():
    """Whoever has the odd bytes must be an end, else a layer finds no room."""
    each = GIB + 2048 * 4096
    nodes = [
        NodeFacts(f"n{number}", size, 1e-3, 1e-5, 1e-5)
        for number, size in enumerate([2 * each, 2 * each + GIB, 2 * each, 2 * each + GIB] * 1)
    ]
    plan = planned(*nodes)
    assert {plan.rings[0].stages[0].node_id, plan.rings[0].stages[-1].node_id} == {"n1", "n3"}
    short = replace(nodes[3], memory_bytes=nodes[3].memory_bytes - 1)
    assert isinstance(make_plan(MODEL, [*nodes[:3], short], NETWORK, GOAL), Shortage)


def test_two_nodes_with_one_id_are_refused():
    with pytest.raises(ValueError, match="same id"):
        make_plan(MODEL, [node("a", 9), node("a", 9)], NETWORK, GOAL)


def test_standbys_of_a_large_cluster_have_reasons():
    problem = home_cluster(1, 40, layers=80)
    plan = make_plan(problem.model, problem.nodes, problem.network, problem.goal, 2, 20_000)
    assert isinstance(plan, Plan) and len(plan.standbys) > 20
    assert all(1 < len(standby.reason) < 200 for standby in plan.standbys)


NUMBERS = st.one_of(
    st.just(float("nan")),
    st.just(float("inf")),
    st.sampled_from([0.0, -1.0, 1e-300, 1e300, 1e-3, 1.0]),
    st.floats(allow_nan=True, allow_infinity=True),
)


@st.composite
def liars(draw):
    count = draw(st.integers(0, 9))
    nodes = [NodeFacts(f"n{i}", *(draw(NUMBERS) for _ in range(8))) for i in range(count)]
    links = {
        (a.id, b.id): LinkFacts(draw(NUMBERS), draw(NUMBERS))
        for a in nodes
        for b in nodes
        if a is not b and draw(st.booleans())
    }
    return nodes, Network(links)


@settings(max_examples=60, deadline=None)
@given(liars(), st.integers(1, 4), st.booleans())
def test_lies_make_a_plan_or_a_shortage(case, layers, mixed):
    nodes, network = case
    sizes = tuple(100 + 50 * (mixed and n % 2) for n in range(layers))
    model = ModelCost(sizes, 1, 100, 10, 10, layer_work=tuple(s / 100 for s in sizes))
    found = make_plan(model, nodes, network, Goal(context_tokens=10), effort_max=3_000)
    if isinstance(found, Plan):
        assert found.rings and all(0 < ring.tpot_s < 1e9 for ring in found.rings)
        assert len(found.layers_of) + len(found.standbys) == len(nodes)
    else:
        assert found.sentence
