"""Nodes that a plan leaves free so that they can take another's place."""

import pytest

from molink_scheduler.placement import Plan, Shortage
from molink_scheduler.placement.question import PlacementQuestion
from molink_scheduler.placement.reserve import HELD_BACK
from tests.scheduler.placement.test_plan import GOAL, MODEL, NETWORK, node


def answer(*nodes, standbys, split="planned"):
    return PlacementQuestion.of(MODEL, nodes, NETWORK, GOAL, split, standbys).answer()


@pytest.mark.parametrize("split", ["planned", "even"])
def test_as_many_nodes_are_left_free_as_are_wanted(split):
    nodes = [node(f"n{number}", 6) for number in range(6)]
    plans = {wanted: answer(*nodes, standbys=wanted, split=split) for wanted in range(3)}
    assert len(plans[0].layers_of) == 6 and not plans[0].standbys
    for wanted, plan in plans.items():
        left = {one.node_id for one in plan.standbys}
        assert len(left) >= wanted and len(left | set(plan.layers_of)) == 6
        assert not left & set(plan.layers_of)
    assert [one.reason for one in plans[1].standbys].count(HELD_BACK) == 1


def test_the_one_without_which_the_others_serve_most_is_held_back():
    nodes = [node(f"n{number}", 6, layer_ms=40.0 if number == 1 else 2.0) for number in range(4)]
    plan = answer(*nodes, standbys=1, split="even")
    assert [one.node_id for one in plan.standbys] == ["n1"]


def test_nobody_is_held_back_whom_the_others_need():
    plan = answer(*(node(f"n{number}", 4) for number in range(4)), standbys=1)
    assert isinstance(plan, Plan) and len(plan.layers_of) == 4 and not plan.standbys


def test_who_is_left_over_anyway_is_reserve_enough_if_it_could_hold_a_stage():
    large = [node(f"n{number}", 6) for number in range(2)]
    slow, small = node("slow", 6, layer_ms=2000.0), node("small", 0.5)
    plan = answer(*large, slow, standbys=1)
    assert [one.node_id for one in plan.standbys] == ["slow"]
    assert plan.standbys[0].reason != HELD_BACK
    more = [node(f"m{number}", 6) for number in range(3)]
    held = [one for one in answer(*more, small, standbys=1).standbys if one.reason == HELD_BACK]
    assert [one.node_id[0] for one in held] == ["m"], "what is too small stands in for nobody"


def test_a_shortage_stays_one():
    assert isinstance(answer(node("a", 2), standbys=3), Shortage)
