"""The packets of MQTT 3.1.1 that an agent sends and receives, on the broker's codec."""

import asyncio
import struct

from molink.control.broker.packets import (
    Kind,
    Message,
    Packet,
    encode,
    encode_publish,
    encode_text,
    read_publish,
)
from molink.control.connection import KEEPALIVE_S

__all__ = [
    "CONNACK",
    "PUBACK",
    "PUBLISH",
    "SUBACK",
    "acknowledge",
    "connect",
    "publish",
    "published",
    "read_packet",
    "subscribe",
]

CONNACK, PUBLISH, PUBACK, SUBACK = Kind.CONNACK, Kind.PUBLISH, Kind.PUBACK, Kind.SUBACK

_WITH_USER_AND_WILL = 0xC2 | 0x2C
"""User, password, clean session; a retained last will with QoS 1."""


async def read_packet(reader: asyncio.StreamReader) -> Packet:
    """The next one. Raises IncompleteReadError at the end of the connection."""
    (head,) = await reader.readexactly(1)
    length = shift = 0
    while True:
        (digit,) = await reader.readexactly(1)
        length |= (digit & 0x7F) << shift
        shift += 7
        if digit < 0x80:
            break
    return Packet(head >> 4, head & 0x0F, await reader.readexactly(length))


def connect(client_id: str, user: str, password: str, will_topic: str, will: bytes) -> bytes:
    """With a keep-alive as agents have it."""
    head = encode_text("MQTT") + struct.pack("!BBH", 4, _WITH_USER_AND_WILL, KEEPALIVE_S)
    texts = (client_id, will_topic, will.decode(), user, password)
    return encode(Kind.CONNECT, head + b"".join(encode_text(text) for text in texts))


def subscribe(*filters: str) -> bytes:
    """With QoS 1."""
    body = b"\0\1" + b"".join(encode_text(one) + b"\1" for one in filters)
    return encode(Kind.SUBSCRIBE, body, flags=2)


def publish(topic: str, payload: bytes, packet_id: int, *, retained: bool) -> bytes:
    """With QoS 1; with QoS 0 when the packet id is 0."""
    return encode_publish(Message(topic, payload, min(packet_id, 1), retained), packet_id)


def published(packet: Packet) -> tuple[str, bytes, int]:
    """Topic, payload and packet id (0 for QoS 0) of a PUBLISH."""
    message, packet_id = read_publish(packet)
    return message.topic, message.payload, packet_id


def acknowledge(packet_id: int) -> bytes:
    """PUBACK."""
    return encode(Kind.PUBACK, struct.pack("!H", packet_id))
