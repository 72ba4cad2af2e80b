"""Joining, leaving, dying, restarting. Both brokers, the same tests."""

import asyncio
import os
import resource
import time
from dataclasses import replace

import pytest

from molink.control.addresses import ServerTrust
from molink.control.broker.broker import open_broker
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.certificate import own_certificate
from molink.control.client import ControlClient
from molink.control.messages.topics import ASSIGNMENT, HEALTH, PRESENCE
from molink.errors import ControlError, UserError
from tests.control.brokers import broker_of
from tests.control.conftest import PASSWORD, health, presence, until
from tests.control.raw_client import RawClient
from tests.end_to_end.clusters import free_ports

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
        asyncio.timeout(60),
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


async def test_forbidding_somebody_unknown_changes_nothing(broker, raw):
    await broker.allow("n1", "a-token")
    await broker.forbid("nobody")
    assert (await raw("n1", "a-token")).code == 0


@pytest.mark.parametrize(
    "name", ["", "a/b", "a+", "#", "a b", "a:b", "a\nb", "coordinator", "x" * 65]
)
@pytest.mark.parametrize("choice", ["embedded", "mqtt://operator:s3cret@h"])
async def test_a_name_that_means_something_else_is_refused(choice, name):
    broker = open_broker(choice, "127.0.0.1", 0)
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


async def test_a_taken_port_is_a_users_error(broker):
    second = EmbeddedBroker("127.0.0.1", broker.address.port)
    with pytest.raises(UserError, match="cannot listen"):
        await second.start()
    await second.stop()


async def test_ours_may_listen_at_a_further_port_with_the_same_users(certificate):
    broker = EmbeddedBroker("127.0.0.1", 0, certificate)
    (further,) = free_ports(1)
    await broker.start()
    try:
        await broker.allow("n1", PASSWORD)
        for port in (0, broker.address.port, further, further):
            await broker.also_at(port)
        async with ControlClient.open(replace(broker.address, port=further), "n1", PASSWORD) as one:
            await one.publish(PRESENCE, "n1", presence())
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{further}"):
            await EmbeddedBroker("127.0.0.1", 0).also_at(further)
    finally:
        await broker.stop()


async def test_who_expects_another_certificate_stays_out(kind, certificate, tmp_path):
    broker = broker_of(kind, tmp_path, certificate)
    await broker.allow("n1", PASSWORD)
    await broker.start()
    try:
        address = broker.address
        assert address.tls == broker.trust == certificate.trust
        async with ControlClient.open(address, "n1", PASSWORD) as node:
            await node.publish(PRESENCE, "n1", presence())
        for trust in (own_certificate(tmp_path).trust, ServerTrust()):
            with pytest.raises(ControlError, match="shows another certificate"):
                async with ControlClient.open(replace(address, tls=trust), "n1", PASSWORD):
                    pass
    finally:
        await broker.stop()


@pytest.fixture
def few_files():
    """A shell's usual limit, of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_ours_may_have_many_connections(few_files):
    broker = EmbeddedBroker("127.0.0.1", 0)
    await broker.start()
    await broker.stop()
    assert resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)[0] > 1024
