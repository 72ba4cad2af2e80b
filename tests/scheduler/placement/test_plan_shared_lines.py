"""Devices of one PC: near to each other, and with one line between them."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import (
    Goal,
    LinkFacts,
    Network,
    NodeFacts,
    Plan,
    make_plan,
    plan_on_shared_lines,
)
from molink_scheduler.placement.facts import WITHIN_PC
from molink_scheduler.placement.plan import PASSES_MAX, even_plan, senders_of
from molink_scheduler.placement.problem import Problem
from molink_scheduler.placement.question import PlacementQuestion

MB = 10**6
MODEL = ModelCost((100 * MB,) * 8, kv_bytes=4096, row_bytes=8192)
NETWORK = Network(default=LinkFacts(100 * MB, 0.01))
GOAL = Goal(tpot_s=0.25)


def node(name: str, pc: str, upload: float = 2.5 * MB, memory: int = 600 * MB) -> NodeFacts:
    return NodeFacts(name, memory, 1e-3, 1e-5, 1e-4, upload_bytes_per_s=upload, pc=pc)


def planned(nodes, network=NETWORK):
    """The plan, and the uploads with which each pass was made."""
    passes = []

    def make(them):
        passes.append({one.id: one.upload_bytes_per_s for one in them})
        return make_plan(MODEL, them, network, GOAL)

    return plan_on_shared_lines(nodes, make), passes


def test_between_devices_of_a_pc_the_line_does_not_count():
    first, second, other = node("a1", "a"), node("a2", "a"), node("b", "")
    measured = Network({("a1", "a2"): LinkFacts(900 * MB, 1e-4)})
    assert measured.link(first, second) == LinkFacts(900 * MB, 1e-4)
    assert measured.link(second, first).one_way_s < 1e-3
    assert measured.link(first, other).rate_bytes_per_s == 2.5 * MB
    assert measured.link(other, other) == Network().link(other, other)


def test_a_ring_within_a_pc_uses_no_line_and_is_planned_once():
    plan, passes = planned([node("a1", "a"), node("a2", "a")])
    assert senders_of(plan, {"a1": "a", "a2": "a"}) == {}
    assert len(passes) == 1
    apart, _ = planned([node("a1", ""), node("a2", "")])
    assert plan.users == apart.users and plan.ttft_s < apart.ttft_s


def test_devices_of_a_pc_stand_next_to_each_other_and_one_of_them_has_the_line():
    nodes = [node("a1", "a"), node("b", "", memory=300 * MB), node("a2", "a")]
    plan, passes = planned(nodes, Network(default=LinkFacts(100 * MB, 0.001)))
    pc_of = {one.id: one.pc for one in nodes}
    assert all(count == 1 for count in senders_of(plan, pc_of).values())
    assert passes[-1]["a1"] == 2.5 * MB


def test_two_rings_out_of_one_pc_share_its_line():
    """Small devices, far apart but for each card's own friend."""
    nodes = [node("a1", "a"), node("a2", "a"), node("b1", ""), node("b2", "")]
    near, far = LinkFacts(100 * MB, 0.001), LinkFacts(100 * MB, 0.2)
    friends = {frozenset(("a1", "b1")), frozenset(("a2", "b2"))}
    links = {
        (x.id, y.id): near if frozenset((x.id, y.id)) in friends else far
        for x in nodes
        for y in nodes
        if x is not y
    }
    plan, passes = planned(nodes, Network(links))
    assert senders_of(plan, {one.id: one.pc for one in nodes})["a"] == 2
    assert len(plan.rings) == 2 and len(passes) == 2
    assert passes[-1] == {"a1": 1.25 * MB, "a2": 1.25 * MB, "b1": 2.5 * MB, "b2": 2.5 * MB}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.integers(150, 900))
def test_no_line_is_promised_twice(pcs, memory):
    nodes = [node(f"{pc}{n}", pc, memory=memory * MB) for n, pc in enumerate(pcs)]
    plan, passes = planned(nodes)
    assert len(passes) <= PASSES_MAX
    if isinstance(plan, Plan):
        shares = {one.pc: round(2.5 * MB / passes[-1][one.id]) for one in nodes}
        senders = senders_of(plan, {one.id: one.pc for one in nodes})
        assert all(count <= shares[pc] for pc, count in senders.items())


def test_a_search_takes_devices_that_were_not_measured_for_near():
    nodes = [node("a1", "a"), node("b", ""), node("a2", "a")]
    problem = Problem(MODEL, nodes, NETWORK, GOAL)
    assert problem.nearest[0] == [2, 1]
    assert problem.delay_s[0][2] == problem.delay_s[2][0] == WITHIN_PC.one_way_s
    assert problem.wire_row_s[0][2] < problem.wire_row_s[0][1]


def test_a_question_is_answered_on_shared_lines():
    """By an even split in this order both devices of a send out, each with half of the line."""
    nodes = (node("a1", "a"), node("b", ""), node("a2", "a"), node("c", ""))
    asked = PlacementQuestion.of(MODEL, nodes, NETWORK, GOAL, "even")
    halves = [replace(one, upload_bytes_per_s=1.25 * MB) if one.pc == "a" else one for one in nodes]
    assert asked.answer() == even_plan(MODEL, halves, NETWORK, GOAL)
    assert asked.answer() != even_plan(MODEL, nodes, NETWORK, GOAL)
