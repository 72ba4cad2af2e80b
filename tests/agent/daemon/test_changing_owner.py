"""An owner who changes every limit and device while the PC serves, in random order, 200 times.

Everything is real but the coordinator, the driver and the stage's process: limits file, policy,
agent, device nodes and stage managers. The coordinator's side is what a node publishes: at each
step it must be such that a coordinator knows where it is.
"""

import asyncio
import random

import pytest

from molink.control.messages.assignment import Assignment, Load, Stop
from molink.control.messages.payloads import (
    AssignedWork,
    NodeWish,
    ProbeOrder,
    Profile,
    StageFact,
    StepCost,
    WeightsSource,
)
from molink.wire.protocol import PROTOCOL_VERSION
from molink_agent.daemon import stage_launcher
from molink_agent.daemon.status import answer_owner, status_of
from molink_agent.daemon.step_times import KeptStepTimes
from molink_agent.limits.assignment_check import refusal_of_work
from molink_agent.status_text import status_lines
from tests.agent.daemon.agents import FakeGroup, agent_with
from tests.agent.probe.fake_nvml import FakeCard

CHANGES = 200

VALUES = {
    "vram_gb": ("0", "0.1", "6", "none"),
    "memory_gb": ("0", "0.001", "2", "none"),
    "upload_mbps": ("1", "50", "none"),
    "disk_gb": ("1", "50", "none"),
    "hours": ("mon 03:00-03:01", "mon-sun 00:00-24:00", "none", "none"),
    "only_when_idle_minutes": ("1440", "none", "none", "none"),
    "pause_on_battery": ("true", "false"),
    "pause_on_game": ("true", "false"),
    "threads": ("1", "1024", "none"),
    "device": ("auto", "cpu", "cuda:0", "cuda:1", "cuda:7", "cpu,cpu", "cuda:1,cpu", "none"),
    "direct": ("true", "false"),
}


OTHERS = ("pause", "resume", "resume", "resume", "driver", "measure", *["assign"] * 6)


class Broker:
    """What a node has published last, in place of its client; the order of it counts."""

    connected = True

    def __init__(self):
        self.said = {}

    async def publish(self, topic, node_id, message):
        self.said[type(message)] = message
        profile, wish = self.said.get(Profile), self.said.get(NodeWish)
        if profile is not None and not profile.devices:
            assert wish is not None and wish.wish != "serve", "a ring would count on nothing"


class World:
    def __init__(self, tmp_path, seed):
        self.chance = random.Random(seed)
        self.agent, self.driver = agent_with(tmp_path, FakeCard(), FakeCard())
        self.agent._group = FakeGroup()
        self.revision = 0
        self.fetching = asyncio.Event()

    def connect(self):
        for node in self.agent.nodes:
            if node.session.client is None:
                node.session.client = Broker()
                node.reports.publish_again()
            if node.admission.kept is None:
                node.admission.kept = self.agent.first.admission.kept

    async def change(self):
        key = self.chance.choice([*VALUES, *OTHERS])
        node = self.chance.choice(self.agent.nodes)
        match key:
            case "pause" | "resume":
                await answer_owner(self.agent, {"command": key})
            case "driver":
                self.driver.cards[:] = [FakeCard()] * self.chance.randrange(3)
            case "assign":
                await self.assign(node)
            case "measure":
                order = ProbeOrder(round=self.revision, model="m", peers=())
                await node.probes.take(order)
            case _:
                self.agent.owner.limits.set(key, self.chance.choice(VALUES[key]))
                await answer_owner(self.agent, {"command": "look"})

    async def assign(self, node):
        self.revision += 1
        work = AssignedWork(
            layers=(0, 1),
            device=self.chance.choice(["cuda:1", node.device or "cpu"]),
            dtype="auto",
            kv_tokens=self.chance.choice([16, 2**30]),
            threads=self.chance.choice([1, 1, 1, 1000]),
            weights=WeightsSource(model="m"),
        )
        is_work = self.chance.random() < 0.7
        command = Load(work=work) if is_work else Stop()
        given = Assignment(revision=self.revision, command=command, protocol=PROTOCOL_VERSION)
        await node._handle(given)
        self.fetching.clear()
        fetching = asyncio.ensure_future(self.fetching.wait())
        await asyncio.wait({node.stage._task, fetching}, return_when=asyncio.FIRST_COMPLETED)
        fetching.cancel()


@pytest.mark.parametrize("seed", range(3))
async def test_the_agent_goes_on_and_is_always_in_a_sound_state(tmp_path, monkeypatch, seed):
    started = []

    async def start(self, work, directory, allowed):
        raise AssertionError("nothing is started without files")

    async def get(self, number, token, work, report):
        loan = self.pc.loan(self.pc.stages[number], "")
        assert not refusal_of_work(work, loan), "fetched although it passes a limit"
        started.append(work)
        world.fetching.set()
        await asyncio.Event().wait()

    async def begin(self, threads):
        pass

    async def of(self, order, loan, budget):
        assert loan.device and not loan.withheld
        return StepCost(model="m", decode_fixed_s=1, decode_row_s=0, prefill_row_s=1)

    monkeypatch.setattr(stage_launcher.WarmStage, "begin", begin)
    monkeypatch.setattr(stage_launcher.AgentStageLauncher, "start", start)
    monkeypatch.setattr(stage_launcher.WeightsCache, "get", get)

    async def of_formats(self, loan, budget):
        assert loan.device and not loan.withheld
        return ()

    monkeypatch.setattr(KeptStepTimes, "of", of)
    monkeypatch.setattr(KeptStepTimes, "of_formats", of_formats)
    world = World(tmp_path, seed)
    agent = world.agent
    await agent.refresh()
    for _ in range(CHANGES):
        world.connect()
        await world.change()
        world.connect()
        agent._devices_checked_at = None
        await agent.refresh()
        for node in agent.nodes:
            sound(agent, node)
        assert list(status_lines(status_of(agent) | {"given": None}))
    assert started, "some assignments were carried out"
    for node in agent.nodes:
        await node.stage.stop()
        await node.probes.stop()


def sound(agent, node):
    said = node.session.client.said if node.session.client is not None else {}
    wish, profile = said.get(NodeWish), said.get(Profile)
    if wish is not None:
        assert wish.wish == node.reports.wish.wish
        if not agent.owner.now.allowed or not node.device:
            assert wish.wish != "serve" and wish.reason
    if profile is not None:
        assert len(profile.devices) <= 1
        if not node.device:
            assert not profile.devices
    fact = said.get(StageFact)
    if fact is not None and fact.kind == "failed":
        assert fact.message.endswith(".")
    assert node.stage.state in ("standby", "loading")
    devices = [one.device for one in agent.nodes if one.device]
    assert len(set(devices)) == len(devices)
