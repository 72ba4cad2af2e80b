"""Where a PC may be reached, and the first address that proves what it is."""

import asyncio
import socket
import time
from dataclasses import dataclass

import zmq

from molink.control.messages.payloads import Profile
from molink.transport.paths import direct
from molink.transport.paths.direct import (
    ADDRESSES_MAX,
    candidates,
    find_link_port,
    first_direct,
    home_addresses,
)
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


@dataclass
class Bound:
    """As psutil has it."""

    address: str
    family: int = socket.AF_INET


PC = {
    "lo": [Bound("127.0.0.1")],
    "eth0": [Bound("192.168.1.20"), Bound("fe80::1", socket.AF_INET6)],
    "wlan0": [Bound("169.254.3.4"), Bound("192.168.1.21")],
    "docker0": [Bound("172.17.0.1")],
    "br-4f5": [Bound("172.18.0.1")],
    "veth12": [Bound("10.1.1.1")],
    "wg0": [Bound("10.9.0.3")],
}


def test_only_addresses_that_others_can_mean():
    assert home_addresses(PC) == ["192.168.1.20", "10.9.0.3", "192.168.1.21"]


def test_this_machine_can_be_asked():
    assert "127.0.0.1" not in home_addresses()


def test_home_comes_first_then_the_router_then_what_the_coordinator_sees():
    assert candidates(7000, ["192.168.1.20"], "203.0.113.5:7001", "203.0.113.9") == (
        "192.168.1.20:7000",
        "203.0.113.5:7001",
        "203.0.113.9:7000",
    )


def test_what_the_router_has_mapped_is_not_guessed_again():
    assert candidates(7000, [], "203.0.113.5:7001", "203.0.113.5") == ("203.0.113.5:7001",)
    assert candidates(7000, ["203.0.113.5"], None, "203.0.113.5") == ("203.0.113.5:7000",)


def test_a_port_that_listens_at_one_address_is_only_there():
    assert candidates(7000, ["192.168.1.20"], bound_to="127.0.0.1") == ("127.0.0.1:7000",)


def test_a_profile_takes_all_of_them():
    many = candidates(7000, [f"10.0.0.{n}" for n in range(40)])
    assert len(many) == ADDRESSES_MAX
    fields = dict(devices=(), cpu_threads=1, memory_bytes=1, disk_free_bytes=1)
    Profile(**fields, upload_mbps=1, download_mbps=1, addresses=many)
