"""Limits that leave nothing to give: said when they are found, and taken back when they are not."""

from dataclasses import dataclass, field
from pathlib import Path

from molink.control.messages.payloads import ModelSize
from molink_agent.daemon.enough import AGAIN_MARGIN, LOOK_S, Enough
from molink_agent.daemon.status import status_of
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.limits.verdict import Verdict
from molink_agent.probe.gpus import GpuReport
from molink_agent.probe.profile import Measured
from tests.agent.daemon.agents import agent_with
from tests.agent.probe.fake_nvml import FakeCard

MODEL = ModelSize(name="m", layers=4, layer_bytes=100)


@dataclass
class Pc:
    """Lends so many bytes."""

    lent_bytes: float = 100.0
    asked: int = 0

    def shortage(self, model, margin):
        self.asked += 1
        return "" if self.lent_bytes >= margin * model.layer_bytes else "raise memory_gb."


async def test_it_is_looked_at_once_and_then_now_and_then():
    pc = Pc()
    enough = Enough(pc.shortage, MODEL)
    for now in (1000.0, 1002.0, 1000.0 + LOOK_S - 0.1):
        await enough.look(now, changed=False, busy=False)
    assert (enough.sentence, pc.asked) == ("", 1)
    pc.lent_bytes = 0.0
    await enough.look(1000.0 + LOOK_S, changed=False, busy=False)
    assert enough.sentence == "raise memory_gb."


async def test_a_changed_limit_counts_at_once_in_both_directions():
    pc = Pc()
    enough = Enough(pc.shortage, MODEL)
    await enough.look(1000.0, changed=False, busy=False)
    pc.lent_bytes = 99.0
    await enough.look(1001.0, changed=True, busy=False)
    assert enough.sentence
    pc.lent_bytes = 100.0
    await enough.look(1002.0, changed=True, busy=False)
    assert not enough.sentence


async def test_memory_that_comes_back_by_itself_must_be_more_than_just_enough():
    pc = Pc(0.0)
    enough = Enough(pc.shortage, MODEL)
    await enough.look(1000.0, changed=False, busy=False)
    pc.lent_bytes = 100.0
    await enough.look(1000.0 + LOOK_S, changed=False, busy=False)
    assert enough.sentence
    pc.lent_bytes = 100.0 * AGAIN_MARGIN + 1
    await enough.look(1000.0 + 2 * LOOK_S, changed=False, busy=False)
    assert not enough.sentence


async def test_what_a_stage_holds_is_no_shortage_nor_what_it_has_just_given_back():
    pc = Pc(0.0)
    enough = Enough(pc.shortage, MODEL)
    await enough.look(1000.0, changed=True, busy=True)
    await enough.look(1000.0 + LOOK_S - 0.1, changed=False, busy=False)
    assert (enough.sentence, pc.asked) == ("", 0)
    await enough.look(1000.0 + LOOK_S, changed=False, busy=False)
    assert enough.sentence


async def test_without_a_model_anything_is_enough():
    enough = Enough(Pc(0.0).shortage)
    await enough.look(1000.0, changed=True, busy=False)
    assert not enough.sentence


async def test_the_coordinator_hears_of_it_as_of_a_pause(tmp_path):
    agent, _ = agent_with(tmp_path, FakeCard())
    seat = agent.first
    await seat.sit("cuda:0")
    assert seat.wish.wish == "serve"
    seat.enough.sentence = "memory_gb leaves 0.00 GB: raise it."
    assert (seat.wish.wish, seat.wish.reason) == ("pause", seat.enough.sentence)
    assert status_of(agent)["shortage"] == seat.enough.sentence
    agent.owner.now = Verdict(False, "Paused by its owner.")
    assert seat.wish.reason == "Paused by its owner.", "what he has said himself comes first"


async def test_a_device_that_is_too_small_pauses_alone(tmp_path):
    agent, _ = agent_with(tmp_path, FakeCard(), FakeCard())
    for number in range(2):
        if number:
            agent._add_seat()
        await agent.seats[number].sit(f"cuda:{number}")
    agent.seats[1].enough.sentence = "cuda:1 is too small."
    assert [seat.wish.wish for seat in agent.seats] == ["serve", "pause"]
    assert status_of(agent)["shortage"] == ""
    await agent.seats[1].sit("cpu")
    assert agent.seats[1].wish.wish == "serve", "of another device nothing is known yet"


@dataclass
class NoGpus:
    asked: list = field(default_factory=list)

    def read(self, own_pids=frozenset()):
        return GpuReport(reason="none")


def test_this_pc_tells_what_to_change(tmp_path):
    limits = LimitsFile(tmp_path)
    limits.set("memory_gb", "0.001")
    pc = ThisPc(Path(tmp_path), limits, NoGpus(), Measured())
    large = ModelSize(name="large", layers=4, layer_bytes=2**40)
    assert "raise it" in pc.shortage(large)
    assert pc.shortage(MODEL) == "" == pc.shortage(large, device="cuda:0")
    limits.set("device", "cuda:9")
    assert "is not on this PC" in pc.shortage(MODEL)
