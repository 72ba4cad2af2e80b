"""Limits that leave nothing to give: said when they are found, and taken back when they are not."""

from dataclasses import dataclass, field
from pathlib import Path

from molink.control.messages.base import ModelSize
from molink.control.messages.topics import PROFILE, WISH
from molink_agent.daemon.reports import AGAIN_MARGIN, CHECK_EVERY_S, CapacityCheck
from molink_agent.daemon.status import status_of
from molink_agent.daemon.this_pc import Measured, ThisPc
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.limits.owner_policy import OwnerVerdict
from molink_agent.probe.gpus import GpuReport
from tests.agent.daemon.agents import agent_with, agent_with_two_nodes
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


async def test_it_is_checked_at_once_and_then_now_and_then():
    pc = Pc()
    capacity = CapacityCheck(pc.shortage, MODEL)
    for now in (1000.0, 1002.0, 1000.0 + CHECK_EVERY_S - 0.1):
        await capacity.update(now, changed=False, busy=False)
    assert (capacity.sentence, pc.asked) == ("", 1)
    pc.lent_bytes = 0.0
    await capacity.update(1000.0 + CHECK_EVERY_S, changed=False, busy=False)
    assert capacity.sentence == "raise memory_gb."


async def test_a_changed_limit_counts_at_once_in_both_directions():
    pc = Pc()
    capacity = CapacityCheck(pc.shortage, MODEL)
    await capacity.update(1000.0, changed=False, busy=False)
    pc.lent_bytes = 99.0
    await capacity.update(1001.0, changed=True, busy=False)
    assert capacity.sentence
    pc.lent_bytes = 100.0
    await capacity.update(1002.0, changed=True, busy=False)
    assert not capacity.sentence


async def test_memory_that_comes_back_by_itself_must_be_more_than_just_enough():
    pc = Pc(0.0)
    capacity = CapacityCheck(pc.shortage, MODEL)
    await capacity.update(1000.0, changed=False, busy=False)
    pc.lent_bytes = 100.0
    await capacity.update(1000.0 + CHECK_EVERY_S, changed=False, busy=False)
    assert capacity.sentence
    pc.lent_bytes = 100.0 * AGAIN_MARGIN + 1
    await capacity.update(1000.0 + 2 * CHECK_EVERY_S, changed=False, busy=False)
    assert not capacity.sentence


async def test_what_a_stage_holds_is_no_shortage_nor_what_it_has_just_given_back():
    pc = Pc(0.0)
    capacity = CapacityCheck(pc.shortage, MODEL)
    await capacity.update(1000.0, changed=True, busy=True)
    await capacity.update(1000.0 + CHECK_EVERY_S - 0.1, changed=False, busy=False)
    assert (capacity.sentence, pc.asked) == ("", 0)
    await capacity.update(1000.0 + CHECK_EVERY_S, changed=False, busy=False)
    assert capacity.sentence


async def test_without_a_model_anything_is_enough():
    capacity = CapacityCheck(Pc(0.0).shortage)
    await capacity.update(1000.0, changed=True, busy=False)
    assert not capacity.sentence


async def test_the_coordinator_hears_of_it_as_of_a_pause(tmp_path):
    agent, _ = agent_with(tmp_path, FakeCard())
    reports = agent.first.reports
    await agent.first.set_device("cuda:0")
    assert reports.wish.wish == "serve"
    reports.capacity.sentence = "memory_gb leaves 0.00 GB: raise it."
    assert (reports.wish.wish, reports.wish.reason) == ("pause", reports.capacity.sentence)
    assert status_of(agent)["shortage"] == reports.capacity.sentence
    agent.owner.now = OwnerVerdict(False, "Paused by its owner.")
    assert reports.wish.reason == "Paused by its owner.", "the owner's own wish comes first"


async def test_a_device_that_is_too_small_pauses_alone(tmp_path):
    agent, _ = agent_with(tmp_path, FakeCard(), FakeCard())
    for number in range(2):
        if number:
            agent._add_node()
        await agent.nodes[number].set_device(f"cuda:{number}")
    reports = agent.nodes[1].reports
    reports.capacity.sentence = "cuda:1 is too small."
    assert [node.reports.wish.wish for node in agent.nodes] == ["serve", "pause"]
    assert status_of(agent)["shortage"] == ""
    await agent.nodes[1].set_device("cpu")
    assert reports.wish.wish == "serve", "of another device nothing is known yet"


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


@dataclass
class FakeClient:
    """In place of a connection to the coordinator: what it is told of."""

    published: list = field(default_factory=list)

    async def publish(self, topic, node_id, message):
        self.published.append((topic, message))


async def test_an_offer_that_a_full_card_has_refuted_no_longer_counts(tmp_path):
    agent, _ = agent_with(tmp_path, FakeCard())
    stage = agent.pc.stages[0]
    stage.device, before = "cuda:0", agent.pc.lent()[0].lent_bytes
    stage.offered_bytes = before
    stage.manager.times_full += 1
    assert stage.is_offer_refuted
    lent = agent.pc.lent()[0].lent_bytes
    assert lent < before and agent.pc.loan(stage, "").memory_bytes == lent


async def test_a_node_publishes_that_it_pauses_before_it_publishes_that_it_has_no_device(tmp_path):
    second = agent_with_two_nodes(tmp_path).nodes[1]
    second.session.client = FakeClient()
    await second.reports.publish_profile()
    (first, wish), (then, profile) = second.session.client.published
    assert (first, wish.wish, then, profile.devices) == (WISH, "pause", PROFILE, ())


async def test_what_was_told_holds_while_a_driver_does_not_answer(tmp_path):
    agent, driver = agent_with(tmp_path, FakeCard())
    reports = agent.first.reports
    reports.session.client, reports.stage.device = FakeClient(), "cuda:0"
    driver.cards.clear()
    await reports.publish_profile()
    assert not reports.session.client.published and reports.profile is None
