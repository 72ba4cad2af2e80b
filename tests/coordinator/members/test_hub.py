"""What the hub makes of messages: who is told, and who counts as silent."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from molink.control.messages.payloads import (
    Accepted,
    Assignment,
    LinkKeys,
    NodeHealth,
    NodeState,
    Services,
)
from molink.control.messages.topics import HEALTH, PRESENCE, Received
from molink.control.messages.topics import PROFILE as PROFILE_TOPIC
from molink.coordinator.members import hub as hub_module
from molink.coordinator.members.hub import ControlHub
from molink.coordinator.members.node_book import NodeBook
from molink.coordinator.members.probing import Probing
from molink.errors import ControlError
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
            received = await self.said.get()
            if isinstance(received, Exception):
                raise received
            yield received
            self.said.task_done()


@dataclass
class FakeMember:
    pc: str
    public_key: str = "k" * 40


@dataclass
class FakeMemberThatWas:
    node_id: str
    name: str = "anna"
    removed: float = 1.0


@dataclass
class FakeRegistry:
    """Knows everybody but strangers."""

    failures: int = 0
    """That are left until the disk has room again."""
    changes: list = field(default_factory=list)
    """Whether something was changed, look by look."""
    removed: list = field(default_factory=list)

    def member(self, node_id):
        return None if node_id == "stranger" else FakeMember(node_id)

    def changed_elsewhere(self):
        return bool(self.changes) and self.changes.pop()

    def list_nodes(self):
        self._use()
        return self.removed

    def next_revision(self):
        self._use()
        return 1

    def _use(self):
        if self.failures:
            self.failures -= 1
            raise ControlError("is its disk full or gone?")


class FakeBroker:
    def __init__(self):
        self.forbidden = []

    async def forbid(self, node_id):
        self.forbidden.append(node_id)


@dataclass
class FakeServices:
    """Offers measurements; `trouble` is what asking for the rest fails with."""

    probing: Probing = field(default_factory=lambda: Probing("m", {}, b"s"))
    trouble: Exception | None = None
    forbidden: list = field(default_factory=list)

    def of_node(self, node_id):
        if self.trouble is not None:
            raise self.trouble
        return Services()

    def forbid(self, node_id):
        self.forbidden.append(node_id)


class World:
    def __init__(self):
        self.client, self.book, self.services = FakeClient(), NodeBook(), FakeServices()
        self.hub = ControlHub(
            self.client, FakeBroker(), FakeRegistry(), self.book, "session", self.services
        )

    async def say(self, node_id, topic, message):
        """Until the hub has taken it; whether that is something to decide about."""
        self.book.changed.clear()
        self.client.said.put_nowait(Received(topic, node_id, message))
        async with asyncio.timeout(5):
            await self.client.said.join()
        return self.book.changed.is_set()


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
        assert await w.say("a", PRESENCE, HERE)
        assert not await w.say("a", HEALTH, ALIVE)
        w.book.node("a").lost = True
        assert await w.say("a", HEALTH, ALIVE)
        assert w.book.node("a").is_here
        w.book.node("a").assignment = Assignment(revision=1, work=WORK)
        assert await w.say("a", HEALTH, ALIVE)


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
        assert set(w.book.nodes) == {"a"}


async def test_a_message_that_cannot_be_taken_is_counted_and_the_next_one_is():
    async with world() as w:
        w.services.trouble = KeyError("not foreseen")
        await w.say("a", PRESENCE, HERE)
        assert w.hub.guard.counts == {KeyError: 1}
        assert await w.say("a", PROFILE_TOPIC, PROFILE)


async def test_a_broker_that_refuses_us_ends_it():
    w = World()
    w.client.said.put_nowait(ControlError("The broker does not let us in."))
    with pytest.raises(ControlError, match="does not let us in"):
        async with asyncio.timeout(5):
            await w.hub.run("m")


async def test_a_removal_is_carried_out_once_the_registry_can_be_read_again(monkeypatch):
    monkeypatch.setattr(hub_module, "TICK_S", 0.0)
    w = World()
    w.hub.registry = FakeRegistry(3, [True], [FakeMemberThatWas("a")])
    running = asyncio.create_task(w.hub.run("m"))
    async with asyncio.timeout(5):
        while not w.hub.broker.forbidden:  # noqa: ASYNC110 - the hub looks by itself
            await asyncio.sleep(0)
    assert w.services.forbidden == w.hub.broker.forbidden
    assert w.hub.guard.counts == {ControlError: 3} and not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_keys_of_links_that_could_not_be_told_are_told_the_next_time():
    w = World()
    node, w.hub.registry.failures = w.book.node("a"), 1
    with pytest.raises(ControlError):
        await w.hub.allow_links(node, ("k" * 40,))
    for _ in range(2):
        await w.hub.allow_links(node, ("k" * 40,))
    assert w.client.told == [("a", LinkKeys(revision=1, allowed=("k" * 40,)))]


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
