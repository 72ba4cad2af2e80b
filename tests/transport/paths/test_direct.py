"""The first address that proves what it is; silent and wrong ones do not hold it up."""

import asyncio
import time

import zmq

from molink.transport.paths import direct
from molink.transport.paths.direct import find_link_port, first_direct
from molink.transport.sockets import address_of, listen
from tests.transport.relay.nodes import EchoPort, free_address


async def anything(connection):
    """Every connection will do."""


async def nothing(connection):
    raise ConnectionError("not what we look for")


async def test_the_first_address_that_answers_is_taken():
    async with EchoPort() as port:
        address, connection = await first_direct([free_address(), port.address], anything)
        assert address == port.address
        connection.close()


async def test_a_better_address_wins_over_a_later_one():
    async with EchoPort() as better, EchoPort() as other:
        address, connection = await first_direct([better.address, other.address], anything)
        assert address == better.address
        assert other.connections == 0
        connection.close()


async def test_no_answer_and_no_address_are_none():
    assert await first_direct([], anything) is None
    assert await first_direct([free_address(), "nonsense", "host:99999"], anything) is None


async def test_an_address_that_proves_nothing_does_not_count(monkeypatch):
    monkeypatch.setattr(direct, "STAGGER_S", 0.001)
    async with EchoPort() as port:
        assert await first_direct([port.address] * 3, nothing) is None


async def test_silent_addresses_cost_a_stagger_and_not_a_timeout():
    """A door whose queue of connections is full answers nobody, like a router that drops."""
    door = listen("127.0.0.1", 0)
    async with EchoPort() as port:

        async def slow(connection):
            if connection.getpeername()[1] == door.getsockname()[1]:
                await asyncio.sleep(30)

        began = time.perf_counter()
        address, connection = await first_direct([address_of(door), port.address], slow)
        assert address == port.address
        assert time.perf_counter() - began < 5
        connection.close()
    door.close()


async def test_a_links_port_is_known_by_its_greeting():
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    public, secret = zmq.curve_keypair()
    socket.curve_server, socket.curve_publickey, socket.curve_secretkey = 1, public, secret
    link = f"127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
    greeting = await asyncio.start_server(
        lambda reader, writer: writer.write(b"SSH-2.0-OpenSSH_9.2\r\n"), "127.0.0.1", 0
    )
    other = address_of(greeting.sockets[0])
    assert await find_link_port([other]) is None
    address, connection = await find_link_port([other, link])
    assert address == link
    connection.close()
    greeting.close()
    context.destroy(linger=0)
