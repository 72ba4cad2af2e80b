"""The least of MQTT 3.1.1 that an agent speaks, as bytes. Pure but for `read_packet`."""

import asyncio
import struct
from dataclasses import dataclass

from molink.control.connection import KEEPALIVE_S

__all__ = [
    "CONNACK",
    "PUBACK",
    "PUBLISH",
    "SUBACK",
    "Packet",
    "acknowledge",
    "connect",
    "publish",
    "published",
    "read_packet",
    "subscribe",
]

CONNACK, PUBLISH, PUBACK, SUBACK = 2, 3, 4, 9

_WITH_USER_AND_WILL = 0xC2 | 0x2C
"""User, password, clean session; a retained last will with QoS 1."""


@dataclass(frozen=True, slots=True)
class Packet:
    """What came: its kind, its flags, the rest."""

    kind: int
    flags: int
    body: bytes


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
    head = _text("MQTT") + bytes((4, _WITH_USER_AND_WILL)) + struct.pack("!H", KEEPALIVE_S)
    names = _text(client_id) + _text(will_topic) + _bytes(will)
    return _packet(0x10, head + names + _text(user) + _text(password))


def subscribe(*filters: str) -> bytes:
    """With QoS 1."""
    return _packet(0x82, b"\0\x01" + b"".join(_text(one) + b"\x01" for one in filters))


def publish(topic: str, payload: bytes, packet_id: int, *, retained: bool) -> bytes:
    """With QoS 1; with QoS 0 when the packet id is 0."""
    ids = struct.pack("!H", packet_id) if packet_id else b""
    head = 0x30 | (2 if packet_id else 0) | retained
    return _packet(head, _text(topic) + ids + payload)


def published(packet: Packet) -> tuple[str, bytes, int]:
    """Topic, payload and packet id (0 for QoS 0) of a PUBLISH."""
    (length,) = struct.unpack_from("!H", packet.body)
    topic, rest = packet.body[2 : 2 + length].decode(), packet.body[2 + length :]
    if packet.flags & 0x06 == 0:
        return topic, rest, 0
    (packet_id,) = struct.unpack_from("!H", rest)
    return topic, rest[2:], packet_id


def acknowledge(packet_id: int) -> bytes:
    """PUBACK."""
    return _packet(0x40, struct.pack("!H", packet_id))


def _text(value: str) -> bytes:
    return _bytes(value.encode())


def _bytes(value: bytes) -> bytes:
    return struct.pack("!H", len(value)) + value


def _packet(head: int, body: bytes) -> bytes:
    length, rest = bytearray(), len(body)
    while True:
        rest, digit = divmod(rest, 128)
        length.append(digit | (0x80 if rest else 0))
        if not rest:
            return bytes((head,)) + bytes(length) + body
