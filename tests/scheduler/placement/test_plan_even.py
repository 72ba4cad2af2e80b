"""Equal shares in the order in which nodes came, and what they lack."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.placement import Goal, Plan, Shortage, even_plan, forecast, make_plan
from tests.scheduler.placement.test_plan import GIB, GOAL, MODEL, NETWORK, node


def even(*nodes, goal=GOAL):
    return even_plan(MODEL, nodes, NETWORK, goal)


def test_the_first_nodes_take_what_does_not_divide():
    plan = even(node("c", 9), node("a", 9), node("b", 9))
    assert isinstance(plan, Plan) and not plan.standbys
    (ring,) = plan.rings
    assert [(one.node_id, one.layers) for one in ring.stages] == [
        ("c", (0, 3)),
        ("a", (3, 6)),
        ("b", (6, 8)),
    ]
    assert ring == forecast(
        MODEL, [node("c", 9), node("a", 9), node("b", 9)], [3, 3, 2], NETWORK, GOAL
    )


@given(st.lists(st.floats(0.5, 20), min_size=1, max_size=10))
def test_every_layer_has_one_place_or_something_is_missing(sizes):
    found = even(*(node(f"n{number}", gib) for number, gib in enumerate(sizes)))
    if isinstance(found, Shortage):
        assert found.sentence.startswith("an even split ")
        return
    counts = [end - start for start, end in (stage.layers for stage in found.rings[0].stages)]
    assert sum(counts) == 8 and max(counts) - min(counts) <= 1
    assert found.rings[0].users_memory >= 1


@pytest.mark.parametrize("missing_bytes, fits", [(0, True), (1, False)])
def test_one_byte_decides(missing_bytes, fits):
    """Four layers and the output matrix, and one user's KV in each layer."""
    needed = 5 * GIB + 4 * GOAL.context_tokens * MODEL.kv_bytes
    last = replace(node("last", 9), memory_bytes=needed - missing_bytes)
    found = even(node("first", 9), last)
    assert isinstance(found, Plan) is fits
    if isinstance(found, Shortage):
        assert found.bytes == 1
        assert found.sentence == (
            "an even split gives last 4 of 8 layers, 5.03 GiB with the KV of one user, and it "
            "lends 5.03 GiB: let the plan split the model, or lend more."
        )


def test_more_nodes_than_layers():
    found = even(*(node(f"n{number}", 9) for number in range(9)))
    assert isinstance(found, Shortage)
    assert "of 8 layers leaves some of 9 PCs without one" in found.sentence


def test_nobody():
    assert even().sentence.startswith("no PC lends anything")


@pytest.mark.parametrize("told", [1, 2, 5])
def test_a_forecast_keeps_to_the_micro_batches_that_were_told(told):
    nodes = [node("a", 9), node("b", 9)]
    free, fixed = GOAL, replace(GOAL, micro_batches=told)
    for users in (1, 2, 7):
        ring = forecast(MODEL, nodes, [4, 4], NETWORK, fixed, users)
        assert ring.micro_batches == min(told, users)
        assert ring.tpot_s >= forecast(MODEL, nodes, [4, 4], NETWORK, free, users).tpot_s
    plan = make_plan(MODEL, nodes, NETWORK, fixed)
    assert plan.rings[0].micro_batches == min(told, plan.users)
    assert plan.users <= make_plan(MODEL, nodes, NETWORK, free).users
    assert plan.rings[0].tpot_s <= fixed.tpot_s


def test_a_goal_has_a_micro_batch_or_leaves_them_open():
    with pytest.raises(ValueError, match="above 0"):
        Goal(micro_batches=0)
