"""Forecasts: arithmetic worked out by hand, the head's own model, and the search's."""

from dataclasses import replace

import pytest

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import Goal, LinkFacts, Network, NodeFacts, forecast, make_plan
from molink_scheduler.placement.grow import recipes_for_users
from molink_scheduler.placement.objective import Objective
from molink_scheduler.placement.search import search
from molink_scheduler.timing.round_model import HopCost, RoundModel, StageCost
from tests.scheduler.placement.clusters import home_cluster, small_cluster
from tests.scheduler.placement.oracles import ring_users

MODEL = ModelCost((1000,) * 6, kv_bytes=10, row_bytes=2000, head_bytes=500, tail_bytes=500)
ANNA = NodeFacts("a", 10_000, 2e-3, 1e-4, 1e-4, 1e-3, upload_bytes_per_s=1e6, name="anna")
BEN = NodeFacts("b", 20_000, 1e-3, 1e-4, 5e-5, 1e-3, head_row_s=2e-4, name="ben")
NETWORK = Network(default=LinkFacts(4e6, 0.02))
GOAL = Goal(tpot_s=0.1, context_tokens=10, prompt_tokens=0, answer_tokens=10, kv_tokens_max=1000)


def ring(goal=GOAL, users=None):
    return forecast(MODEL, [ANNA, BEN], [2, 4], NETWORK, goal, users)


def test_a_lonely_user_goes_round_once():
    anna_s, ben_s = 1e-3 + 2 * 2.1e-3, 1e-3 + 4 * 1.1e-3 + 2e-4
    assert ring().tpot_alone_s == pytest.approx(anna_s + ben_s + 2000 / 1e6 + 0.04)


def test_memory_is_counted_on_every_stage():
    """anna: 10,000 - 500 - 2,000 over 20 for each token; ben: 20,000 - 500 - 4,000 over 40."""
    found = ring()
    assert [stage.kv_tokens for stage in found.stages] == [375, 387]
    assert found.users_memory == 37
    assert [stage.weights_bytes for stage in found.stages] == [2500, 4500]
    assert found.stages[1].used_bytes == 4500 + found.users * 10 * 10 * 4


def test_a_model_that_drafts_takes_the_head_s_memory_alone():
    """anna: 10,000 - 500 - 2,000 - 1,500 over 20 for each token."""
    model = replace(MODEL, drafter_bytes=1500, drafter_file_bytes=700)
    found = forecast(model, [ANNA, BEN], [2, 4], NETWORK, GOAL)
    assert [stage.kv_tokens for stage in found.stages] == [300, 387]
    assert [stage.weights_bytes for stage in found.stages] == [4000, 4500]
    assert [stage.fetched_bytes for stage in found.stages] == [3200, 4500]
    alone = replace(model, tied=True).ends_bytes(is_head=True, is_tail=True)
    assert alone == 500 + 1500, "tied tables hide nothing of it"


HYBRID = replace(MODEL, kv_bytes=5, layer_kv_bytes=(0, 0, 0, 0, 0, 30), layer_state_bytes=(50,) * 6)


def hybrid_ring(counts, model=HYBRID, **changes):
    return forecast(model, [ANNA, BEN], counts, NETWORK, replace(GOAL, **changes))


def test_states_are_counted_beside_kv():
    """anna: 7,500 left for states of 100 and no KV. ben: 15,500 for 31 users of 200 + 10 x 30; what
    that leaves is theirs too."""
    found = hybrid_ring([2, 4])
    anna, ben = found.stages
    assert (anna.kv_tokens, anna.state_slots) == (1000, 75 - 18)
    assert (ben.kv_tokens, ben.state_slots) == (310, 31 - 7)
    assert found.users_memory == 31 - 7
    assert [one.used_bytes for one in found.stages] == [
        2500 + found.users * 100,
        4500 + found.users * 500,
    ]


def test_what_kv_may_not_use_holds_states():
    """(15,500 - 3,000) / 200 of them, one in four for snapshots."""
    ben = hybrid_ring([2, 4], kv_tokens_max=100).stages[1]
    assert (ben.kv_tokens, ben.state_slots) == (100, 62 - 15)


def test_a_stage_full_of_states_is_the_bottleneck():
    full = replace(HYBRID, layer_state_bytes=(700,) * 6)
    assert hybrid_ring([2, 4], full).bottleneck == (
        "the memory of ben, full with the states of 4 requests"
    )


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_stages_never_keep_more_than_is_lent(scale):
    nodes = [replace(one, kv_scale=1.5, state_scale=scale) for one in (ANNA, BEN)]
    for first in range(1, 6):
        for stage in forecast(HYBRID, nodes, [first, 6 - first], NETWORK, GOAL).stages:
            layers = slice(*stage.layers)
            kv = stage.kv_tokens * 1.5 * sum(HYBRID.kept_of_token[layers])
            states = stage.state_slots * scale * sum(HYBRID.kept_of_request[layers])
            assert stage.weights_bytes + kv + states <= stage.memory_bytes


