"""What the hub makes of messages: who is told, and who counts as silent."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from molink.control.messages.payloads import Accepted, Assignment, NodeHealth, NodeState, Services
from molink.control.messages.received import Received
from molink.control.messages.topics import HEALTH, PRESENCE
from molink.control.messages.topics import PROFILE as PROFILE_TOPIC
from molink.coordinator.members import hub as hub_module
from molink.coordinator.members.hub import ControlHub
from molink.coordinator.members.node_book import NodeBook
from molink.coordinator.members.probing import Probing
from tests.coordinator.examples import HERE, PROFILE, WORK

ALIVE = NodeHealth(incarnation="a" * 12, state=NodeState.STANDBY, uptime_s=1.0)


@dataclass
class FakeClient:
    """Hands on what is put into `said`."""

    connected: bool = True
    said: asyncio.Queue = field(default_factory=asyncio.Queue)
    told: list = field(default_factory=list)

    async def publish(self, topic, node_id, message):
        self.told.append((node_id, message))

    async def messages(self):
        while True:
            yield await self.said.get()
            self.said.task_done()


@dataclass
class FakeMember:
    pc: str
    public_key: str = "k" * 40


class FakeRegistry:
    """Knows everybody but strangers."""

    def member(self, node_id):
        return None if node_id == "stranger" else FakeMember(node_id)

    def changed_elsewhere(self):
        return False


class World:
    def __init__(self):
        self.client, self.book, self.noticed = FakeClient(), NodeBook(), []
        self.hub = ControlHub(
            self.client,
            None,
            FakeRegistry(),
            self.book,
            "session",
            lambda node_id: Services(),
            Probing("m", {}, b"s"),
            noticed=self.noticed.append,
        )

    async def say(self, node_id, topic, message):
        """Until the hub has taken it."""
        self.noticed.clear()
        self.client.said.put_nowait(Received(topic, node_id, message))
        async with asyncio.timeout(5):
            await self.client.said.join()
        return list(self.noticed)


@asynccontextmanager
async def world():
    made = World()
    running = asyncio.create_task(made.hub.run("m"))
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_heartbeat_is_news_of_whom_a_ring_counts_on_and_of_who_was_lost():
    async with world() as w:
        assert await w.say("a", PRESENCE, HERE) == ["a"]
        assert await w.say("a", HEALTH, ALIVE) == []
        w.book.node("a").lost = True
        assert await w.say("a", HEALTH, ALIVE) == ["a"]
        assert w.book.node("a").is_here
        w.book.node("a").assignment = Assignment(revision=1, work=WORK)
        assert await w.say("a", HEALTH, ALIVE) == ["a"]


async def test_a_newcomer_is_greeted_and_told_of_the_model():
    async with world() as w:
        await w.say("a", PRESENCE, HERE)
        await w.say("a", PROFILE_TOPIC, PROFILE.model_copy(update={"steps": None}))
        told = [message for node_id, message in w.client.told if node_id == "a"]
        assert [type(message) for message in told[:2]] == [Accepted, Services]
        assert told[2].model == "m"


async def test_strangers_are_not_heard():
    async with world() as w:
        w.client.said.put_nowait(Received(PRESENCE, "stranger", HERE))
        await w.say("a", PRESENCE, HERE)
        assert w.hub.strangers_count == 1 and set(w.book.nodes) == {"a"}


@dataclass
class JumpingClock:
    """Says 0 for the first looks; an hour has gone by then, as when a PC was suspended."""

    looks: int = 3

    def monotonic(self):
        self.looks -= 1
        return 0.0 if self.looks > 0 else 3600.0


async def test_whoever_was_not_heard_while_we_were_held_up_is_not_lost(monkeypatch):
    clock = JumpingClock()
    monkeypatch.setattr(hub_module, "TICK_S", 0.0)
    monkeypatch.setattr(hub_module, "time", clock)
    w = World()
    w.book.take("a", HERE, 0.0)
    running = asyncio.create_task(w.hub.run("m"))
    async with asyncio.timeout(5):
        while clock.looks > -5:  # noqa: ASYNC110 - the hub looks by itself
            await asyncio.sleep(0)
    assert w.book.node("a").is_here
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
