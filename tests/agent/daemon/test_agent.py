"""One agent, a seat for each lent device; what its owner says holds for all of them."""

import json

import pytest

from molink.control.messages.payloads import Assignment, NodeState, StageWork, WeightsSource
from molink_agent.cli.owner import _show
from molink_agent.daemon.agent import DEVICES_EVERY_S
from molink_agent.daemon.assemble import seat_name
from molink_agent.daemon.status import answer_owner, status_of
from molink_agent.limits.limits_file import LimitsFile
from tests.agent.daemon.agents import PAIR, Lives, agent_with
from tests.agent.probe.fake_nvml import FakeCard

WORK = StageWork(layers=(0, 2), device="cuda:1", dtype="float32", weights=WeightsSource(model="m"))


def devices(agent) -> list[str]:
    return [seat.device for seat in agent.seats]


async def running(tmp_path, *cards, **limits):
    """An agent that has looked at its devices once."""
    agent, driver = agent_with(tmp_path, *cards, **limits)
    agent._group = Lives()
    await agent.look_now()
    return agent, driver


async def test_every_card_has_a_seat_with_keys_of_its_own(tmp_path):
    agent, _ = await running(tmp_path, FakeCard(), FakeCard(), FakeCard())
    assert devices(agent) == ["cuda:0", "cuda:1", "cuda:2"]
    ids = [seat.node_id for seat in agent.seats]
    assert ids == [PAIR.for_device(number).node_id for number in range(3)]
    assert [seat.voice.name for seat in agent.seats] == ["attic", "attic (2)", "attic (3)"]
    assert agent.first.admission.kept is not None
    assert len(agent._group.started) == 2, "the first one is started by itself"
    second = agent.seats[1]
    profile = agent.pc.profile(second.device, second.errand.measured)
    assert [(one.kind, one.index) for one in profile.devices] == [("cuda", 1)]


async def test_without_a_card_the_cpu_is_lent_and_cards_that_come_later_are(tmp_path):
    agent, driver = await running(tmp_path)
    assert devices(agent) == ["cpu"]
    driver.cards += [FakeCard(), FakeCard()]
    await agent.look_now()
    assert devices(agent) == ["cpu"], "drivers are not asked at every look"
    agent._looked_at -= DEVICES_EVERY_S
    await agent.look_now()
    assert devices(agent) == ["cuda:0", "cuda:1"]


async def test_a_device_that_is_taken_back_ends_its_seats_lending_only(tmp_path):
    agent, _ = await running(tmp_path, FakeCard(), FakeCard())
    LimitsFile(tmp_path).set("device", "cuda:0")
    await answer_owner(agent, {"command": "look"})
    assert devices(agent) == ["cuda:0", ""]
    assert [seat.wish.wish for seat in agent.seats] == ["serve", "pause"]
    assert agent.seats[1].state is NodeState.PAUSED
    assert "doctor" in agent.seats[1].wish.reason


async def test_a_driver_that_is_silent_takes_no_device_from_a_stage(tmp_path):
    agent, driver = await running(tmp_path, FakeCard(), FakeCard())
    agent.seats[1].host.assignment = Assignment(revision=1, work=WORK)
    driver.cards[1].refuses = frozenset({"memory"})
    agent._looked_at -= DEVICES_EVERY_S
    await agent.look_now()
    assert devices(agent) == ["cuda:0", "cuda:1"]


async def test_a_pause_holds_for_all_devices_and_so_does_leaving(tmp_path):
    agent, _ = await running(tmp_path, FakeCard(), FakeCard())
    answer = await answer_owner(agent, {"command": "pause"})
    assert [device["state"] for device in answer["devices"]] == ["paused", "paused"]
    answer = await answer_owner(agent, {"command": "resume"})
    assert [device["state"] for device in answer["devices"]] == ["joining", "joining"]
    await answer_owner(agent, {"command": "leave"})
    assert [seat.wish.wish for seat in agent.seats] == ["leave", "leave"]
    assert not agent.busy
    agent.seats[1].host.assignment = Assignment(revision=1, work=WORK)
    assert agent.busy


async def test_status_has_a_line_for_each_device(tmp_path, capsys):
    agent, _ = await running(tmp_path, FakeCard(), FakeCard())
    agent.seats[1].host.assignment = Assignment(revision=1, work=WORK)
    agent.seats[0].refused = "This PC has not joined this cluster yet."
    answer = json.loads(json.dumps(status_of(agent)))
    assert (answer["id"], answer["device"]) == (agent.first.node_id, "cuda:0")
    _show(answer, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"attic ({agent.first.node_id}) in http://127.0.0.1:9"
    assert f"cuda:1: attic (2) ({agent.seats[1].node_id})" in lines
    assert any("has not joined" in line for line in lines)
    assert answer["devices"][1]["layers"] == [0, 2]


async def test_one_device_is_shown_without_more_ado(tmp_path, capsys):
    agent, _ = await running(tmp_path, FakeCard())
    agent.first.host.assignment = Assignment(revision=1, work=WORK)
    _show(status_of(agent), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("state: ") and not any("cuda:0: " in line for line in lines)


async def test_memory_that_our_stages_hold_is_known_by_device(tmp_path):
    agent, _ = await running(tmp_path, device="cpu,cpu", threads="2")
    assert agent.held_bytes == {"cpu": 0, "cpu:1": 0}
    parts = agent.pc.lent()
    assert [one.device for one in parts] == ["cpu", "cpu:1"]
    assert [one.threads for one in parts] == [1, 1]


@pytest.mark.parametrize("name", ["attic", "x" * 60])
def test_a_device_s_name_ends_with_its_number_however_long_the_pc_s_is(name):
    assert seat_name(name, 0) == name
    assert seat_name(name, 1).endswith(" (2)")
    assert len(seat_name(name, 11)) <= 60
