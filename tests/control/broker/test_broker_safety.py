"""What one client must not be able to do to another. Both brokers, the same tests."""

import aiomqtt
import pytest
from aiomqtt.exceptions import MqttConnectError

from tests.control.conftest import PASSWORD
from tests.control.raw_client import RawClient, connect_packet, packet, text

NOT_AUTHORISED = 5
TOLD = "molink/v1/node/{}/told/assignment"
SAID = "molink/v1/node/{}/said/presence"


async def test_a_wrong_password_is_refused_and_leaves_the_victim_alone(raw, coordinator):
    victim = await raw("n1")
    await victim.subscribe(TOLD.format("n1"))
    for _ in range(3):
        attacker = await raw("n1", "wrong")
        assert attacker.code == NOT_AUTHORISED
    await coordinator.publish(TOLD.format("n1"), "still there?")
    assert await victim.message() == (TOLD.format("n1"), "still there?", False)


async def test_nobody_comes_in_without_a_name(raw):
    assert (await raw("", "", client_id="n1")).code == NOT_AUTHORISED
    assert (await raw("unknown")).code == NOT_AUTHORISED


async def test_a_foreign_client_id_takes_nothing_from_its_owner(raw, coordinator):
    victim = await raw("n2")
    await victim.subscribe(TOLD.format("n2"))
    await raw("n1", client_id="n2")
    await coordinator.publish(TOLD.format("n2"), "still there?")
    assert await victim.message() == (TOLD.format("n2"), "still there?", False)


async def test_a_foreign_client_id_is_refused_by_ours(raw, kind):
    client = await raw("n1", client_id="n2")
    assert client.code == (NOT_AUTHORISED if kind == "embedded" else 0)


@pytest.mark.parametrize(
    "topic",
    [
        SAID.format("n2"),
        SAID.format("n10"),
        TOLD.format("n1"),
        "molink/v1/coordinator/said/presence",
        "molink/v2/node/n1/said/presence",
        "elsewhere",
    ],
)
async def test_what_a_node_may_not_write_reaches_nobody(raw, coordinator, topic):
    node = await raw("n1")
    await coordinator.subscribe("#")
    await node.publish(topic, "forged", retain=True)
    await node.publish(SAID.format("n1"), "mine")
    assert await coordinator.message() == (SAID.format("n1"), "mine", False)
    late = await raw("coordinator")
    await late.subscribe("#")
    assert await late.received() == []


@pytest.mark.parametrize(
    "topic_filter",
    [
        TOLD.format("n2"),
        TOLD.format("n10"),
        TOLD.format("+"),
        SAID.format("n2"),
        "molink/v1/node/+/told/#",
        "molink/#",
        "#",
        "+/+/+/+/+/+",
    ],
)
async def test_what_a_node_may_not_read_is_not_sent_to_it(raw, coordinator, topic_filter):
    await coordinator.publish(TOLD.format("n2"), "retained secret", retain=True)
    await coordinator.publish(TOLD.format("n10"), "retained secret", retain=True)
    node = await raw("n1")
    await node.subscribe(TOLD.format("n1"))
    await node.subscribe(topic_filter)
    await coordinator.publish(TOLD.format("n2"), "secret")
    await coordinator.publish(TOLD.format("n10"), "secret")
    await coordinator.publish(SAID.format("n2"), "secret")
    await coordinator.publish(TOLD.format("n1"), "for n1")
    assert await node.message() == (TOLD.format("n1"), "for n1", False)


async def test_a_refused_subscription_says_so_in_ours(raw, kind):
    node = await raw("n1")
    codes = await node.subscribe(TOLD.format("n2"), TOLD.format("n1"))
    assert codes == [0x80 if kind == "embedded" else 1, 1]


async def test_retained_messages_go_to_who_asks_and_may_read_them(raw, coordinator):
    await coordinator.publish(TOLD.format("n1"), "yours", retain=True)
    await coordinator.publish("molink/v1/coordinator/said/presence", "up", retain=True)
    silent = await raw("n2")
    assert await silent.received() == []
    node = await raw("n1")
    await node.subscribe("molink/v1/node/n1/told/#", "molink/v1/coordinator/said/#")
    came = {await node.message(), await node.message()}
    assert came == {
        (TOLD.format("n1"), "yours", True),
        ("molink/v1/coordinator/said/presence", "up", True),
    }


