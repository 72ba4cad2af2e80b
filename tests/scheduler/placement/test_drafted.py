"""What drafts of the tail bring, as a plan forecasts it: by hand, and by the head's widths."""

from dataclasses import replace

import pytest

from molink_scheduler.drafting.widths import DraftLoad, wanted_widths
from molink_scheduler.model_cost import DraftCost, ModelCost
from molink_scheduler.placement import Goal, LinkFacts, Network, NodeFacts, forecast
from molink_scheduler.placement.drafted import ACCEPTANCE_ASSUMED, DraftingRing
from molink_scheduler.timing.round_model import HopCost, RoundModel, StageCost

COSTS = RoundModel(
    (StageCost(2e-3, 1e-4), StageCost(3e-3, 1e-4)), (HopCost(0.04, 2e-4), HopCost(0.04, 0.0))
)
RING = DraftingRing(COSTS, StageCost(9e-4, 1e-4), 5e-5, (1e-4, 1e-4), (2e-4,), 0.0)

MODEL = ModelCost((1000,) * 6, kv_bytes=10, row_bytes=2000, head_bytes=500, tail_bytes=500)
ANNA = NodeFacts("a", 10_000, 2e-3, 1e-4, 1e-4, 1e-3, upload_bytes_per_s=1e6)
BEN = NodeFacts("b", 20_000, 1e-3, 1e-4, 5e-5, 1e-3, head_row_s=2e-4)
NETWORK = Network(default=LinkFacts(4e6, 0.02))
GOAL = Goal(tpot_s=0.1, context_tokens=10, prompt_tokens=0, answer_tokens=10, kv_tokens_max=1000)


def tokens_of(acceptance: float, width: int) -> float:
    return (1 - acceptance ** (width + 1)) / (1 - acceptance)


def test_a_user_alone_by_hand():
    """The tail runs its layer over each row, and once more for each draft."""
    found = RING.forecast(1, 1)
    tail = StageCost(3e-3, 1.5e-4)
    costs = replace(COSTS, stages=(COSTS.stages[0], tail))
    (width,) = wanted_widths({0: ACCEPTANCE_ASSUMED}, DraftLoad(costs, 1, 1e-3), 16).values()
    assert width > 1
    assert found.width == width
    tokens = tokens_of(ACCEPTANCE_ASSUMED, width)
    assert found.tokens_a_round == pytest.approx(tokens)
    cycle_s = 0.085 + (1 + width) * (1e-4 + 1.5e-4 + 2e-4) + width * 1e-3
    assert found.tokens_per_s == pytest.approx(tokens / cycle_s)
    assert found.tokens_per_s_alone == pytest.approx(tokens / cycle_s)


def test_drafts_that_are_never_right_are_not_drafted():
    found = replace(RING, acceptance=0.0).forecast(4, 2)
    assert (found.width, found.tokens_a_round) == (0, 1)
    plain = replace(COSTS, stages=(COSTS.stages[0], StageCost(3e-3, 1.5e-4)))
    assert found.tokens_per_s == pytest.approx(4 / plain.cycle_s(4, 2))


@pytest.mark.parametrize("users", [1, 3, 8, 64])
def test_better_drafters_bring_more_and_none_costs_more_than_its_layer(users):
    rates = [
        replace(RING, acceptance=share).forecast(users, min(users, 4)).tokens_per_s
        for share in (0.0, 0.3, 0.6, 0.74, 0.9)
    ]
    assert rates == sorted(rates)
    assert rates[-1] > 1.5 * rates[0]


def test_prompts_that_come_sooner_fill_the_devices():
    """Four rows of a prompt a token: a device of 5 ms a row has no time for more answers."""
    busy = replace(RING, prompt_row_s=(5e-3, 1e-4), prompt_rows_per_token=4.0)
    assert busy.forecast(8, 2).tokens_per_s <= 1 / (4 * 5e-3)
    assert busy.forecast(8, 2).tokens_per_s_alone == RING.forecast(8, 2).tokens_per_s_alone


def test_a_model_without_a_layer_forecasts_no_drafts():
    assert forecast(MODEL, [ANNA, BEN], [2, 4], NETWORK, GOAL).drafts is None


def test_the_tail_holds_the_layer_and_its_kv():
    """ben: 20,000 - 500 - 4,000 - 700 of the layer - 500 of embeddings, over 50 a token."""
    drafting = MODEL.with_drafts(DraftCost(700, 350, 10))
    plain, found = (
        forecast(model, [ANNA, BEN], [2, 4], NETWORK, GOAL) for model in (MODEL, drafting)
    )
    head, tail = found.stages
    assert head.weights_bytes == plain.stages[0].weights_bytes
    assert head.kv_tokens == plain.stages[0].kv_tokens
    assert tail.weights_bytes == plain.stages[1].weights_bytes + 700 + 500
    assert tail.kv_tokens == (20_000 - 500 - 4000 - 700 - 500) // 50
    assert tail.fetched_bytes == plain.stages[1].fetched_bytes + 350 + 500
    assert found.drafts is not None
    assert found.drafts.tokens_per_s_alone > 1 / found.tpot_alone_s


def test_a_small_model_by_hand():
    """The head runs it once for each draft, and no row passes it beside."""
    found = replace(RING, at_tail=False, row_s=0.0, step=StageCost(4e-3, 5e-4)).forecast(1, 1)
    load = DraftLoad(COSTS, 1, 4.5e-3)
    (width,) = wanted_widths({0: ACCEPTANCE_ASSUMED}, load, 16).values()
    assert found.width == width > 1
    cycle_s = 0.085 + (1 + width) * (1e-4 + 1e-4 + 2e-4) + width * 4.5e-3
    assert found.tokens_per_s == pytest.approx(tokens_of(0.74, width) / cycle_s)
    assert not found.at_tail


def test_a_small_model_takes_so_many_layers_of_the_head():
    found, never = (
        forecast(replace(MODEL, drafter_layers=layers), [ANNA, BEN], [2, 4], NETWORK, GOAL)
        for layers in (0.5, 500.0)
    )
    assert found.drafts is not None and never.drafts is not None
    plain_per_s = 1 / found.tpot_alone_s
    assert found.drafts.tokens_per_s_alone > 1.3 * plain_per_s
    assert never.drafts.tokens_per_s_alone == pytest.approx(plain_per_s)
    assert not found.drafts.at_tail


def test_a_ring_of_one_node_has_embeddings_once():
    drafting = MODEL.with_drafts(DraftCost(700, 350, 10))
    assert drafting.stage_bytes(0, 6) == MODEL.stage_bytes(0, 6) + 700
    tied = replace(MODEL, tied=True)
    assert tied.with_drafts(DraftCost(700, 350, 10)).stage_bytes(3, 6) == 3000 + 700 + 500
