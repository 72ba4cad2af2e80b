"""The client that outlives its connections."""

import asyncio
import itertools
import logging
import socket
from random import Random
from types import SimpleNamespace

import pytest

from molink.control.addresses import BrokerAddress
from molink.control.backoff import Backoff
from molink.control.client import REFUSALS_MAX, ControlClient
from molink.control.connection import in_time
from molink.control.inbox import Inbox
from molink.control.messages.topics import (
    ASSIGNMENT,
    COORDINATOR,
    FACT,
    HEALTH,
    PRESENCE,
    PROFILE,
    WISH,
)
from molink.errors import ControlError
from tests.control.conftest import PASSWORD, coordinator_presence, health, presence, until

SAID = "molink/v1/node/n1/said/presence"


def cut(client):
    """As when the line breaks."""
    client._connection._client.socket().shutdown(socket.SHUT_RDWR)


async def test_messages_arrive_as_values(open_client):
    async with (
        open_client("coordinator", subscriptions=["molink/v1/node/+/said/#"]) as coordinator,
        open_client("n1", subscriptions=["molink/v1/coordinator/said/#"]) as node,
    ):
        await node.publish(PRESENCE, "n1", presence())
        await node.publish(HEALTH, "n1", health())
        await coordinator.publish(COORDINATOR, "", coordinator_presence())
        came = coordinator.messages()
        first, second = await anext(came), await anext(came)
        assert (first.topic, first.node_id, first.message) == (PRESENCE, "n1", presence())
        assert (second.topic, second.message, second.retained) == (HEALTH, health(), False)
        told = await anext(node.messages())
        assert (told.topic, told.node_id) == (COORDINATOR, "")


async def test_retained_messages_are_marked(open_client):
    async with open_client("n1") as node:
        await node.publish(PRESENCE, "n1", presence())
        async with open_client("coordinator", subscriptions=[PRESENCE.of_all]) as coordinator:
            assert (await anext(coordinator.messages())).retained


async def test_a_cleared_message_is_gone(open_client):
    async with open_client("coordinator") as coordinator:
        await coordinator.publish(PRESENCE, "n1", presence())
        await coordinator.publish(PRESENCE, "n2", presence(name="other"))
        await coordinator.clear(PRESENCE, "n1")
    async with open_client("coordinator", subscriptions=[PRESENCE.of_all]) as coordinator:
        assert (await anext(coordinator.messages())).node_id == "n2"


async def test_the_last_will_is_what_was_given(open_client, raw, coordinator):
    will = (PRESENCE, "n1", presence(online=False))
    async with open_client("n1", will=will) as node:
        cut(node)
        topic, payload, _ = await coordinator.message()
        assert (topic, PRESENCE.message.model_validate_json(payload)) == (SAID, will[2])
        await until(lambda: node.connection_count == 2)
    await (await raw("n2")).publish("molink/v1/node/n2/said/wish", "no will on leaving")
    assert (await coordinator.message())[1] == "no will on leaving"


async def test_what_cannot_be_read_is_dropped_and_counted(open_client, raw, caplog):
    async with open_client("coordinator", subscriptions=["molink/v1/#"]) as coordinator:
        node = await raw("n1")
        for topic, payload in ((PROFILE, "no json"), (WISH, '{"wish": ""}'), (FACT, "{}")):
            await node.publish(topic.of("n1"), payload)
        await node.publish(SAID, presence().model_dump_json())
        with caplog.at_level(logging.WARNING, "molink.control"):
            assert (await anext(coordinator.messages())).message == presence()
        assert coordinator.inbox.invalid_count == 3
        assert len(caplog.records) == 1
        assert "dropped" in caplog.text


async def test_a_broken_connection_is_mended_and_the_last_states_repeated(open_client, raw, broker):
    async with open_client("n1", subscriptions=["molink/v1/node/n1/told/#"]) as node:
        await node.publish(PRESENCE, "n1", presence(name="old"))
        await node.publish(PRESENCE, "n1", presence(name="new"))
        watcher = await raw("coordinator")
        await watcher.publish(SAID, "", retain=True)
        await watcher.subscribe(SAID)
        cut(node)
        _, payload, _ = await watcher.message()
        assert PRESENCE.message.model_validate_json(payload).name == "new"
        await node.until_connected()
        await watcher.publish(ASSIGNMENT.of("n1"), '{"revision": 7}')
        assert (await anext(node.messages())).message.revision == 7
        assert await watcher.received() == []