async def test_a_retained_message_can_be_cleared(raw, coordinator):
    await coordinator.publish(TOLD.format("n1"), "old", retain=True)
    await coordinator.publish(TOLD.format("n1"), "", retain=True)
    node = await raw("n1")
    await node.subscribe(TOLD.format("n1"))
    assert await node.received() == []


async def test_a_last_will_on_a_foreign_topic_is_not_sent(raw, coordinator):
    forger = await raw("n1", will=(SAID.format("n2"), "forged"))
    forger.die()
    honest = await raw("n10", will=(SAID.format("n10"), "gone"))
    honest.die()
    assert await coordinator.message() == (SAID.format("n10"), "gone", False)
    late = await raw("coordinator")
    await late.subscribe("molink/#")
    assert [one[0] for one in await late.received()] == [SAID.format("n10")]


async def test_mqtt_5_is_answered_at_once(broker, kind):
    client = aiomqtt.Client(
        broker.address.host,
        broker.address.port,
        username="n1",
        password=PASSWORD,
        identifier="n1",
        protocol=aiomqtt.ProtocolVersion.V5,
        timeout=5,
    )
    if kind == "mosquitto":
        async with client:
            return
    with pytest.raises(MqttConnectError, match="Unsupported protocol version"):
        async with client:
            pass


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x10\xff\xff\xff\x7f" + b"x" * 100,
        b"\x10\xff\xff\xff\xff\xff",
        packet(0x10, text("MQTT") + b"\x04\xff\0\0" + b"\xff\xff"),
        packet(0x30, text("molink/v1/node/n1/said/presence") + b"x"),
        packet(0x10, b"\0"),
    ],
    ids=["http", "huge", "endless length", "short", "no connect", "tiny"],
)
async def test_garbage_ends_only_its_own_connection(broker, raw, coordinator, garbage):
    stranger = await RawClient.dial(broker.address)
    stranger.writer.write(garbage)
    stranger.say_no_more()
    await stranger.closed()
    node = await raw("n1")
    await node.publish(SAID.format("n1"), "here")
    assert await coordinator.message() == (SAID.format("n1"), "here", False)


@pytest.mark.parametrize(
    "evil",
    [
        b"\x30\xff\xff\xff\x7f",
        packet(0x30, text("molink/v1/node/n1/said/#") + b"x"),
        packet(0x82, b"\0\1" + text("a/#/b") + b"\1"),
        connect_packet("n1", PASSWORD, "n1"),
        b"\xf0\0",
    ],
    ids=["huge", "wildcard", "bad filter", "second connect", "reserved"],
)
async def test_a_node_that_breaks_the_protocol_harms_nobody(raw, coordinator, evil, kind):
    node = await raw("n1", will=(SAID.format("n1"), "gone"))
    node.writer.write(evil)
    node.say_no_more()
    await node.closed()
    other = await raw("n2")
    await other.publish(SAID.format("n2"), "here")
    came = [await coordinator.message()]
    if came[0][0] == SAID.format("n1"):
        came.append(await coordinator.message())
    assert came[-1] == (SAID.format("n2"), "here", False)
    assert came[:-1] in ([], [(SAID.format("n1"), "gone", False)])
    assert len(came) == 2 or kind == "mosquitto"  # which sends no will for a second CONNECT


async def test_what_was_said_before_a_goodbye_arrives(raw, coordinator):
    node = await raw("n1", will=(SAID.format("n1"), "gone"))
    topic = text(SAID.format("n1"))
    said = b"".join(packet(0x30, topic + str(number).encode()) for number in range(50))
    node.writer.write(said + b"\xe0\0")
    node.writer.write_eof()
    assert [(await coordinator.message())[1] for _ in range(50)] == [str(n) for n in range(50)]
    assert await coordinator.received() == []


async def test_a_later_connection_replaces_the_earlier_one(raw, coordinator):
    earlier = await raw("n1", will=(SAID.format("n1"), "gone"))
    later = await raw("n1")
    await earlier.closed()
    await later.publish(SAID.format("n1"), "back")
    assert (await coordinator.message())[1] == "gone"
    assert (await coordinator.message())[1] == "back"


async def test_a_node_cannot_fill_the_memory_with_retained_messages(raw):
    node = await raw("n1")
    for name in [*range(40), "presence", "profile"]:
        await node.publish(f"molink/v1/node/n1/said/{name}", "x", retain=True)
    late = await raw("coordinator")
    await late.subscribe("molink/#")
    kept = {topic for topic, _, _ in await late.received()}
    assert kept == {"molink/v1/node/n1/said/presence", "molink/v1/node/n1/said/profile"}
