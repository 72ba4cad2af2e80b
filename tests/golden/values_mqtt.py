"""What a client of the control plane sends to its broker, packet by packet."""

import asyncio

from molink.control.addresses import BrokerAddress
from molink.control.broker.packets import encode, read_publish
from molink.control.client import ControlClient
from molink.control.messages.topics import ASSIGNMENT, FACT, HEALTH, PRESENCE, SERVICES
from tests.control.raw_client import CONNACK, PUBACK, PUBLISH, SUBACK, RawClient
from tests.golden.codec import Codec
from tests.golden.values_control import NODE
from tests.golden.values_told import PAYLOADS

CONNECT, SUBSCRIBE, DISCONNECT = 1, 8, 14


def payload(name: str):
    return PAYLOADS.builders[name]()[1]


async def a_node(address: BrokerAddress) -> None:
    """From its start to its end, with a last will."""
    async with ControlClient.open(
        address,
        "user",
        "pässword",
        client_id=NODE,
        will=(PRESENCE, NODE, payload("presence_gone")),
        subscriptions=[ASSIGNMENT.of(NODE), SERVICES.of(NODE)],
    ) as client:
        await client.publish(PRESENCE, NODE, payload("presence_online"))
        await client.publish(HEALTH, NODE, payload("health_without_a_stage"))
        await client.publish(FACT, NODE, payload("fact_loaded"))
        await client.clear(FACT, NODE)


async def a_coordinator(address: BrokerAddress) -> None:
    subscriptions = [HEALTH.of_all]
    async with ControlClient.open(
        address, "coordinator", "p", subscriptions=subscriptions
    ) as client:
        await client.publish(ASSIGNMENT, NODE, payload("assignment_to_join_as_the_tail"))


def sent_by(client) -> str:
    """A line for each packet until the client says good-bye."""
    packets: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        speaker = RawClient(reader, writer)
        while (came := await speaker.packet()).kind != DISCONNECT:
            packets.append(encode(came.kind, came.body, flags=came.flags).hex())
            if came.kind == CONNECT:
                writer.write(encode(CONNACK, b"\0\0"))
            elif came.kind == SUBSCRIBE:
                granted = b"\1" * came.body.count(b"molink/v1")
                writer.write(encode(SUBACK, came.body[:2] + granted))
            elif came.kind == PUBLISH and came.flags & 6:
                _, packet_id = read_publish(came)
                writer.write(encode(PUBACK, packet_id.to_bytes(2, "big")))
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await client(BrokerAddress("127.0.0.1", port))
        server.close()

    asyncio.run(run())
    return "\n".join(packets)


MQTT = Codec("control-mqtt", sent_by)
MQTT.add(a_node=lambda: a_node, a_coordinator=lambda: a_coordinator)

CODECS = (MQTT,)