async def test_a_wrong_password_is_one_sentence(broker):
    with pytest.raises(ControlError, match="does not let n1 in"):
        async with ControlClient.open(broker.address, "n1", "wrong", random=Random(1)):
            pass


async def test_a_refused_subscription_is_one_sentence(open_client, kind):
    if kind == "mosquitto":
        return  # grants all and sends nothing
    with pytest.raises(ControlError, match="does not let us read molink/v1/#"):
        async with open_client("n1", subscriptions=["molink/v1/#"]):
            pass


async def test_who_is_removed_is_told_wherever_it_waits(open_client, broker):
    async with open_client("n1") as node:
        reading = asyncio.ensure_future(anext(node.messages()))
        await broker.forbid("n1")
        async with asyncio.timeout(15):
            with pytest.raises(ControlError, match="does not let n1 in"):
                await reading
        with pytest.raises(ControlError):
            await node.publish(PRESENCE, "n1", presence())
        with pytest.raises(ControlError):
            await node.until_connected()
        assert not node.connected
        assert REFUSALS_MAX > 1


async def test_nobody_there_is_waited_for(broker):
    nobody = BrokerAddress("127.0.0.1", 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), ControlClient.open(nobody, "n1", PASSWORD):
            pass


async def test_a_broker_that_ends_each_session_at_once_is_asked_less_and_less(monkeypatch):
    waits, enough = [], asyncio.Event()

    class Noted(Backoff):
        def next_s(self):
            waits.append(super().next_s())
            if len(waits) == 6:
                enough.set()
            return 0.0

    async def end(reader, writer):
        await reader.read(1)
        writer.write(b"\x20\x02\0\0")  # CONNACK: accepted
        writer.close()

    monkeypatch.setattr("molink.control.client.Backoff", Noted)
    server = await asyncio.start_server(end, "127.0.0.1", 0)
    address = BrokerAddress("127.0.0.1", server.sockets[0].getsockname()[1])
    highest = SimpleNamespace(uniform=lambda low, high: high)
    opened = ControlClient.open(address, "n1", PASSWORD, subscriptions=[SAID], random=highest)
    connecting = asyncio.ensure_future(opened.__aenter__())
    async with asyncio.timeout(60):
        await enough.wait()
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    server.close()
    assert all(later == 2 * earlier for earlier, later in itertools.pairwise(waits)), waits


async def test_leaving_while_it_connects_leaves_no_connection(broker):
    """A thread of aiomqtt connects; what it has got is closed, so that its id is free."""
    for delay_s in (0.0, 0.0005, 0.001, 0.002):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay_s), ControlClient.open(broker.address, "n1", PASSWORD):
                await asyncio.Event().wait()
    async with ControlClient.open(broker.address, "n1", PASSWORD) as client:
        await client.publish(PRESENCE, "n1", presence())
        assert client.connection_count == 1


async def test_what_found_no_room_is_asked_for_again(open_client):
    async with open_client("coordinator") as writer:
        for number in range(10):
            await writer.publish(PRESENCE, f"n{number}", presence())
    everything, one = [PRESENCE.of_all], len(presence().model_dump_json())
    room = Inbox(waiting_bytes_max=4 * one)
    async with open_client("coordinator", subscriptions=everything, inbox=room) as reader:
        await until(lambda: reader.inbox.dropped_count == 6)
        assert reader.inbox.dropped_count == 6
        room.waiting_bytes_max = 2**20
        seen = set()
        async with asyncio.timeout(15):
            async for received in reader.messages():
                seen.add(received.node_id)
                if len(seen) == 10:
                    break


async def test_several_nodes_may_share_a_user_of_somebody_elses_broker(broker, kind):
    if kind == "embedded":
        return
    client = ControlClient.open(broker.address, "n1", PASSWORD, client_id="another")
    async with client as node:
        assert node.connected


@pytest.mark.parametrize("ticks", range(5))
async def test_whoever_is_cancelled_as_the_broker_answers_is_cancelled(open_client, ticks):
    """`asyncio.wait_for` of Python 3.11 gives the answer instead: the caller would live on."""
    async with open_client("n1") as node:
        mqtt, answered = node._connection, asyncio.Event()
        calling = asyncio.ensure_future(in_time(mqtt._wait_for(answered.wait(), None)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        answered.set()
        for _ in range(ticks):
            await asyncio.sleep(0)
        was_done = calling.done()
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled() or was_done
