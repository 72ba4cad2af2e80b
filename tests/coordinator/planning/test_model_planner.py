"""Plans of nodes in the book: what they say, as far as it is believed."""

from dataclasses import replace

import pytest

from molink.checkpoint.description import describe
from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.config.setting import settings_of
from molink.config.settings import UpSettings
from molink.control.messages.payloads import PathMeasured, PathReport, RateSeen, RatesSeen
from molink.coordinator.nodes.discrepancies import UPLOAD_UNSEEN_MBPS
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.nodes.slowdown import AS_REPORTED, STEPS_MIN, Slowdown, StepsSeen
from molink.coordinator.planning.model_planner import ModelPlanner
from molink.coordinator.planning.placement_facts import FactsMaker
from molink.models import DEMO_MODEL_DIR
from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import Goal, StageForecast
from tests.checkpoint.drafting_checkpoints import with_nextn
from tests.coordinator.examples import HERE, PROFILE, STEPS, WORK, costs_of

MIB = 2**20
COST = ModelCost(layer_bytes=(100 * MIB,) * 8, kv_bytes=4096, row_bytes=8192)
PLANNER = ModelPlanner(
    FactsMaker(costs_of(COST), 2, "bfloat16"), Goal(0.25, 256, 64, 32), WORK.weights
)
ANNA, BERT, CARL = "a" * 16, "b" * 16, "c" * 16
DEVICE = PROFILE.devices[0].model_copy(update={"free_bytes": 700 * MIB})
LENT = PROFILE.model_copy(update={"devices": (DEVICE,), "upload_mbps": 50.0})


def cluster(*ids, mbps=50.0):
    book = NodeBook()
    for node_id in ids:
        book.take(node_id, HERE.model_copy(update={"name": node_id[0]}), 0.0)
        book.take(node_id, LENT, 0.0)
        others = [other for other in ids if other != node_id]
        paths = [PathMeasured(to=to, path="direct", rtt_ms=20, rate_mbps=mbps) for to in others]
        book.take(node_id, PathReport(round=1, paths=tuple(paths)), 0.0)
        rates = tuple(RateSeen(sender=other, rate_mbps=mbps) for other in others)
        book.take(node_id, RatesSeen(rates=rates), 0.0)
    return book


def facts(book):
    made, network = PLANNER.facts.of(list(book))
    return {one.id: one for one in made}, network


def test_a_link_counts_as_its_receiver_saw_it():
    book = cluster(ANNA, BERT)
    book.take(BERT, RatesSeen(rates=(RateSeen(sender=ANNA, rate_mbps=8.0),)), 0.0)
    nodes, network = facts(book)
    assert network.link(nodes[ANNA], nodes[BERT]).rate_bytes_per_s == pytest.approx(1e6)
    assert network.link(nodes[BERT], nodes[ANNA]).rate_bytes_per_s == pytest.approx(50e6 / 8)
    assert nodes[ANNA].upload_bytes_per_s == pytest.approx(1e6), "nobody else has seen it send"


def test_an_upload_that_nobody_has_seen_is_a_usual_one():
    book = NodeBook()
    book.take(ANNA, HERE, 0.0)
    book.take(ANNA, LENT.model_copy(update={"upload_mbps": 9000.0}), 0.0)
    assert facts(book)[0][ANNA].upload_bytes_per_s == UPLOAD_UNSEEN_MBPS * 1e6 / 8
    book.note_rate(ANNA, 800.0)
    assert facts(book)[0][ANNA].upload_bytes_per_s == 100e6
    book.take(ANNA, LENT.model_copy(update={"upload_cap_mbps": 4.0}), 0.0)
    assert facts(book)[0][ANNA].upload_bytes_per_s == 0.5e6


async def test_a_member_has_outgrown_its_owner_s_cap_but_not_a_device_that_it_does_not_name():
    book = cluster(ANNA, BERT)
    ring = (await PLANNER.plan(list(book))).rings[0]
    node = book.node(ring.stages[0].node_id)
    assert not PLANNER.outgrown(ring, node)
    book.take(node.node_id, LENT.model_copy(update={"devices": ()}), 0.0)
    assert not PLANNER.outgrown(ring, node)
    small = DEVICE.model_copy(update={"cap_bytes": MIB})
    book.take(node.node_id, LENT.model_copy(update={"devices": (small,)}), 0.0)
    assert PLANNER.outgrown(ring, node)


