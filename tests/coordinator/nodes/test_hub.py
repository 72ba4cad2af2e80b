"""What the hub makes of messages: who is told, and who counts as silent."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from molink.control.inbox import NODE_BUDGET, Inbox
from molink.control.messages.payloads import (
    Accepted,
    LinkKeys,
    NodeHealth,
    NodeState,
    Services,
)
from molink.control.messages.topics import HEALTH, PRESENCE, Received
from molink.control.messages.topics import PROFILE as PROFILE_TOPIC
from molink.coordinator.nodes import hub as hub_module
from molink.coordinator.nodes.access import BrokerAccess
from molink.coordinator.nodes.hub import ControlHub
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.nodes.probing import Probing
from molink.errors import ControlError
from tests.control.assignments import loading
from tests.coordinator.examples import HERE, PROFILE, WORK

ALIVE = NodeHealth(incarnation="a" * 12, state=NodeState.STANDBY, uptime_s=1.0)


@dataclass
class FakeClient:
    """Hands on what is put into `said`."""

    connected: bool = True
    said: asyncio.Queue = field(default_factory=asyncio.Queue)
    told: list = field(default_factory=list)
    inbox: Inbox = field(default_factory=lambda: Inbox(NODE_BUDGET))

    async def publish(self, topic, node_id, message):
        self.told.append((node_id, message))

    async def clear(self, topic, node_id):
        pass

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
    password: str = "password"


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

    def changed(self):
        return bool(self.changes) and self.changes.pop()

    def list_nodes(self, *, forgotten=False):
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
        self.broker = FakeBroker()
        self.hub = ControlHub(
            self.client,
            BrokerAccess(self.broker, self.client),
            FakeRegistry(),
            self.book,
            "session",
            self.services,
        )

    async def say(self, node_id, topic, message):
        """Until the hub has taken it; whether that is something to decide about."""
        self.book.changed.clear()
        now = time.monotonic()
        self.client.said.put_nowait(Received(topic, node_id, message, arrived_s=now))
        async with asyncio.timeout(5):
            await self.client.said.join()
        return self.book.changed.is_set()

    async def told(self, node_id, count):
        """The first so many messages for a node, once they are there."""
        found = []
        async with asyncio.timeout(5):
            while len(found) < count:
                await asyncio.sleep(0)
                found = [message for one, message in self.client.told if one == node_id]
        return found


async def until(check):
    """The hub's tasks tell nobody what they have done."""
    async with asyncio.timeout(5):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0)


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
        w.book.node("a").assignment = loading(WORK)
        assert await w.say("a", HEALTH, ALIVE)


async def test_a_newcomer_is_greeted_and_told_of_the_model():
    async with world() as w:
        await w.say("a", PRESENCE, HERE)
        await w.say("a", PROFILE_TOPIC, PROFILE.model_copy(update={"steps": None}))
        told = await w.told("a", 3)
        assert [type(message) for message in told[:2]] == [Accepted, Services]
        assert told[2].model == "m"


GONE = HERE.model_copy(update={"online": False})


async def test_who_is_there_again_after_its_last_will_was_never_gone(monkeypatch):
    async with world() as w:
        await w.say("a", PRESENCE, HERE)
        await w.say("a", PRESENCE, GONE)
        assert w.book.node("a").is_here and (will := w.hub._wills["a"])
        await w.say("a", PRESENCE, HERE)
        assert will.cancelled() and not w.hub._wills
        monkeypatch.setattr(hub_module, "GONE_AFTER_S", 0.0)
        await w.say("a", PRESENCE, GONE)
        await until(lambda: not w.book.node("a").is_here)
        assert w.book.changed.is_set() and not w.hub._wills


async def test_who_says_that_it_ends_is_gone_at_once():
    async with world() as w:
        await w.say("a", PRESENCE, HERE)
        await w.say("a", PRESENCE, GONE.model_copy(update={"reason": "The agent was stopped."}))
        assert not w.book.node("a").is_here and not w.hub._wills


async def test_a_node_that_is_removed_after_its_last_will_does_not_come_back_by_it(monkeypatch):
    monkeypatch.setattr(hub_module, "GONE_AFTER_S", 0.0)
    async with world() as w:
        await w.say("a", PRESENCE, HERE)
        w.client.said.put_nowait(Received(PRESENCE, "a", GONE))
        await until(lambda: "a" in w.hub._wills)
        w.book.drop("a")
        await until(lambda: not w.hub._wills)
        assert "a" not in w.book.nodes


