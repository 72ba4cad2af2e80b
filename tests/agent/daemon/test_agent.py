"""One agent, a node for each lent device; what its owner wants holds for all of them."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.payloads import AssignedWork, NodeState, WeightsSource
from molink.node.stage_handle import StageHandle
from molink.stage_protocol.messages import LoadStage, SetCacheRam, StageWork, decode_line
from molink_agent.daemon import agent as agent_module
from molink_agent.daemon.agent import DEVICES_EVERY_S, NO_DEVICE, LeftError, assign_devices
from molink_agent.daemon.process import node_name
from molink_agent.daemon.status import answer_owner, status_of
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.status_text import status_lines
from molink_scheduler.units import GB
from tests.agent.daemon.agents import PAIR, FakeGroup, agent_with
from tests.agent.probe.fake_nvml import FakeCard
from tests.control.assignments import loading

LOAD = LoadStage("m", StageWork((0, 2), "cpu", "auto"), "127.0.0.1")
WORK = AssignedWork(
    layers=(0, 2), device="cuda:1", dtype="float32", weights=WeightsSource(model="m")
)


def devices(agent) -> list[str]:
    return [node.device for node in agent.nodes]


async def running(tmp_path, *cards, **limits):
    """An agent that has looked at its devices once."""
    agent, driver = agent_with(tmp_path, *cards, **limits)
    agent._group = FakeGroup()
    await agent.refresh()
    return agent, driver


async def test_every_card_has_a_node_with_keys_of_its_own(tmp_path):
    agent, _ = await running(tmp_path, FakeCard(), FakeCard(), FakeCard())
    assert devices(agent) == ["cuda:0", "cuda:1", "cuda:2"]
    ids = [node.session.node_id for node in agent.nodes]
    assert ids == [PAIR.for_device(number).node_id for number in range(3)]
    assert [node.session.name for node in agent.nodes] == ["attic", "attic (2)", "attic (3)"]
    assert agent.first.admission.kept is not None
    assert len(agent._group.started) == 2, "the first one is started by itself"
    second = agent.nodes[1]
    profile = agent.pc.profile(second.device, second.reports.measured)
    assert [(one.kind, one.index) for one in profile.devices] == [("cuda", 1)]


async def test_without_a_card_the_cpu_is_lent_and_cards_that_come_later_are(tmp_path):
    agent, driver = await running(tmp_path)
    assert devices(agent) == ["cpu"]
    driver.cards += [FakeCard(), FakeCard()]
    await agent.refresh()
    assert devices(agent) == ["cpu"], "drivers are not asked at every look"
    agent._devices_checked_at -= DEVICES_EVERY_S
    await agent.refresh()
    assert devices(agent) == ["cuda:0", "cuda:1"]


async def test_a_device_that_is_taken_back_ends_its_nodes_lending_only(tmp_path):
    agent, _ = await running(tmp_path, FakeCard(), FakeCard())
    LimitsFile(tmp_path).set("device", "cuda:0")
    await answer_owner(agent, {"command": "look"})
    assert devices(agent) == ["cuda:0", ""]
    assert [node.reports.wish.wish for node in agent.nodes] == ["serve", "pause"]
    assert agent.nodes[1].state is NodeState.PAUSED
    assert "doctor" in agent.nodes[1].reports.wish.reason


async def test_a_driver_that_is_silent_takes_no_device_from_a_stage(tmp_path):
    agent, driver = await running(tmp_path, FakeCard(), FakeCard())
    agent.nodes[1].stage.assignment = loading(WORK)
    driver.cards[1].refuses = frozenset({"memory"})
    agent._devices_checked_at -= DEVICES_EVERY_S
    await agent.refresh()
    assert devices(agent) == ["cuda:0", "cuda:1"]


def told_of_cache(handle) -> list[int | None]:
    commands = map(decode_line, handle.child.lines)
    return [one.lent_bytes for one in commands if isinstance(one, SetCacheRam)]


async def test_main_memory_for_cached_kv_is_back_at_once_and_lent_again(tmp_path):
    agent, _ = await running(tmp_path, FakeCard(), FakeCard())
    for node in agent.nodes:
        lines: list[bytes] = []
        child = SimpleNamespace(pid=7, lines=lines, write_line=lines.append)
        node.stage.handle = StageHandle("stage", LOAD, child)
    handles = [node.stage.handle for node in agent.nodes]
    await agent.refresh()
    assert told_of_cache(handles[0]) == [], "a stage has what it took"
    await answer_owner(agent, {"command": "pause"})
    await agent.refresh()
    await answer_owner(agent, {"command": "resume"})
    LimitsFile(tmp_path).set("cache_ram_gb", "3")
    await answer_owner(agent, {"command": "look"})
    assert [told_of_cache(one) for one in handles] == [[0, None, 3 * GB // 2]] * 2


async def test_a_pause_holds_for_all_devices_and_so_does_leaving(tmp_path):
    agent, _ = await running(tmp_path, FakeCard(), FakeCard())
    answer = await answer_owner(agent, {"command": "pause"})
    assert [device["state"] for device in answer["devices"]] == ["paused", "paused"]
    answer = await answer_owner(agent, {"command": "resume"})
    assert [device["state"] for device in answer["devices"]] == ["joining", "joining"]
    await answer_owner(agent, {"command": "leave"})
    assert [node.reports.wish.wish for node in agent.nodes] == ["leave", "leave"]
    assert not agent.pc.busy
    agent.nodes[1].stage.assignment = loading(WORK)
    assert agent.pc.busy


async def test_status_has_a_line_for_each_device(tmp_path):
    agent, _ = await running(tmp_path, FakeCard(), FakeCard())
    agent.nodes[1].stage.assignment = loading(WORK)
    agent.nodes[0].refused = "This PC has not joined this cluster yet."
    answer = json.loads(json.dumps(status_of(agent)))
    assert (answer["id"], answer["device"]) == (agent.first.session.node_id, "cuda:0")
    lines = list(status_lines(answer))
    assert lines[0] == f"attic ({agent.first.session.node_id}) in https://127.0.0.1:9"
    assert f"cuda:1: attic (2) ({agent.nodes[1].session.node_id})" in lines
    assert any("has not joined" in line for line in lines)
    assert answer["devices"][1]["layers"] == [0, 2]


async def test_one_device_is_shown_without_more_ado(tmp_path):
    agent, _ = await running(tmp_path, FakeCard())
    agent.first.stage.assignment = loading(WORK)
    lines = list(status_lines(status_of(agent)))
    assert lines[1].startswith("state: ") and not any("cuda:0: " in line for line in lines)


async def test_memory_that_our_stages_hold_is_known_by_device(tmp_path):
    agent, _ = await running(tmp_path, device="cpu,cpu", threads="2")
    assert agent.pc.held_bytes == {"cpu": 0, "cpu:1": 0}
    parts = agent.pc.lent()
    assert [one.device for one in parts] == ["cpu", "cpu:1"]
    assert [one.threads for one in parts] == [1, 1]


@pytest.mark.parametrize("name", ["attic", "x" * 60])
def test_a_device_s_name_ends_with_its_number_however_long_the_pc_s_is(name):
    assert node_name(name, 0) == name
    assert node_name(name, 1).endswith(" (2)")
    assert len(node_name(name, 11)) <= 60


DEVICES = st.lists(st.sampled_from(["cpu", "cpu:1", "cuda:0", "cuda:1", "cuda:2"]), unique=True)


@given(DEVICES, DEVICES, DEVICES)
def test_every_lent_device_has_one_node_and_none_moves_without_need(first, second, third):
    before = assign_devices(assign_devices((), first), second)
    after = assign_devices(before, third)
    assert len(after) >= len(before) >= 1
    assert sorted(device for device in after if device != NO_DEVICE) == sorted(third)
    for old, new in zip(before, after, strict=False):
        assert new == old or old not in third
    assert NO_DEVICE not in after or len(after) == len(before) > len(third)


def test_a_node_that_lost_its_device_takes_one_that_nobody_has():
    assert assign_devices((), ()) == (NO_DEVICE,)
    assert assign_devices((NO_DEVICE,), ["cuda:0", "cuda:1"]) == ("cuda:0", "cuda:1")
    assert assign_devices(("cuda:0", "cuda:1"), ["cuda:1"]) == (NO_DEVICE, "cuda:1")
    assert assign_devices((NO_DEVICE, "cuda:1"), ["cuda:1", "cpu"]) == ("cpu", "cuda:1")


async def test_who_leaves_waits_until_stages_have_brought_home_what_it_has_lent(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(agent_module, "REFRESH_S", 0.001)
    agent, _ = agent_with(tmp_path)
    cell = agent.first.cell
    allowed = cell.ram._allowed
    agent.owner.leaving, allowed[1] = True, 1000
    keeping = asyncio.create_task(agent._keep_fresh())
    await asyncio.sleep(0.1)
    assert not keeping.done() and cell.lends
    allowed.clear()
    with pytest.raises(LeftError):
        await keeping