def test_another_node_does_the_same_work_if_it_has_room():
    book = cluster(ANNA, BERT)
    card = DEVICE.model_copy(update={"kind": "cuda", "index": 2, "free_bytes": 402 * MIB})
    book.take(BERT, LENT.model_copy(update={"devices": (card,), "download_mbps": 80.0}), 0.0)
    given = replace(WORK, layers=(2, 6))
    per_token = 4 * COST.kv_bytes
    room = 2 * MIB // per_token
    found = PLANNER.work_on(book.node(BERT), given, room)
    assert found == replace(given, device="cuda:2", kv_tokens=room)
    assert PLANNER.work_on(book.node(BERT), given, room + 1) is None
    assert PLANNER.work_on(book.node(ANNA), given, room + 1).device == "cpu"
    assert PLANNER.fetch_s(book.node(BERT), given) == pytest.approx(400 * MIB / 10e6)


async def test_a_ring_whose_place_another_takes_keeps_its_forecast():
    (ring,) = (await PLANNER.plan(list(cluster(ANNA, BERT)))).rings
    moved = [
        replace(stage, node_id=CARL) if not at else stage for at, stage in enumerate(ring.stages)
    ]
    then = ring.moved(moved)
    assert [one.node_id for one in then.forecast.stages] == [one.node_id for one in then.stages]
    assert then.stages[0].node_id == CARL and then.tokens_per_s == ring.tokens_per_s


async def test_a_stage_of_more_layers_is_forecast_by_those_that_have_held_them():
    nodes = list(cluster(ANNA, BERT))
    plan = await PLANNER.plan(nodes)
    (ring,) = plan.rings
    first, last = ring.stages
    wide = replace(first, work=replace(first.work, layers=(0, last.work.layers[1]), kv_tokens=16))
    then = ring.moved([wide])
    (one,), was = then.forecast.stages, ring.forecast.stages
    assert (one.node_id, one.layers, one.kv_tokens) == (first.node_id, wide.work.layers, 16)
    assert one.weights_bytes == sum(stage.weights_bytes for stage in was)
    assert one.memory_bytes == was[0].memory_bytes
    assert PLANNER.is_worth([then], plan, nodes, [0]), "two PCs that are there do better than one"


def test_who_was_found_slow_is_planned_so():
    book = cluster(ANNA, BERT)
    book.node(ANNA).slowdown = Slowdown(5.0, 7.0)
    nodes, _ = facts(book)
    assert nodes[ANNA].decode_fixed_s == pytest.approx(5 * STEPS.decode_fixed_s)
    assert nodes[ANNA].prefill_row_s == pytest.approx(7 * STEPS.prefill_row_s)
    assert nodes[BERT].decode_fixed_s == STEPS.decode_fixed_s


