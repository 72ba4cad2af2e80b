"""Which layers, devices and addresses the stages of `molink serve` get, before anything starts."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.config.setting import settings_in, settings_of
from molink.config.settings import ServeSettings
from molink.control.messages.assignment import Join
from molink.control.messages.payloads import StageLink
from molink.coordinator.local.fixed_plan import FixedPlanner, check_memory, fixed_plan
from molink.coordinator.local.local_node import DirectRoutes
from molink.coordinator.nodes.node import Node
from molink.errors import UserError
from molink.models import DEMO_MODEL_DIR
from molink.stage_protocol.draft_model import DraftModel
from molink_scheduler.routing.roles import Role
from molink_scheduler.units import GB
from tests.coordinator.examples import WORK
from tests.node.test_stage_manager import JOIN


def model(layers, together=()):
    return SimpleNamespace(layers=layers, hidden_size=64, together=together)


def chosen(**settings):
    return settings_of(ServeSettings, model="/m", **settings)


def plan_of(layers=6, nodes=1, **settings):
    return fixed_plan(chosen(nodes=nodes, **settings), "/m", model(layers))


@given(st.data())
def test_an_even_split_holds_every_layer_once(data):
    layers = data.draw(st.integers(1, 80))
    nodes = data.draw(st.integers(1, min(layers, 64)))
    ranges = [work.layers for work in plan_of(layers, nodes=nodes).works]
    assert [index for start, end in ranges for index in range(start, end)] == list(range(layers))
    sizes = [end - start for start, end in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_layers_that_stay_together_are_not_parted():
    """As in Gemma 4 E2B; whoever cuts by hand is told where it may be."""
    e2b = model(35, ((13, 35),))
    plan = fixed_plan(chosen(nodes=3), "/m", e2b)
    assert [work.layers for work in plan.works] == [(0, 7), (7, 13), (13, 35)]
    by_hand = chosen(nodes=2, layers="0-3,3-35")
    assert len(fixed_plan(by_hand, "/m", e2b).works) == 2
    inside = chosen(nodes=2, layers="0-20,20-35")
    with pytest.raises(UserError, match="cut it at layer 13 or before"):
        fixed_plan(inside, "/m", e2b)
    with pytest.raises(UserError, match=r"of which 13 to 34 stay together.*--nodes 14 or fewer"):
        fixed_plan(chosen(nodes=15), "/m", e2b)
    with pytest.raises(UserError, match=r"use --nodes 1\.$"):
        fixed_plan(chosen(nodes=2), "/m", model(35, ((0, 35),)))


def test_an_assistant_drafts_where_the_layers_are_that_it_reads(caplog):
    drafter = DraftModel("/a", 4, "assistant", reads_from=4)
    small = replace(drafter, reads_from=None)
    for nodes, beside in ((1, [True]), (2, [False, True])):
        plan = plan_of(7, nodes=nodes).drafting(drafter)
        loads = [plan.load(n, work) for n, work in enumerate(plan.works)]
        assert [load.drafter == drafter for load in loads] == beside
        assert all(work.drafts for work in plan.works)
        at_head = plan_of(7, nodes=nodes).drafting(small)
        assert at_head.load(0, at_head.works[0]).drafter == small
        assert not any(work.drafts for work in at_head.works)
    assert caplog.messages == []
    cut = plan_of(7, nodes=4).drafting(drafter)
    assert caplog.messages == [cut.drafter.trouble]
    assert "layers 4 to 6" in cut.drafter.refused
    told = [cut.load(n, work).drafter for n, work in enumerate(cut.works)]
    assert told == [cut.drafter, None, None, None], "the head says why"


def test_every_stage_is_told_what_the_operator_asked_for():
    options = {"device": "cuda:1", "dtype": "float32", "threads": 3, "kv_tokens": 512}
    settings = chosen(nodes=2, layers="0-1,1-6", **options)
    plan = fixed_plan(settings, "/m", model(6))
    load = plan.load(1, plan.works[1])
    assert (load.model, load.work.layers, load.address) == ("/m", (1, 6), "127.0.0.1")
    work = load.work
    assert (work.device, work.dtype, work.threads, work.kv_tokens) == ("cuda:1", "float32", 3, 512)
    assert (load.stages_here, load.keys) == (2, None)


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ({}, ()),
        ({"event_log": Path("e")}, ("e.1",)),
        ({"log_format": "json", "event_log": Path("e")}, ("--log-format=json", "e.1")),
    ],
)
def test_a_stage_logs_as_its_operator_asked(settings, arguments):
    assert plan_of(**settings).stage_arguments(1) == arguments


def test_stages_share_the_memory_of_this_pc():
    plan = plan_of(nodes=3)
    assert [plan.load(i, work).stages_here for i, work in enumerate(plan.works)] == [3, 3, 3]
    assert plan.profile(1).addresses == ("127.0.0.1:0",)


@pytest.mark.parametrize(("is_cached", "told"), [(True, (2 * GB, 4 * GB)), (False, None)])
def test_stages_share_what_is_lent_for_cached_kv_where_any_is(is_cached, told):
    plan = plan_of(nodes=2, prefix_cache=is_cached, cache_ram_bytes=4 * GB, cache_disk_bytes=8 * GB)
    for place in range(2):
        assert plan.works[place].prefix_cache is is_cached
        room = plan.load(place, plan.works[place]).cache_room
        assert (room and (room.ram_bytes, room.disk_bytes)) == told


def test_stages_share_what_is_idle_where_nothing_is_said_of_cached_kv():
    plan = plan_of(nodes=2, standbys=1)
    room = plan.load(0, plan.works[0]).cache_room
    assert (room.ram_bytes, room.disk_bytes, room.stages) == (None, 0, 3)


def test_what_no_ring_can_do_is_refused():
    with pytest.raises(UserError, match="6 layers"):
        plan_of(nodes=7)
    with pytest.raises(UserError, match="--upload-mbps"):
        plan_of(nodes=2, upload_mbps=1e-3)


async def test_links_lead_where_they_are_told():
    settings = chosen(nodes=3, upload_mbps=8.0)
    plan = fixed_plan(settings, "/m", model(6))
    routes = DirectRoutes.of(plan)
    following, tail_link = (
        StageLink(to="n", public_key="k" * 40, addresses=(address,), port_name="p")
        for address in ("10.0.0.2:7", "10.0.0.1:8")
    )
    given = Join(work=WORK, terms=JOIN, next_link=following, coordinator_link=tail_link)
    command = await routes.join_command(4, given, move=print)
    assert (command.epoch, command.ring.span_tokens) == (4, JOIN.span_tokens)
    assert (command.next_address, command.coordinator_address) == (
        "tcp://10.0.0.2:7",
        "tcp://10.0.0.1:8",
    )
    assert command.upload_bytes_per_s == 1e6
    assert (command.next_key, command.coordinator_key) == (None, None)
    assert routes.paths == {"next": "direct", "coordinator": "direct"}
    inside = await DirectRoutes.of(plan).join_command(
        4, given.model_copy(update={"coordinator_link": None}), move=print
    )
    assert inside.coordinator_address is None


async def test_the_planned_ring_is_that_of_the_operator_once_all_of_its_nodes_are_free():
    works = plan_of(nodes=2).works
    planner = FixedPlanner(("b", "a"), works)
    a, b = Node("a"), Node("b")
    (ring,) = (await planner.plan([a, b])).rings
    assert [(stage.node_id, stage.work) for stage in ring.stages] == list(
        zip(("b", "a"), works, strict=True)
    )
    missing = await planner.plan([a])
    assert not missing.rings and missing.shortage == "1 of 2 stages can be started now."


async def test_there_is_no_second_ring_of_nodes_whose_places_standbys_have_taken():
    planner = FixedPlanner(("a", "b"), plan_of(nodes=2).works, standbys=2)
    a, b, c, d = map(Node, "abcd")
    assert len((await planner.plan([a, b, c, d])).rings) == 1
    assert not (await planner.plan([a, b])).rings
    assert len((await planner.plan([a, b, c])).rings) == 1, "one of four rests"


def test_stages_that_are_too_large_together_are_refused_before_any_starts():
    """The demo model has 15 MB of weights in 16 bits."""
    works = plan_of(9, nodes=3, device="cpu", kv_tokens=64).works
    check_memory(works, str(DEMO_MODEL_DIR), 2**30)
    with pytest.raises(UserError) as error:
        check_memory(works, str(DEMO_MODEL_DIR), 10**7)
    sentence = str(error.value)
    assert " in 3 stages with KV for 64 tokens needs 0.0" in sentence
    assert sentence.endswith(
        "0.01 GB are free: ask for fewer --kv-tokens, or share it with other PCs (`molink up`); or "
        "round the model with `molink import --weights int4`."
    )
    check_memory(plan_of(9, device="cuda").works, str(DEMO_MODEL_DIR), 0)


def test_standbys_have_nodes_and_names_beside_the_stages_and_count_as_memory():
    plan = plan_of(9, nodes=3, standbys=2, device="cpu", kv_tokens=64)
    assert [plan.name(index) for index in range(5)] == [
        *("stage 0", "stage 1", "stage 2", "standby 0", "standby 1"),
    ]
    assert plan.nodes == 5 and plan.load(4, plan.works[1]).stages_here == 5
    free_bytes = 35 * 10**6
    check_memory(plan.works, str(DEMO_MODEL_DIR), free_bytes)
    with pytest.raises(UserError, match="in 9 stages"):
        check_memory(plan.works, str(DEMO_MODEL_DIR), free_bytes, standbys=6)


def test_rings_of_several_roles_have_the_same_layers_and_pairs_in_place():
    roles = (Role.PREFILL, Role.DECODE)
    plan = replace(plan_of(nodes=2, roles=roles), pairs_folder="/f")
    loads = [plan.load(index, plan.works[index % 2]) for index in range(plan.nodes)]
    assert [(one.pairing.path, one.pairing.sends) for one in loads] == [
        *(("/f/pair-1-0", True), ("/f/pair-1-1", True)),
        *(("/f/pair-1-0", False), ("/f/pair-1-1", False)),
    ]
    assert [plan.name(index) for index in range(4)] == [
        *("prefill 0, stage 0", "prefill 0, stage 1", "decode 1, stage 0", "decode 1, stage 1"),
    ]
    assert loads[0].stages_here == 4


def test_rings_without_pairs_hand_nothing_over():
    plan = plan_of(nodes=2, roles=(Role.BOTH, Role.BOTH))
    assert all(plan.load(index, plan.works[0]).pairing is None for index in range(4))


async def test_each_ring_is_planned_as_soon_as_its_own_nodes_may_be_used():
    works = plan_of(nodes=2).works
    planner = FixedPlanner(("a", "b", "c", "d"), works)
    nodes = {name: SimpleNamespace(node_id=name) for name in "abcd"}
    for free, rings in (("abcd", 2), ("cd", 1), ("abd", 1), ("bc", 0)):
        plan = await planner.plan([nodes[name] for name in free])
        assert len(plan.rings) == rings
    assert plan.shortage == "2 of 4 stages can be started now."
    (ring,) = (await planner.plan([nodes["c"], nodes["d"]])).rings
    assert [stage.node_id for stage in ring.stages] == ["c", "d"]


@pytest.mark.parametrize(
    ("roles", "why"),
    [("prefill", "leaves no ring"), ("prefill,decoder", "got 'decoder'")],
)
def test_roles_are_read_as_typed(roles, why):
    (setting,) = [one for field, one in settings_in(ServeSettings) if field.name == "roles"]
    with pytest.raises(UserError, match=f"--roles .*{why}"):
        setting.read(roles)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"prefix_cache": False}, "--no-prefix-cache caches nothing"),
        ({"standbys": 1}, "--roles has several"),
        ({"nodes": 33}, "at most 64"),
    ],
)
def test_roles_that_do_not_go_with_other_settings_are_refused(given, why):
    with pytest.raises(UserError, match=why):
        chosen(**{"nodes": 2, "roles": (Role.PREFILL, Role.DECODE)} | given)
