"""Homes in network namespaces: what they are called, and that real TCP crosses their lines."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from molink.config.link_schedule import LinkShape
from molink.errors import UserError
from tools.experiments.homes.home_lines import home_lines
from tools.experiments.homes.home_network import HomeNetwork, check_available

MESSAGE_BYTES = 250_000
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as there:
    there.sendall(bytes(int(sys.argv[3])))
    there.shutdown(socket.SHUT_WR)
    there.recv(1)
"""


def test_names_and_addresses_follow_from_a_number():
    network = HomeNetwork.of(4711, 3)
    coordinator, *stages = network.homes
    assert coordinator.namespace is None
    assert [home.namespace for home in stages] == [f"molink-4711-{place}" for place in (1, 2, 3)]
    assert len({home.address for home in network.homes}) == 4
    assert all(len(home.device) < 16 for home in HomeNetwork.of(4_194_304, 50).homes)


def test_two_processes_do_not_share_a_name_or_an_address():
    one, other = HomeNetwork.of(1000, 3), HomeNetwork.of(1001, 3)
    assert one.subnet != other.subnet
    for of in ("address", "device"):
        assert not {getattr(home, of) for home in one.homes} & {
            getattr(home, of) for home in other.homes
        }


def test_only_the_coordinators_device_stays():
    commands = HomeNetwork.of(1, 1).set_up_commands("cubic")
    assert ["link", "set", "ml1x1", "netns", "molink-1-1"] in commands
    assert not any(
        command[:3] == ["link", "set", "ml1x0"] and "netns" in command for command in commands
    )


def test_more_stages_than_addresses_are_refused():
    with pytest.raises(UserError, match="61 stages"):
        HomeNetwork.of(1, 62)


def test_who_is_not_root_is_told(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    with pytest.raises(UserError, match="root"):
        check_available()


@pytest.fixture
def available():
    try:
        check_available()
    except UserError as error:
        pytest.skip(str(error))


def traces(network: HomeNetwork) -> list[str]:
    """What the machine has of it."""
    names = {home.namespace or home.device for home in network.homes}
    return [
        file.name
        for folder in ("/run/netns", "/sys/class/net")
        for file in Path(folder).glob("m*")
        if file.name in names
    ]


async def send_from(namespace: str, address: str) -> tuple[int, float]:
    """(bytes received, seconds) of one message to the coordinator's home."""
    received = asyncio.get_running_loop().create_future()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(len(await reader.read(-1)))
        writer.close()

    async with await asyncio.start_server(read, address, 0) as server:
        port = str(server.sockets[0].getsockname()[1])
        began_s = time.perf_counter()
        sender = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", namespace, sys.executable, "-c", SENDER),
            *(address, port, str(MESSAGE_BYTES)),
        )
        try:
            assert await asyncio.wait_for(sender.wait(), 60) == 0
        finally:
            if sender.returncode is None:
                sender.kill()
        return await received, time.perf_counter() - began_s


async def test_a_message_takes_what_the_line_takes_and_survives_losses(available):
    async with home_lines(LinkShape(20, 30, queue_bytes=15_000), 2, "cubic") as lines:
        coordinator, first, _ = lines.network.homes
        size, elapsed_s = await send_from(first.namespace, coordinator.address)
        lost = await lines.packets_lost()
    assert size == MESSAGE_BYTES
    assert elapsed_s >= MESSAGE_BYTES * 8 / 20e6 + 4 * 0.030  # The handshake, there, and back.
    assert lost > 0
    assert [host.address for host in lines.hosts.stages] == [
        h.address for h in lines.network.homes[1:]
    ]


async def test_nothing_is_left_even_of_lines_that_were_killed(available):
    with pytest.raises(UserError, match="lines between homes ended"):
        async with home_lines(LinkShape(20, 30), 1, "cubic") as lines:
            assert len(traces(lines.network)) == 2
            lines.process.process.kill()
            await lines.packets_lost()
    assert not traces(lines.network)


async def test_a_congestion_control_that_the_kernel_lacks_is_an_error(available):
    with pytest.raises(UserError, match="lines between homes ended"):
        async with home_lines(LinkShape(20, 30), 1, "no-such-control"):
            pass
