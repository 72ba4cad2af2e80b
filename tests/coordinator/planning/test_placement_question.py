"""From what nodes say to what a placement is asked."""

from dataclasses import replace

import pytest

from molink.config.setting import settings_of
from molink.config.settings import UpSettings
from molink.control.messages.payloads import PathMeasured
from molink.coordinator.nodes.node import Node
from molink.coordinator.planning.model_planner import ModelPlanner, goal_of
from molink.coordinator.planning.placement_facts import FactsMaker
from molink.errors import UserError
from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import Goal
from tests.coordinator.examples import HERE, PROFILE, STEPS, WORK, costs_of

COST = ModelCost((1000,) * 4, kv_bytes=10, row_bytes=64, head_bytes=2000, tail_bytes=3000)
PLANNER = ModelPlanner(FactsMaker(costs_of(COST), 2, "auto"), Goal(context_tokens=16), WORK.weights)


def node(name, **profile):
    path = PathMeasured(to="b" * 16, path="direct", rtt_ms=10, rate_mbps=80)
    told = PROFILE.model_copy(update=profile)
    return Node(name, presence=HERE, profile=told, paths={"b": path}, public_key="k" * 40)


def test_a_node_is_as_fast_as_it_says():
    (facts,) = PLANNER.question([node("a")]).nodes
    assert (facts.id, facts.name) == ("a", "anna")
    assert (facts.decode_fixed_s, facts.decode_row_s) == (0.001, 1e-5)
    assert facts.upload_bytes_per_s == 20e6 / 8


def test_the_output_matrix_is_read_once_in_a_step_unless_it_was_timed():
    """It weighs as much as three layers."""
    (guessed,) = PLANNER.question([node("a")]).nodes
    assert guessed.head_fixed_s == pytest.approx(3 * 0.001)
    assert guessed.head_row_s == pytest.approx(3 * 1e-5)
    timed = STEPS.model_copy(update={"head_row_s": 0.007})
    (told,) = PLANNER.question([node("a", steps=timed)]).nodes
    assert (told.head_fixed_s, told.head_row_s) == (0.0, 0.007)


def test_of_a_quantized_model_the_output_matrix_has_more_bytes_than_work():
    """Three layers of bytes, but one of weights: in 16 bits beside layers of five."""
    facts = replace(PLANNER.facts, output_layers=1.0)
    (told,), _ = facts.of([node("a")])
    assert told.head_fixed_s == pytest.approx(3 * STEPS.decode_fixed_s)
    assert told.head_row_s == pytest.approx(STEPS.decode_row_s)


def test_ways_between_those_who_are_planned_for():
    links = PLANNER.question([node("a"), node("b")]).network.links
    assert set(links) == {("a", "b"), ("b", "b")}
    assert (links["a", "b"].one_way_s, links["a", "b"].rate_bytes_per_s) == (0.005, 10e6)


async def test_a_plan_comes_from_a_process_beside_and_a_shortage_is_a_sentence():
    plan = await PLANNER.plan([node("a")])
    assert [stage.work.layers for stage in plan.rings[0].stages] == [(0, 4)]
    big = replace(COST, layer_bytes=(2**34,) * 4)
    small = replace(PLANNER, facts=FactsMaker(costs_of(big), 2, "auto"))
    assert (await small.plan([node("a")])).shortage.startswith("This PC is not enough")
    assert (await PLANNER.plan([])).shortage == "No PC is ready."


async def test_an_even_split_is_made_when_it_is_told():
    nodes = [node(name) for name in "cab"]
    assert PLANNER.splitting(None) is PLANNER
    (ring,) = (await PLANNER.splitting("even").plan(nodes)).rings
    assert [(one.node_id, one.work.layers) for one in ring.stages] == [
        ("c", (0, 2)),
        ("a", (2, 3)),
        ("b", (3, 4)),
    ]


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, (512, 256, 64, None)),
        ({"context_tokens": 100}, (100, 50, 12, None)),
        ({"prompt_tokens": 0, "answer_tokens": 7}, (512, 0, 7, None)),
        ({"micro_batch_count": 3}, (512, 256, 64, 3)),
    ],
)
def test_the_load_that_is_planned_for(tmp_path, options, expected):
    class Description:
        model_len_max = 2048

    goal = goal_of(settings_of(UpSettings, model="m", data_dir=tmp_path, **options), Description())
    told = (goal.context_tokens, goal.prompt_tokens, goal.answer_tokens, goal.micro_batches)
    assert told == expected


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"split": "odd"}, "--split must be one of planned, even, got 'odd'"),
        ({"kv_dtype": "int4"}, "--kv must be one of auto, int8, got 'int4'"),
        ({"prompt_tokens": -1}, "--prompt-tokens must be 0 to 131072"),
        ({"answer_tokens": 0}, "--answer-tokens must be 1 to 131072"),
    ],
)
def test_a_load_or_a_split_that_cannot_be(tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence):
        settings_of(UpSettings, model="m", data_dir=tmp_path, **options)


def test_an_upload_that_was_seen_of_one_device_is_believed_of_its_pc():
    first, second, other = (node(name, upload_mbps=500) for name in "abc")
    second.pc = "a"
    other.seen, second.seen = {"b": 40.0}, {"a": 9000.0}
    question = PLANNER.question([first, second, other])
    assert [one.pc for one in question.nodes] == ["a", "a", "c"]
    uploads = [one.upload_bytes_per_s for one in question.nodes]
    assert uploads[:2] == [40e6 / 8] * 2
    assert question.network.link(*question.nodes[:2]).rate_bytes_per_s > uploads[0]
