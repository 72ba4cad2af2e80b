"""MQTT 3.1.1 packets as bytes, as far as the control plane uses them: QoS 0 and 1. Pure.

Section numbers are those of the OASIS standard. What a client sends is checked here to the last
byte; whatever does not follow the standard raises PacketError, and its connection ends.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

FILTERS_MAX = 32
"""Most filters of one client, and of one packet; the coordinator has seven, a node six."""

REFUSED = 0x80
"""What a SUBACK answers for a filter that is not granted."""


class Kind(IntEnum):
    """Types of packets that are used here (2.2.1)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


class PacketError(Exception):
    """Raised when a peer sends what MQTT 3.1.1 or a limit does not allow."""


class UnsupportedVersionError(PacketError):
    """Raised when a client speaks another version of MQTT; `answer` is the CONNACK to send."""

    def __init__(self, level: int) -> None:
        super().__init__(f"the client speaks protocol level {level}, not MQTT 3.1.1")
        self.answer = encode(Kind.CONNACK, b"\0\x84\0" if level == 5 else b"\0\1")


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet whose body is still to be read."""

    kind: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """Content of a PUBLISH packet or of a last will."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


@dataclass(frozen=True, slots=True)
class Connect:
    """First packet of a client: who it is, and its last will."""

    client_id: str
    username: str
    password: str
    keepalive_s: int
    will: Message | None


def take_packet(buffer: bytearray, bytes_max: int) -> Packet | None:
    """Remove the first packet from `buffer`; None while it is incomplete.

    Raises PacketError for one of more than `bytes_max` as soon as its length is known (2.2.3).
    """
    length = 0
    for at in range(1, min(len(buffer), 5)):
        length |= (buffer[at] & 0x7F) << 7 * (at - 1)
        if length > bytes_max:
            raise PacketError("a packet is too long")
        if buffer[at] < 0x80:
            break
    else:
        if len(buffer) > 4:
            raise PacketError("the length of a packet does not end")
        return None
    end = at + 1 + length
    if len(buffer) < end:
        return None
    packet = Packet(buffer[0] >> 4, buffer[0] & 0x0F, bytes(buffer[at + 1 : end]))
    del buffer[:end]
    return packet


class _Body:
    """The fields of a packet's body, read from its start."""

    def __init__(self, body: bytes) -> None:
        self._rest = body

    def take(self, size: int) -> bytes:
        taken, self._rest = self._rest[:size], self._rest[size:]
        if len(taken) < size:
            raise PacketError("a packet is too short")
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def data(self) -> bytes:
        return self.take(self.number())

    def text(self) -> str:
        try:
            return self.data().decode()
        except UnicodeDecodeError:
            raise PacketError("a text is not UTF-8") from None

    def packet_id(self) -> int:
        if (number := self.number()) == 0:
            raise PacketError("a packet id is 0")
        return number

    def rest(self) -> bytes:
        return self.take(len(self._rest))

    def __bool__(self) -> bool:
        return bool(self._rest)


def read_connect(packet: Packet) -> Connect:
    """A CONNECT (3.1). Raises UnsupportedVersionError for MQTT 5 and for versions before 3.1.1."""
    body = _Body(packet.body)
    name, level, flags = body.data(), body.take(1)[0], body.take(1)[0]
    if name != b"MQTT" or level != 4:
        raise UnsupportedVersionError(level)
    keepalive_s, client_id = body.number(), body.text()
    will_qos = min(flags >> 3 & 3, 1)  # our QoS 1 is all that a will of QoS 2 gets
    will = Message(body.text(), body.data(), will_qos, bool(flags & 0x20)) if flags & 4 else None
    username = body.text() if flags & 0x80 else ""
    password = body.text() if flags & 0x40 else ""
    if body or flags & 1:
        raise PacketError("a CONNECT has more than its flags announce")
    return Connect(client_id, username, password, keepalive_s, will)


def read_publish(packet: Packet) -> tuple[Message, int]:
    """A PUBLISH (3.3) and its packet id, 0 with QoS 0."""
    body, qos = _Body(packet.body), packet.flags >> 1 & 3
    if qos > 1:
        raise PacketError("a message has a QoS above 1")
    topic, packet_id = body.text(), body.packet_id() if qos else 0
    return Message(topic, body.rest(), qos, bool(packet.flags & 1)), packet_id


def read_filters(packet: Packet) -> tuple[int, list[tuple[str, int]]]:
    """Packet id and filters, each with its QoS, of a SUBSCRIBE (3.8) or UNSUBSCRIBE (3.10).

    Raises PacketError for more than `FILTERS_MAX` of them.
    """
    body = _Body(packet.body)
    filters: list[tuple[str, int]] = []
    if packet.flags != 2:
        raise PacketError("a subscription has wrong flags")
    packet_id = body.packet_id()
    while body:
        if len(filters) == FILTERS_MAX:
            raise PacketError("a subscription has too many filters")
        filters.append((body.text(), body.take(1)[0] if packet.kind == Kind.SUBSCRIBE else 0))
    return packet_id, filters


def encode(kind: int, body: bytes = b"", *, flags: int = 0) -> bytes:
    """A packet of this type and body."""
    length, rest = bytearray(), len(body)
    while True:
        rest, digit = divmod(rest, 128)
        length.append(digit | (0x80 if rest else 0))
        if not rest:
            return bytes((kind << 4 | flags,)) + length + body


def encode_publish(message: Message, packet_id: int) -> bytes:
    """A PUBLISH; `packet_id` is not sent with QoS 0."""
    number = struct.pack("!H", packet_id) if message.qos else b""
    body = encode_text(message.topic) + number + message.payload
    return encode(Kind.PUBLISH, body, flags=message.qos << 1 | message.retain)


def encode_text(text: str) -> bytes:
    """A field of a body: length and UTF-8."""
    data = text.encode()
    return struct.pack("!H", len(data)) + data
