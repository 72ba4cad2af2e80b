"""A model that drafts takes the head's memory in a plan, and no ring stands less for it."""

import shutil
from dataclasses import replace

import pytest

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import describe
from molink.checkpoint.layer_sizes import planned_model
from molink.config.setting import settings_of
from molink.config.settings import UpSettings
from molink.control.messages.payloads import AssignedDrafter, WeightsSource
from molink.coordinator.planning.drafter_plan import (
    NO_ROOM,
    TOO_LATE,
    USERS,
    PlannedDrafter,
    undrafted,
)
from molink.coordinator.planning.model_planner import ModelPlanner
from molink.coordinator.planning.placement_facts import FactsMaker
from molink.errors import UserError
from molink.models import DEMO_DRAFTER_DIR, DEMO_MODEL_DIR
from molink.stage_protocol.draft_model import DraftModel
from molink_scheduler.placement import Goal
from tests.coordinator.examples import WORK, costs_of
from tests.coordinator.planning.test_model_planner import ANNA, BERT, COST, MIB, cluster
from tests.engine.drafting.assistant_checkpoints import save_assisted

DRAFTER = AssignedDrafter(weights=WeightsSource(model="small"), layers=2, kv_tokens=1000)
NAMED = DraftModel(str(DEMO_DRAFTER_DIR), 2, "demo_drafter")
SERVED = planned_model("qwen-7b")


def planner_with(drafter_mib):
    """Of eight layers of 100 MiB, each PC lending 700, with a drafter of this size."""
    own = {"drafter_bytes": drafter_mib * MIB, "drafter_file_bytes": drafter_mib * MIB}
    costs = {size: replace(cost, **own) for size, cost in costs_of(COST).items()}
    goal = Goal(0.25, 256, 64, 32)
    return ModelPlanner(FactsMaker(costs, 2, "bfloat16"), goal, WORK.weights, drafter=DRAFTER)


async def test_the_head_holds_it_beside_fewer_layers():
    nodes = list(cluster(ANNA, BERT))
    (ring,) = (await planner_with(350).plan(nodes)).rings
    head, last = ring.stages
    assert head.work.layers[1] <= 3 and last.work.layers[1] == 8
    assert ring.forecast.stages[0].weights_bytes == (350 + 100 * head.work.layers[1]) * MIB
    assert head.work.drafter == last.work.drafter == DRAFTER, "who may be a head knows of it"


async def test_where_no_head_has_room_the_ring_is_planned_without_it():
    planner, nodes = planner_with(650), list(cluster(ANNA, BERT))
    plan = await planner.plan(nodes)
    (ring,) = plan.rings
    assert ring.stages[0].work.drafter == DRAFTER.model_copy(update={"refused": NO_ROOM})
    assert sum(stage.weights_bytes for stage in ring.forecast.stages) == 800 * MIB
    assert planner.is_worth([ring], plan, nodes, [0]) == "", "it is as good as the same ring"
    assert (await planner.plan([])).rings == ()


def test_another_head_has_it_if_there_is_room_and_time():
    planner, node = planner_with(350), cluster(ANNA).node(ANNA)
    head = replace(WORK, layers=(0, 3), drafter=DRAFTER)
    assert planner.work_on(node, head, 16).drafter == DRAFTER
    without = planner.work_on(node, replace(head, layers=(0, 5)), 16)
    assert without.drafter.refused == NO_ROOM
    assert planner.work_on(node, replace(head, layers=(0, 7)), 16) is None
    assert planner.work_on(node, replace(head, layers=(1, 7)), 16).drafter == DRAFTER
    late = planner.undrafted(head)
    assert late.drafter.refused == TOO_LATE
    assert planner.undrafted(without).drafter.refused == NO_ROOM, "the first reason stays"
    fetched = [planner.fetch_s(node, work) for work in (head, late)]
    assert fetched == pytest.approx([650 * MIB / 12.5e6, 300 * MIB / 12.5e6])


def test_without_a_drafter_there_is_nothing_to_leave_out():
    planner = ModelPlanner(FactsMaker(costs_of(COST), 2, "auto"), Goal(), WORK.weights)
    assert planner.without_drafter("why") is planner
    assert planner.undrafted(WORK) == WORK