async def test_strangers_are_not_heard():
    async with world() as w:
        w.client.said.put_nowait(Received(PRESENCE, "stranger", HERE))
        await w.say("a", PRESENCE, HERE)
        assert set(w.book.nodes) == {"a"}


async def test_a_message_that_cannot_be_taken_is_counted_and_the_next_one_is():
    async with world() as w:
        w.services.trouble = KeyError("not foreseen")
        await w.say("a", PRESENCE, HERE)
        await until(lambda: w.hub.guard.counts == {KeyError: 1})
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
        while not w.broker.forbidden:  # noqa: ASYNC110 - the hub looks by itself
            await asyncio.sleep(0)
    assert w.services.forbidden == w.broker.forbidden
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


async def test_what_repeats_itself_is_answered_once():
    async with world() as w:
        for _ in range(5):
            await w.say("a", PRESENCE, HERE)
        await w.say("b", PRESENCE, HERE)
        await w.told("b", 2)
        assert len(await w.told("a", 2)) == 2
        await w.say("a", PRESENCE, HERE.model_copy(update={"incarnation": "b" * 12}))
        assert (await w.told("a", 3))[2].incarnation == "b" * 12


@dataclass
class StuckClient(FakeClient):
    """Of a broker that acknowledges nothing."""

    async def publish(self, topic, node_id, message):
        await asyncio.Event().wait()


async def test_a_broker_that_acknowledges_nothing_holds_up_neither_reports_nor_watch(monkeypatch):
    monkeypatch.setattr(hub_module, "TICK_S", 0.0)
    w = World()
    w.hub.client = w.client = w.hub.newcomers.client = StuckClient()
    works = w.hub._receive(), w.hub._tick(), w.hub.newcomers.answer()
    tasks = [asyncio.create_task(one) for one in works]
    await w.say("a", PRESENCE, HERE)
    await w.say("a", PROFILE_TOPIC, PROFILE)
    w.hub.registry.changes.append(True)
    await until(lambda: not w.hub.registry.changes)
    assert w.book.node("a").profile == PROFILE
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


STEP_S = 0.01
HEARTBEATS = {second * 100 for second in range(1000)}


@dataclass
class Flood:
    """A home line full of one node's repetitions, and two honest nodes, in virtual time."""

    mbps: float
    read_every_s: float
    """The reader is busy with other things."""
    world: World = field(default_factory=World)
    now: float = 1000.0
    lost: set = field(default_factory=set)

    def __post_init__(self):
        self.inbox = self.world.client.inbox = Inbox(NODE_BUDGET, clock=lambda: self.now)
        for node in ("evil", "good", "fine"):
            self.say(node, PRESENCE, HERE)

    def say(self, node, topic, message):
        self.inbox.put(topic.of(node), message.model_dump_json().encode(), retained=False)

    def run(self, steps):
        size = len(PRESENCE.of("evil")) + len(HERE.model_dump_json())
        each = int(self.mbps * 1e6 / 8 * STEP_S / size)
        for step in range(steps):
            self.now += STEP_S
            if "evil" not in self.world.hub.suspensions:
                for _ in range(each):
                    self.say("evil", PRESENCE, HERE)
            if step in HEARTBEATS:
                self.say("good", HEALTH, ALIVE)
                self.say("fine", HEALTH, ALIVE)
            if step % int(self.read_every_s / STEP_S) == 0:
                for received in self.inbox.read():
                    self.world.hub._take(received)
            if step % int(hub_module.TICK_S / STEP_S) == 0:
                self.tick()

    def tick(self):
        self.world.hub._suspend_floods(self.now)
        self.world.hub._watch_silence(self.now)
        self.lost |= {node.node_id for node in self.world.book if not node.is_here}


@pytest.mark.parametrize("mbps", [3.0, 20.0, 100.0])
async def test_one_member_s_flood_costs_the_others_nothing(mbps):
    flood = Flood(mbps, read_every_s=3.0)
    flood.run(4000)
    assert flood.lost == {"evil"}
    evil = flood.world.book.node("evil")
    assert "far more" in evil.suspended and not evil.is_here
    assert flood.world.hub.access._pending == {"evil": None}


async def test_who_has_rested_is_let_in_again_and_heard():
    flood = Flood(20.0, read_every_s=0.5)
    flood.run(200)
    flood.now, flood.mbps = flood.now + 61.0, 0.0
    flood.tick()
    assert flood.world.hub.access._pending == {"evil": "password"}
    flood.say("evil", PRESENCE, HERE)
    flood.run(1)
    assert flood.world.book.node("evil").is_here