async def test_a_pace_is_held_against_the_stage_that_serves():
    book = cluster(ANNA, BERT)
    plan = await PLANNER.plan(list(book))
    forecast = plan.rings[0].forecast
    rows = -(-forecast.users // forecast.micro_batches)
    for stage, foreseen in zip(plan.rings[0].stages, forecast.stages, strict=True):
        node = book.node(stage.node_id)
        told_s = PLANNER.facts.reported_decode_s(node, stage.work.layers, rows)
        assert told_s == pytest.approx(foreseen.step_s), "as the forecast counts"
        seen = StepsSeen(STEPS_MIN, 10 * told_s, 0.0)
        assert PLANNER.slowdown(stage, node, rows, seen).decode == pytest.approx(10)
        assert PLANNER.slowdown(stage, node, rows, replace(seen, steps=1)) is None


async def test_a_link_is_planned_as_it_was_measured_until_it_carries_far_less():
    book = cluster(ANNA, BERT, mbps=40.0)
    nodes = list(book)
    assert PLANNER.link_rates_mbps(nodes) == pytest.approx([40.0, 40.0])
    book.node(ANNA).slowdown = Slowdown(link_mbps=5.0)
    assert facts(book)[0][ANNA].upload_bytes_per_s == pytest.approx(5e6 / 8)
    assert PLANNER.link_rates_mbps(nodes) == pytest.approx([40.0, 40.0]), "what it was planned with"


@pytest.mark.parametrize(
    ("slow", "gains"),
    [
        (Slowdown(9.0, 9.0), True),
        (Slowdown(link_mbps=0.5), True),
        (Slowdown(1.0, 1.1), False),
        (AS_REPORTED, False),
    ],
)
async def test_another_node_takes_a_slow_one_s_place_only_where_users_wait_less(slow, gains):
    book = cluster(ANNA, BERT, CARL)
    (ring,) = (await PLANNER.plan([book.node(ANNA), book.node(BERT)])).rings
    members = [book.node(stage.node_id) for stage in ring.stages]
    members[0].slowdown = slow
    assert PLANNER.gains_by(ring, 0, book.node(CARL), members) is gains
    book.node(CARL).slowdown = Slowdown(50.0, 50.0, 0.1)
    assert not PLANNER.gains_by(ring, 0, book.node(CARL), members)


async def test_a_ring_is_served_with_what_was_promised_of_it():
    (ring,) = (await PLANNER.plan(list(cluster(ANNA, BERT)))).rings
    forecast = ring.forecast
    assert ring.promised.users == forecast.users > 0
    assert (ring.promised.tpot_s, ring.promised.tokens_per_s) == (
        forecast.tpot_s,
        forecast.tokens_per_s,
    )
    assert replace(ring, forecast=None).promised is None


@pytest.mark.parametrize("is_cached", [True, False])
async def test_stages_hear_whether_their_ring_caches_before_they_load(tmp_path, is_cached):
    model = str(DEMO_MODEL_DIR)
    settings = settings_of(UpSettings, model=model, data_dir=tmp_path, prefix_cache=is_cached)
    planner = ModelPlanner.of(model, describe(model), WORK.weights, settings)
    (planned,) = (await planner.plan(list(cluster(ANNA)))).rings
    assert {stage.work.prefix_cache for stage in planned.stages} == {is_cached}


async def test_a_ring_with_a_liar_is_changed_once_it_is_found_out():
    book = cluster(ANNA, BERT, CARL)
    nodes = list(book)
    fast = STEPS.model_copy(update={"decode_fixed_s": STEPS.decode_fixed_s / 10})
    book.take(ANNA, LENT.model_copy(update={"steps": fast}), 0.0)
    before = await PLANNER.plan(nodes)
    (ring,) = before.rings
    assert ANNA in {stage.node_id for stage in ring.stages}
    assert not PLANNER.is_worth(before.rings, await PLANNER.plan(nodes), nodes, [0])
    book.node(ANNA).slowdown = Slowdown(200.0, 200.0)
    after = await PLANNER.plan(nodes)
    assert {stage.node_id for stage in after.rings[0].stages} == {BERT, CARL}
    assert "200.0 times as long as it has told" in after.standbys[ANNA]
    assert PLANNER.is_worth(before.rings, after, nodes, [0])


@pytest.mark.parametrize(
    ("dtype", "on_cpu", "on_gpu"),
    [("auto", 200, 100), ("float32", 200, 200), ("bfloat16", 100, 100)],
)
def test_nodes_are_told_what_a_layer_takes_of_them(dtype, on_cpu, on_gpu):
    size = FactsMaker(costs_of(COST), 2, dtype).model_size("m")
    assert (size.layers, size.layer_bytes) == (8, 100 * MIB)
    assert (size.held_bytes(4), size.held_bytes(2)) == (on_cpu * MIB, on_gpu * MIB)


FOUR_BITS = FactsMaker(
    {
        2: ModelCost((425 * MIB,) * 8, kv_bytes=4096, row_bytes=8192, tail_bytes=100 * MIB),
        4: ModelCost((450 * MIB,) * 8, kv_bytes=8192, row_bytes=8192, tail_bytes=200 * MIB),
    },
    2,
    "auto",
)
"""Four bits in groups of 128: in fp32 scales take twice as much, and so do tables and KV."""


def test_of_a_quantized_layer_only_the_scales_grow_in_fp32():
    size = FOUR_BITS.model_size("m")
    assert (size.held_bytes(2), size.held_bytes(4)) == (425 * MIB, 450 * MIB)
    old = size.model_copy(update={"code_bytes": 0})
    assert old.held_bytes(4) == 850 * MIB, "what a coordinator of before meant"


async def test_a_quantized_model_fills_a_pc_that_computes_in_fp32_and_no_more():
    """Room for eight layers of 450 MiB, a table of 200 and 16,384 tokens, to the last of them."""
    need = 8 * 450 * MIB + 200 * MIB + 16_384 * 8 * 8192
    book = cluster(ANNA)
    device = DEVICE.model_copy(update={"free_bytes": need, "element_bytes": 4})
    book.take(ANNA, LENT.model_copy(update={"devices": (device,)}), 0.0)
    goal = Goal(0.25, 16_000, 64, 32)
    plan = await ModelPlanner(FOUR_BITS, goal, WORK.weights).plan(list(book))
    (stage,) = plan.rings[0].stages
    assert stage.work.kv_tokens == pytest.approx(16_384, abs=1)
    smaller = device.model_copy(update={"free_bytes": need - 16_384 * 8 * 8192 // 20})
    book.take(ANNA, LENT.model_copy(update={"devices": (smaller,)}), 0.0)
    plan = await ModelPlanner(FOUR_BITS, goal, WORK.weights).plan(list(book))
    assert plan.shortage.startswith("This PC is not enough")
    assert plan.shortage.endswith(
        "let another PC join, lend more, or plan with fewer --context-tokens; or round the model "
        "with `molink import --weights int4`."
    )
    quantized = DeclaredQuantization("awq", 4, 128)
    planner = ModelPlanner(FOUR_BITS, goal, WORK.weights, declared=quantized)
    assert (await planner.plan(list(book))).shortage.endswith("fewer --context-tokens.")


async def test_what_serves_is_compared_on_shared_lines_as_it_was_planned():
    """Two devices of Anna's in turn with others: each sends with half of her line."""
    dora = "d" * 16
    book = cluster(ANNA, BERT, CARL, dora)
    book.node(CARL).pc = ANNA
    nodes = list(book)
    plan = await PLANNER.splitting("even").plan(nodes)
    (planned,) = (ring.forecast for ring in plan.rings)
    (now,) = PLANNER._as_known(plan.rings, nodes).rings
    assert (now.ttft_s, now.tokens_per_s) == (planned.ttft_s, planned.tokens_per_s)
    book.node(CARL).pc = CARL
    (apart,) = PLANNER._as_known(plan.rings, nodes).rings
    assert apart.ttft_s < planned.ttft_s
    assert not PLANNER.is_worth(plan.rings, plan, nodes, [0])


@pytest.mark.parametrize(("drafter", "drafts"), [("auto", True), ("tail", True), ("copy", False)])
async def test_all_stages_are_told_of_drafts_at_the_tail_which_has_room(tmp_path, drafter, drafts):
    model = with_nextn(tmp_path / "model")
    settings = settings_of(UpSettings, model=model, data_dir=tmp_path, drafter=drafter)
    planner = ModelPlanner.of(model, describe(model), WORK.weights, settings)
    assert planner.cost.drafts_at_tail == drafts
    (planned,) = (await planner.plan(list(cluster(ANNA)))).rings
    (stage,) = planned.stages
    assert stage.work.drafts == drafts
    assert (planned.forecast.drafts is not None) == drafts
    whole = StageForecast(ANNA, "anna", (0, 1), 1, 16, 1, 1, 0.1, 0.1, 0.1)
    assert planner._work(whole, DEVICE).drafts == drafts  # Its ids go on with its rows.