def test_a_plan_keeps_within_memory_where_layers_keep_different_things():
    heavy = replace(HYBRID, layer_kv_bytes=(0, 0, 0, 0, 0, 300), kv_bytes=50)
    plan = make_plan(heavy, [ANNA, BEN], NETWORK, GOAL)
    (found,) = plan.rings
    assert found.users == found.users_memory > 0
    assert all(stage.used_bytes <= stage.memory_bytes for stage in found.stages)


def test_decode_is_as_the_head_predicts_it():
    stages = (StageCost(5e-3, 2e-4), StageCost(5e-3, 6e-4))
    model = RoundModel(stages, (HopCost(0.02, 2e-3), HopCost(0.02, 0.0)))
    for users in (1, 3, 8, 20):
        best = min((model.cycle_s(users, count), count) for count in range(1, min(users, 4) + 1))
        found = ring(users=users)
        assert (found.tpot_s, found.micro_batches) == (pytest.approx(best[0]), best[1])
        assert found.tokens_per_s == pytest.approx(users / best[0])


def test_no_more_users_than_the_bound_allows():
    most = ring().users
    assert ring(users=most).tpot_s <= GOAL.tpot_s * (1 + 1e-6)
    assert most == 37 or ring(users=most + 1).tpot_s > GOAL.tpot_s


def test_prompts_take_devices_and_links_but_not_the_trip():
    chatty = replace(GOAL, prompt_tokens=100)
    assert ring(chatty).tpot_alone_s == pytest.approx(ring().tpot_alone_s)
    assert 0 < ring(chatty).users < ring().users
    assert ring(chatty).bottleneck == "the link from anna to ben, busy 100% of the time"


def test_the_first_token_waits_for_the_slowest_stage_once_for_each_span():
    """256 tokens in two spans of 128: both stages and the wire once, the wire once more."""
    found = ring(replace(GOAL, prompt_tokens=256))
    wire_s = 128 * 2e-3
    steps_s = 2 * 1e-3 + 128 * (2 * 1e-4 + 4 * 5e-5)
    assert found.ttft_s == pytest.approx(steps_s + 2 * wire_s + 0.04 + 2e-4)


@pytest.mark.parametrize(
    "goal, words",
    [
        (GOAL, "the memory of anna, full with 375 tokens"),
        (replace(GOAL, kv_tokens_max=30), "the 30 tokens of KV that a stage offers at most"),
        (replace(GOAL, tpot_s=0.055), "delay: 40 ms of every token are links"),
        (replace(GOAL, tpot_s=0.01), "40 of a lonely token's 53 ms are links"),
    ],
)
def test_the_bottleneck_has_a_name(goal, words):
    assert words in ring(goal).bottleneck


def test_a_device_can_be_the_bottleneck():
    slow = replace(ANNA, decode_row_s=5e-3, upload_bytes_per_s=1e9, memory_bytes=10**6)
    quick = Network(default=LinkFacts(1e9, 1e-4))
    found = forecast(MODEL, [slow, replace(BEN, memory_bytes=10**6)], [2, 4], quick, GOAL)
    assert found.bottleneck.startswith("the device of anna, busy ")


@pytest.mark.parametrize("counts", [[6], [3, 2], [0, 6], [7, -1]])
def test_a_split_is_one_of_the_model(counts):
    with pytest.raises(ValueError, match="each node takes a layer"):
        forecast(MODEL, [ANNA, BEN], counts, NETWORK, GOAL)


def test_one_node_holds_a_tied_table_once():
    tied = replace(MODEL, tied=True)
    both = [forecast(model, [BEN], [6], NETWORK, GOAL) for model in (MODEL, tied)]
    assert [one.stages[0].weights_bytes for one in both] == [7000, 6500]
    assert both[1].delay_s == 0.0


@pytest.mark.parametrize("seed", range(30))
def test_what_the_search_found_the_forecast_confirms(seed):
    problem = small_cluster(seed, 4, 6) if seed % 2 else home_cluster(seed, 12, layers=80)
    for placed in search(Objective(problem), recipes_for_users(problem), None, 5_000):
        nodes = [problem.nodes[number] for number in placed.order]
        found = forecast(problem.model, nodes, placed.counts, problem.network, problem.goal)
        assert found.users == placed.score.users
        if seed % 2:
            assert found.users == ring_users(problem, placed.order, placed.counts)
