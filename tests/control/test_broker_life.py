"""Joining, leaving, dying, restarting. Both brokers, the same tests."""

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from molink.control.broker import BrokerAddress, open_broker
from molink.control.client import ControlClient
from molink.control.mosquitto import MosquittoBroker, find_mosquitto
from molink.control.topics import ASSIGNMENT, HEALTH, PRESENCE
from molink.errors import ControlError, UserError
from tests.control.conftest import PASSWORD, health, presence, until
from tests.control.raw_client import RawClient

SAID = "molink/v1/node/{}/said/presence"
NOT_AUTHORISED = 5


async def test_the_last_will_of_a_killed_client_comes_at_once(raw, coordinator):
    node = await raw("n1", will=(SAID.format("n1"), "gone"))
    started = time.monotonic()
    node.die()
    assert await coordinator.message() == (SAID.format("n1"), "gone", False)
    assert time.monotonic() - started < 1


async def test_the_last_will_of_a_frozen_client_comes(raw, coordinator, kind):
    frozen = await raw("n1", keepalive=1, will=(SAID.format("n1"), "gone"))
    started = time.monotonic()
    assert await coordinator.message() == (SAID.format("n1"), "gone", False)
    took_s = time.monotonic() - started
    assert took_s >= 1.5 or kind == "mosquitto"
    assert took_s < (2.5 if kind == "embedded" else 9)
    await frozen.closed()


async def test_a_client_that_freezes_within_a_packet_is_noticed(raw, coordinator, kind):
    if kind == "mosquitto":
        return  # the same clock as above, which costs seconds
    frozen = await raw("n1", keepalive=1, will=(SAID.format("n1"), "gone"))
    frozen.writer.write(b"\x30\x40\x00")
    assert await coordinator.message() == (SAID.format("n1"), "gone", False)


async def test_who_says_goodbye_leaves_no_last_will(raw, coordinator):
    node = await raw("n1", will=(SAID.format("n1"), "gone"))
    node.writer.write(b"\xe0\0")
    await node.closed()
    other = await raw("n2")
    await other.publish(SAID.format("n2"), "here")
    assert (await coordinator.message())[1] == "here"


async def test_a_hundred_nodes_join_forty_at_a_time(broker, open_client):
    gate = asyncio.Semaphore(40)
    leave = asyncio.Event()

    async def node(number):
        name = f"node{number}"
        async with gate:
            credentials = await broker.allow(name, f"{PASSWORD}-{number}")
            client = await RawClient.connect(broker.address, name, credentials.password)
            assert client.code == 0
            assert await client.subscribe(f"molink/v1/node/{name}/told/#") == [1]
            await client.publish(SAID.format(name), presence(name=name).model_dump_json(), True)
        assert (await client.message())[0] == ASSIGNMENT.of(name)
        await leave.wait()
        client.die()

    async with (
        asyncio.timeout(20),
        open_client("coordinator", subscriptions=[PRESENCE.of_all]) as coordinator,
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(100):
            tasks.create_task(node(number))
        seen = set()
        async for received in coordinator.messages():
            seen.add(received.node_id)
            await coordinator._connection.publish(ASSIGNMENT.of(received.node_id), "{}", 1)
            if len(seen) == 100:
                break
        leave.set()


async def test_forbidding_ends_the_connection_and_keeps_it_out(broker, raw, coordinator):
    node = await raw("n1", will=(SAID.format("n1"), "gone"))
    other = await raw("n2")
    started = time.monotonic()
    await broker.forbid("n1")
    await node.closed()
    assert time.monotonic() - started < 2
    assert (await raw("n1")).code == NOT_AUTHORISED
    await other.publish(SAID.format("n2"), "here")
    assert (await coordinator.message())[1] == "here"
    await broker.allow("n1", "another-token")
    assert (await raw("n1")).code == NOT_AUTHORISED
    assert (await raw("n1", "another-token")).code == 0


async def test_forbidding_somebody_unknown_is_no_error(broker):
    await broker.forbid("nobody")


@pytest.mark.parametrize(
    "name", ["", "a/b", "a+", "#", "a b", "a:b", "a\nb", "coordinator", "x" * 65]
)
async def test_a_name_that_means_something_else_is_refused(broker, name):
    with pytest.raises(UserError, match="no node id"):
        await broker.allow(name, PASSWORD)


async def test_a_restart_loses_nothing(broker, open_client):
    async with (
        open_client("coordinator", subscriptions=[PRESENCE.of_all]) as coordinator,
        open_client("n1", subscriptions=["molink/v1/node/n1/told/#"]) as node,
    ):
        await node.publish(PRESENCE, "n1", presence(name="first"))
        came = coordinator.messages()
        assert (await anext(came)).message.name == "first"
        address = broker.address
        await broker.stop()
        await until(lambda: not coordinator.connected and not node.connected)
        await node.publish(PRESENCE, "n1", presence(name="second"))
        await node.publish(HEALTH, "n1", health())
        await broker.start()
        assert broker.address == address
        async with asyncio.timeout(15):
            async for received in came:
                if received.message.name == "second":
                    break
        await asyncio.gather(coordinator.until_connected(), node.until_connected())
        assert await _retained_names(broker) == ["second"]


async def _retained_names(broker):
    client = await RawClient.connect(
        broker.address, "coordinator", broker.coordinator.password, client_id="coordinator"
    )
    await client.subscribe(PRESENCE.of_all)
    _, payload, retained = await client.message()
    client.die()
    assert retained
    return [PRESENCE.message.model_validate_json(payload).name]


@pytest.fixture
async def mosquitto(data_dir):
    broker = MosquittoBroker(find_mosquitto(), "127.0.0.1", 0, data_dir)
    await broker.start()
    yield broker
    await broker.stop()


async def test_mosquitto_is_started_again_when_it_is_killed(mosquitto):
    await mosquitto.allow("n1", PASSWORD)
    address = mosquitto.address
    async with ControlClient.open(address, "n1", PASSWORD) as node:
        for _ in range(2):
            killed = mosquitto.process_id
            os.kill(killed, signal.SIGKILL)
            await until(lambda killed=killed: mosquitto.process_id not in (killed, None))
            await mosquitto.allow("n2", PASSWORD)
            client = await RawClient.connect(address, "n2", PASSWORD)
            assert client.code == 0
            client.die()
        await until(lambda: node.connected)
    assert mosquitto.address == address


async def test_a_frozen_mosquitto_makes_allow_fail_with_a_sentence(mosquitto, monkeypatch):
    monkeypatch.setattr("molink.control.mosquitto._CHANGE_TIMEOUT_S", 0.2)
    os.kill(mosquitto.process_id, signal.SIGSTOP)
    try:
        with pytest.raises(ControlError, match="does not take new users"):
            await mosquitto.allow("n1", PASSWORD)
    finally:
        os.kill(mosquitto.process_id, signal.SIGCONT)


async def test_many_changes_at_once_cost_few_reloads(mosquitto, monkeypatch):
    reloads = []
    reload = mosquitto._process.reload

    async def counted():
        reloads.append(None)
        return await reload()

    monkeypatch.setattr(mosquitto._process, "reload", counted)
    await asyncio.gather(*(mosquitto.allow(f"x{number}", PASSWORD) for number in range(40)))
    assert 1 <= len(reloads) <= 3
    client = await RawClient.connect(mosquitto.address, "x39", PASSWORD)
    assert client.code == 0
    client.die()


async def test_whoever_is_allowed_while_it_starts_can_connect(data_dir):
    broker = MosquittoBroker(find_mosquitto(), "127.0.0.1", 0, data_dir)
    starting = asyncio.create_task(broker.start())
    await asyncio.sleep(0)
    await asyncio.gather(starting, broker.allow("n1", PASSWORD))
    client = await RawClient.connect(broker.address, "n1", PASSWORD)
    assert client.code == 0
    client.die()
    await broker.stop()


async def test_a_foreign_client_id_is_still_ignored_after_a_reload(mosquitto):
    await mosquitto.allow("n1", PASSWORD)
    await mosquitto.allow("n2", PASSWORD)
    victim = await RawClient.connect(mosquitto.address, "n2", PASSWORD)
    attacker = await RawClient.connect(mosquitto.address, "n1", PASSWORD, client_id="n2")
    assert attacker.code == 0
    assert await victim.received() == []
    victim.die()
    attacker.die()


def status_of(process_id):
    return Path(f"/proc/{process_id}/status").read_text()


def open_files_of(process_id):
    lines = Path(f"/proc/{process_id}/limits").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith("Max open files"))
    return int(line.split()[3])


