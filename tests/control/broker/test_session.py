"""What one connection may cost the embedded broker: in virtual time, without a socket."""

import asyncio
from dataclasses import dataclass, field

import pytest

from molink.control.broker import session as session_module
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.broker.packets import Kind, Message, encode_publish, take_packet
from molink.control.broker.routing import Router
from molink.control.broker.session import Session, Sessions
from molink.control.client import ControlClient
from tests.control.conftest import PASSWORD, until
from tests.control.raw_client import RawClient, connect_packet, packet, text

HOME_LINE_BYTES_PER_S = 20e6 / 8
SAID = "molink/v1/node/{}/said/{}"


@dataclass
class FakeLoop:
    """Its time goes on when it is told to."""

    now: float = 0.0
    timers: list = field(default_factory=list)

    def time(self):
        return self.now

    def call_later(self, delay_s, call, *arguments):
        self.timers.append((self.now + delay_s, call, arguments))
        return self

    def cancel(self):
        """As a timer; none here need be."""

    def create_future(self):
        return asyncio.get_running_loop().create_future()

    def go_on(self, seconds):
        self.now += seconds
        due = [one for one in self.timers if one[0] <= self.now]
        self.timers = [one for one in self.timers if one[0] > self.now]
        for _, call, arguments in due:
            call(*arguments)


@dataclass
class FakeTransport:
    address: str = "10.0.0.1"
    written: bytearray = field(default_factory=bytearray)
    reading: bool = True
    closed: bool = False

    def get_extra_info(self, name):
        return (self.address, 1)

    def write(self, data):
        self.written += data

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    def get_write_buffer_size(self):
        return 0

    abort = close


class World:
    def __init__(self):
        self.loop, self.router, self.sessions = FakeLoop(), Router(), Sessions()

    def dial(self, address="10.0.0.1"):
        session, transport = (
            Session(self.router, lambda *_: True, self.sessions),
            FakeTransport(address),
        )
        session._loop, session._last_data_s = self.loop, self.loop.now
        session.connection_made(transport)
        return session, transport

    def connect(self, name, **more):
        session, transport = self.dial()
        session.data_received(connect_packet(name, "p", name, **more))
        transport.written.clear()
        return session, transport

    def heard(self, transport):
        found = []
        while (came := take_packet(transport.written, 2**24)) is not None:
            found += [came] if came.kind == Kind.PUBLISH else []
        return len(found)


@pytest.fixture
async def world():
    return World()


def said(node, kind="presence", payload=b"{}"):
    return encode_publish(Message(SAID.format(node, kind), payload, 0, False), 0)


async def test_a_flood_is_not_read_and_others_are(world):
    _, coordinator = world.connect("coordinator")
    world.router.subscribe("coordinator", "molink/v1/#", 0)
    evil, line = world.connect("evil")
    good, _ = world.connect("good")
    one, sent = said("evil", payload=b"x" * 300), 0
    for step in range(1000):
        if line.reading:
            count = int(HOME_LINE_BYTES_PER_S / 100 / len(one))
            evil.data_received(one * count)
            sent += count
        if step % 100 == 0:
            good.data_received(said("good"))
        world.loop.go_on(0.01)
    heard = world.heard(coordinator)
    assert heard - 10 <= 500 + 100 * 10 + 1
    assert not evil._ended and len(evil._buffer) < 2**18
    assert sent < 3000, "TCP holds the rest back"


async def test_bytes_are_held_back_as_words_are(world):
    evil, line = world.connect("evil")
    for _ in range(17):
        evil.data_received(said("evil", payload=b"x" * 65_000))
    assert not line.reading
    world.loop.go_on(1.0)
    assert line.reading


async def test_a_node_that_is_not_read_is_not_silent(world):
    evil, line = world.connect("evil", keepalive=1)
    evil.data_received(said("evil") * 800)
    assert not line.reading
    world.loop.now += 2.9
    evil.end_if_lost()
    assert not line.closed
    world.loop.go_on(0.2)
    assert line.reading
    world.loop.go_on(2.0)
    evil.end_if_lost()
    assert line.closed


async def test_an_agent_that_comes_back_and_loads_is_read_at_once(world):
    """Its states, forty steps of a load, a heartbeat a second; ten times a minute."""
    node, line = world.connect("n1", keepalive=3)
    for second in range(60):
        if second % 6 == 0:
            for kind in ("presence", "profile", "paths", "seen", "fact", "wish"):
                node.data_received(said("n1", kind, b"x" * 5000))
            node.data_received(said("n1", "fact", b"x" * 300) * 40)
        node.data_received(said("n1", "health", b"x" * 1000) + b"\xc0\0")
        assert line.reading
        world.loop.go_on(1.0)