def test_its_bytes_are_those_of_its_files_and_its_kv():
    (tables,) = {one.stat().st_size for one in DEMO_DRAFTER_DIR.glob("*.safetensors")}
    planned = PlannedDrafter.of(NAMED, context_tokens=100)
    assert planned.assigned.kv_tokens == USERS * 100
    assert planned.assigned.weights == WeightsSource(model="demo_drafter")
    beside = planned.beside(SERVED).costs
    kv_values = 2 * 2 * 2 * 32  # Layers, keys and values, heads, numbers.
    for size in 2, 4:
        held = beside[size].drafter_bytes - USERS * 100 * size * kv_values
        assert held == pytest.approx(size / 2 * tables, rel=0.01)
        assert beside[size].drafter_file_bytes == pytest.approx(tables, rel=0.01)
    assert PlannedDrafter.of(NAMED, 10**6).assigned.kv_tokens == NAMED.kv_tokens
    assert planned.beside(SERVED).shape == SERVED.shape


def test_its_time_is_that_of_the_weights_that_a_row_reads():
    """Of the smaller model all, and its output matrix; of experts those that a row chooses."""
    small = PlannedDrafter.named(planned_model("llama-88m"), 100)
    (dense, sparse) = (
        small.beside(planned_model(name)).costs[2].drafter_layers
        for name in ("qwen-7b", "mixtral-8x7b")
    )
    own, served = small.planned.shape, planned_model("qwen-7b").shape
    read = own.layers * own.layer_bytes + own.table_bytes
    assert dense == pytest.approx(read / served.layer_bytes)
    assert sparse > 2 * read / planned_model("mixtral-8x7b").cost.layer_bytes[0]
    assert undrafted({2: small.beside(SERVED).costs[2]}) == {2: SERVED.costs[2]}


def test_one_whose_weights_are_missing_or_broken_is_refused(tmp_path):
    for name, spoil in (("missing", lambda file: file.unlink()), ("cut", _cut)):
        folder = shutil.copytree(DEMO_DRAFTER_DIR, tmp_path / name)
        spoil(folder / "model.safetensors")
        planned = PlannedDrafter.of(replace(NAMED, model=str(folder)), 100)
        assert planned.assigned.refused, name
        assert planned.beside(SERVED) == SERVED


def test_an_assistant_takes_the_tail_s_memory_and_its_layers_stay_together(tmp_path):
    save_assisted("plain", tmp_path)
    settings = settings_of(UpSettings, public_host="", data_dir=None, model=str(tmp_path))
    description = describe(open_checkpoint(str(tmp_path)))
    model = str(tmp_path), description, WORK.weights, settings, "tiny"
    named = DraftModel(str(tmp_path / "assistant"), 3, "assistant", reads_from=4)
    planner, bare = ModelPlanner.of(*model, named), ModelPlanner.of(*model)
    cost = planner.cost
    assert (cost.together, cost.drafter_at_tail, planner.drafts) == (((4, 7),), True, True)
    assert cost.stage_bytes(0, 4) == bare.cost.stage_bytes(0, 4)
    more = cost.stage_bytes(4, 7) - bare.cost.stage_bytes(4, 7)
    files = (tmp_path / "assistant" / "model.safetensors").stat().st_size
    assert more == cost.drafter_bytes == pytest.approx(files, rel=0.05)
    fetched = cost.fetched_bytes(4, 7) - bare.cost.fetched_bytes(4, 7)
    assert fetched == cost.drafter_file_bytes > 0
    assert cost.drafter_layers > 0
    assert planner.drafter.reads_from == 4
    without = planner.without_drafter(NO_ROOM)
    assert not without.drafts and without.cost.stage_bytes(4, 7) == bare.cost.stage_bytes(4, 7)
    assisting = PlannedDrafter.assisting(open_checkpoint(named.model), str(tmp_path))
    assert assisting.beside(planned_model(str(tmp_path))).costs == planner.facts.costs
    with pytest.raises(UserError, match="assistant of Gemma 4"):
        PlannedDrafter.assisting(open_checkpoint(named.model), str(DEMO_MODEL_DIR))


def _cut(file):
    file.write_bytes(file.read_bytes()[:100])


def test_the_coordinator_s_planner_counts_it():
    settings = settings_of(UpSettings, public_host="", data_dir=None, model="demo")
    description = describe(open_checkpoint(str(DEMO_MODEL_DIR)))
    model = str(DEMO_MODEL_DIR), description, WORK.weights, settings, "demo"
    planner, bare = ModelPlanner.of(*model, NAMED), ModelPlanner.of(*model)
    assert planner.drafter.layers == 2 and bare.drafter is None
    more = planner.cost.ends_bytes(True, False) - bare.cost.ends_bytes(True, False)
    assert more == planner.cost.drafter_bytes > 0
    refused = ModelPlanner.of(*model, replace(NAMED, refused="of other words"))
    assert refused.cost == bare.cost and refused.drafter.refused == "of other words"