async def test_it_does_not_run_as_root(mosquitto):
    status = status_of(mosquitto.process_id)
    (uids,) = (line.split()[1:] for line in status.splitlines() if line.startswith("Uid:"))
    assert "0" not in uids


@pytest.fixture
def few_files():
    """A shell's usual limit, of this process and the children that it starts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_it_may_have_many_connections(few_files, broker, kind):
    process_id = broker.process_id if kind == "mosquitto" else os.getpid()
    assert open_files_of(process_id) > 1024


def test_its_files_are_for_nobody_else(data_dir):
    async def write():
        broker = MosquittoBroker(find_mosquitto(), "127.0.0.1", 0, data_dir)
        await broker.allow("n1", PASSWORD)
        await broker.start()
        await broker.stop()

    asyncio.run(write())
    folder = data_dir / "broker"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("mosquitto.conf", "users", "rules"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in (folder / "users").read_text()


async def test_a_taken_port_is_a_users_error(broker, kind, data_dir):
    second = open_broker(kind, "127.0.0.1", broker.address.port, data_dir / "second")
    with pytest.raises(UserError, match=r"listen|did not start"):
        await second.start()
    await second.stop()


KEEPS_A_BROKER = """
import asyncio, sys
from pathlib import Path
from molink.control.mosquitto import MosquittoBroker, find_mosquitto

async def main():
    broker = MosquittoBroker(find_mosquitto(), "127.0.0.1", 0, Path(sys.argv[1]))
    await broker.start()
    print(broker.process_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_mosquitto_does_not_outlive_a_parent_that_is_killed(data_dir):
    parent = subprocess.Popen(
        [sys.executable, "-c", KEEPS_A_BROKER, str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    with parent:
        watched = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        readable, _, _ = select.select([watched], [], [], 10)
        os.close(watched)
    assert readable


async def test_tls(kind, data_dir, certificate):
    broker = open_broker(kind, "127.0.0.1", 0, data_dir, certificate)
    await broker.allow("n1", PASSWORD)
    await broker.start()
    try:
        address = broker.address
        assert address.tls
        async with ControlClient.open(address, "n1", PASSWORD) as node:
            await node.publish(PRESENCE, "n1", presence())
        stranger = BrokerAddress(address.host, address.port, tls=True)
        with pytest.raises(TimeoutError):
            async with (
                asyncio.timeout(0.5),
                ControlClient.open(stranger, "n1", PASSWORD),
            ):
                pass
    finally:
        await broker.stop()