async def test_who_was_not_read_while_we_were_held_up_is_not_lost(world):
    node, line = world.connect("n1", keepalive=1)
    world.loop.now += 60.0
    node.excuse_silence()
    node.end_if_lost()
    assert not line.closed
    world.loop.now += 1.6
    node.end_if_lost()
    assert line.closed


async def test_a_loop_that_was_held_up_costs_no_client_its_connection(world):
    broker = EmbeddedBroker("127.0.0.1", 0)
    node, line = world.connect("n1", keepalive=1)
    broker._sessions.add(node)
    world.loop.now += 1.7
    broker.end_lost(1.7)
    assert not line.closed, "what it has said meanwhile was not read yet"
    world.loop.now += 1.7
    broker.end_lost(0.25)
    assert line.closed


async def test_the_coordinator_may_say_what_it_likes(world):
    coordinator, line = world.connect("coordinator")
    for _ in range(100):
        coordinator.data_received(said("n1", payload=b"x" * 900_000))
    assert line.reading and not line.closed


@pytest.mark.parametrize("kind", [1, 3, 4, 8, 10, 12, 14])
async def test_a_node_s_packet_has_an_end_whatever_its_kind(world, kind):
    node, line = world.connect("n1")
    node.data_received(bytes([kind << 4 | 2]) + b"\x80\x80\x80\x01")
    assert line.closed and len(node._buffer) < 10


async def test_many_filters_cost_nothing(world):
    node, line = world.connect("n1")
    filters = (text("molink/v1/node/n1/told/#") + b"\1") * 33
    node.data_received(packet(0x82, b"\0\1" + filters))
    assert line.closed and not line.written


async def test_what_is_retained_is_not_sent_again_and_again(world):
    for number in range(20):
        message = Message(f"molink/v1/node/n1/told/{number}", b"x", 1, True)
        world.router.publish("coordinator", message)
    node, line = world.connect("n1")
    subscribe = packet(0x82, b"\0\1" + text("molink/v1/node/n1/told/#") + b"\1")
    node.data_received(subscribe * 1000)
    assert world.heard(line) <= 520 and not line.reading


async def test_strangers_find_no_room_when_there_are_many(world, monkeypatch):
    monkeypatch.setattr(session_module, "STRANGERS_PER_ADDRESS_MAX", 3)
    monkeypatch.setattr(session_module, "STRANGERS_MAX", 5)
    known = [world.connect("n1"), world.connect("n2")]
    lines = [world.dial("10.0.0.9")[1] for _ in range(4)]
    assert [line.closed for line in lines] == [False, False, False, True]
    assert not world.dial("10.0.0.8")[1].closed
    assert world.dial("10.0.0.7")[1].closed, "in all they are five"
    assert not any(line.closed for _, line in known)


async def test_a_stranger_makes_room_when_it_is_known_or_gone(world, monkeypatch):
    monkeypatch.setattr(session_module, "STRANGERS_MAX", 1)
    for number in range(3):
        world.connect(f"n{number}")
    stranger, line = world.dial()
    world.loop.go_on(5.1)
    stranger.end_if_lost()
    assert line.closed, "it never said who it is"
    stranger.connection_lost(None)
    assert not world.dial()[1].closed


@pytest.fixture
async def encrypted(certificate):
    broker = EmbeddedBroker("127.0.0.1", 0, certificate)
    await broker.allow("n1", PASSWORD)
    await broker.start()
    yield broker
    await broker.stop()


async def test_strangers_who_never_begin_tls_are_counted(encrypted, monkeypatch):
    monkeypatch.setattr(session_module, "STRANGERS_MAX", 2)
    silent = [await RawClient.dial(encrypted.address) for _ in range(2)]
    await until(lambda: len(encrypted._sessions.strangers) == 2)
    refused = await RawClient.dial(encrypted.address)
    await refused.closed()
    for one in silent:
        one.die()
    await until(lambda: not encrypted._sessions.strangers)
    async with ControlClient.open(encrypted.address, "n1", PASSWORD) as node:
        assert node.connected and not encrypted._sessions.strangers


async def test_what_is_no_tls_ends_only_its_own_connection(encrypted):
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"x" * 600):
        stranger = await RawClient.dial(encrypted.address)
        stranger.writer.write(garbage)
        await stranger.closed()
    async with ControlClient.open(encrypted.address, "n1", PASSWORD) as node:
        assert node.connected
    assert not encrypted._sessions.strangers


async def test_a_broker_that_stops_leaves_no_handshake(encrypted):
    silent = await RawClient.dial(encrypted.address)
    await until(lambda: encrypted._sessions.strangers)
    await encrypted.stop()
    await silent.closed()
    assert not encrypted._sessions.strangers
