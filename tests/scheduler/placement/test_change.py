"""When a better plan is worth what the change costs."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import (
    ChangeCost,
    Goal,
    LinkFacts,
    Network,
    NodeFacts,
    Plan,
    change_cost,
    forecast,
    worth_changing,
)

MODEL = ModelCost((10**9,) * 4, kv_bytes=4096, row_bytes=8192)
NETWORK = Network(default=LinkFacts(12.5e6, 0.01))
NODES = [NodeFacts(name, 20 * 10**9, 1e-3, 1e-5, 1e-5) for name in "abcd"]
GOAL = Goal(prompt_tokens=256)


def ring(names, counts, users=None, ttft_s=None):
    nodes = [node for node in NODES if node.id in names]
    found = forecast(MODEL, nodes, counts, NETWORK, GOAL)
    return replace(
        found,
        users=found.users if users is None else users,
        ttft_s=found.ttft_s if ttft_s is None else ttft_s,
    )


def plan(*rings):
    return Plan(GOAL, rings)


NOW = plan(ring("ab", [2, 2], users=20, ttft_s=1.0))
FREE = ChangeCost(0, 0.0)


def test_nobody_served_is_always_worth_a_change():
    assert worth_changing(plan(), NOW, FREE).change


def test_the_same_plan_is_no_change():
    decision = worth_changing(NOW, NOW, FREE)
    assert not decision.change and "still the best" in decision.sentence


@pytest.mark.parametrize("users, change", [(21, False), (22, True), (30, True), (19, False)])
def test_more_users_must_be_a_tenth_more(users, change):
    new = plan(ring("abc", [1, 1, 2], users=users, ttft_s=1.0))
    decision = worth_changing(NOW, new, FREE)
    assert decision.change is change
    assert str(users - 20 if users > 20 else users) in decision.sentence


def test_a_pause_is_taken_off():
    """Ten more users for half an hour are 18,000 s of users; a pause takes 20 for each second."""
    new = plan(ring("abc", [1, 1, 2], users=30))
    assert worth_changing(NOW, new, ChangeCost(20, 300.0)).change
    assert not worth_changing(NOW, new, ChangeCost(20, 600.0)).change


def test_a_download_that_takes_longer_than_the_horizon_brings_nothing():
    new = plan(ring("abc", [1, 1, 2], users=40))
    assert worth_changing(NOW, new, ChangeCost(0, 0.0, prepare_s=600.0)).change
    assert not worth_changing(NOW, new, ChangeCost(0, 0.0, prepare_s=1790.0)).change
    assert not worth_changing(NOW, new, ChangeCost(0, 0.0, prepare_s=inf)).change


@pytest.mark.parametrize(
    "ttft_s, pause_s, change", [(0.7, 0.0, True), (0.9, 0.0, False), (0.7, 60.0, False)]
)
def test_a_faster_plan_must_be_a_good_deal_faster(ttft_s, pause_s, change):
    new = plan(ring("abc", [1, 1, 2], users=20, ttft_s=ttft_s))
    assert worth_changing(NOW, new, ChangeCost(20, pause_s)).change is change


def test_below_the_bound_the_time_per_token_counts():
    slow = plan(replace(NOW.rings[0], users=0, tpot_alone_s=1.0))
    other = ring("abc", [1, 1, 2], users=0)
    assert worth_changing(slow, plan(replace(other, tpot_alone_s=0.7)), FREE).change
    assert not worth_changing(slow, plan(replace(other, tpot_alone_s=0.9)), FREE).change


def test_a_ring_beside_the_others_costs_nobody_a_pause():
    new = plan(NOW.rings[0], ring("cd", [2, 2]))
    cost = change_cost(NOW, new, MODEL, {"c": 1e7, "d": 2e7})
    assert (cost.affected_users, cost.pause_s) == (0, 0.0)
    assert cost.prepare_s == 204.0, "2 GB for c, 2 GB at twice the rate for d, then to load"
    assert worth_changing(NOW, new, cost).change


def test_what_is_downloaded_is_counted_as_it_is_fetched():
    """Memory and file differ where weights are quantized."""
    model = replace(MODEL, layer_file_bytes=(9 * 10**8,) * 4)
    new = plan(NOW.rings[0], ring("cd", [2, 2]))
    assert change_cost(NOW, new, model, {"c": 1e7, "d": 2e7}).prepare_s == 184.0


def test_layers_that_a_node_has_are_not_downloaded():
    new = plan(ring("abc", [1, 2, 1]))  # b had layers 2 and 3 and takes 1 and 2; c comes in
    cost = change_cost(NOW, new, MODEL, {"b": 1e7, "c": 1e8})
    assert cost.prepare_s == 10.0 + 2.0, "the newcomer fetches and loads while the others serve"
    assert cost.affected_users == 20
    pause_s = 100.0 + 2 * 10**9 / 500e6 + new.rings[0].ttft_s
    assert cost.pause_s == pytest.approx(pause_s), "b fetches a layer and loads while users wait"


def test_a_survivor_s_download_is_a_pause_that_few_plans_are_worth():
    """Ten more users of half an hour; b would fetch 1 GB at 1 MB/s while all 20 wait."""
    quick, slow = ({"b": rate, "c": 1e9} for rate in (1e9, 1e6))
    new = plan(replace(ring("abc", [1, 2, 1]), users=30))
    assert worth_changing(NOW, new, change_cost(NOW, new, MODEL, quick)).change
    assert not worth_changing(NOW, new, change_cost(NOW, new, MODEL, slow)).change


def test_contexts_that_are_lost_are_computed_again_one_after_the_other():
    """A prompt of 256 tokens takes a second; half of all contexts are before one's own."""
    new = plan(replace(ring("abc", [2, 1, 1]), ttft_s=1.0))
    rates = {"b": 1e9, "c": 1e9}
    without, some, many = (
        change_cost(NOW, new, MODEL, rates, [tokens]).pause_s for tokens in (0, 256, 20 * 512)
    )
    assert some == without, "a prompt at least"
    assert many - without == pytest.approx(20.0 - 1.0)
    beside = plan(NOW.rings[0], ring("cd", [2, 2]))
    assert change_cost(NOW, beside, MODEL, {"c": 1e9, "d": 1e9}, [9999]).pause_s == 0.0


@given(st.integers(0, 10**6), st.floats(1e5, 1e9))
def test_what_users_lose_never_makes_a_change_cheaper(tokens, rate):
    new = plan(ring("abc", [1, 2, 1]))
    rates = {"b": rate, "c": rate}
    nothing, much = (change_cost(NOW, new, MODEL, rates, [kept]) for kept in (0, tokens))
    assert nothing.pause_s <= much.pause_s
    assert nothing.prepare_s == much.prepare_s


def test_a_node_that_cannot_download_is_never_ready():
    new = plan(ring("abc", [1, 1, 2]))
    assert change_cost(NOW, new, MODEL, {"b": 1e7, "c": 0.0}).prepare_s == inf
