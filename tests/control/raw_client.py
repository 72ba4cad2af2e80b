"""A client that says exactly what a test wants said, right or wrong, and nothing on its own."""

import asyncio
import contextlib
import struct
from collections import deque
from dataclasses import dataclass, field

from molink.control.addresses import BrokerAddress
from molink.control.broker.packets import encode, encode_text, read_publish, take_packet

TIMEOUT_S = 15.0
CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 2, 3, 4, 9, 13
BYTES_MAX = 2**24

text = encode_text


def packet(first, body):
    """With a first byte that may be wrong."""
    return encode(first >> 4, body, flags=first & 0x0F)


def connect_packet(username, password, client_id, keepalive=0, will=None, level=4):
    flags = 0xC2 | (0x2C if will else 0)  # user, password, clean; will: retained, QoS 1
    properties = b"\0" if level == 5 else b""
    body = text("MQTT") + bytes([level, flags]) + struct.pack("!H", keepalive) + properties
    body += text(client_id)
    if will:
        body += properties + text(will[0]) + text(will[1])
    return packet(0x10, body + text(username) + text(password))


@dataclass
class RawClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    code: int = -1
    messages: deque = field(default_factory=deque)
    packet_id: int = 0
    buffer: bytearray = field(default_factory=bytearray)

    @classmethod
    async def dial(cls, address: BrokerAddress):
        return cls(*await asyncio.open_connection(address.host, address.port))

    @classmethod
    async def connect(cls, address, username, password, client_id=None, **more):
        client = await cls.dial(address)
        client.writer.write(connect_packet(username, password, client_id or username, **more))
        answer = await client.answer(CONNACK)
        client.code = answer[1]
        return client

    async def packet(self):
        async with asyncio.timeout(TIMEOUT_S):
            while (came := take_packet(self.buffer, BYTES_MAX)) is None:
                self.buffer += await self.reader.read(2**16) or self.ended()
            return came

    def ended(self):
        raise asyncio.IncompleteReadError(bytes(self.buffer), None)

    async def answer(self, wanted):
        """The next packet of that kind; messages before it are kept."""
        while True:
            came = await self.packet()
            if came.kind == PUBLISH:
                self.take(*read_publish(came))
            if came.kind == wanted:
                return came.body

    def take(self, message, packet_id):
        if packet_id:
            self.writer.write(packet(0x40, struct.pack("!H", packet_id)))
        self.messages.append((message.topic, message.payload.decode(), message.retain))

    async def message(self):
        """(topic, payload, retained) of the next message."""
        if not self.messages:
            await self.answer(PUBLISH)
        return self.messages.popleft()

    async def subscribe(self, *filters):
        self.packet_id += 1
        body = struct.pack("!H", self.packet_id)
        self.writer.write(packet(0x82, body + b"".join(text(one) + b"\1" for one in filters)))
        return list((await self.answer(SUBACK))[2:])

    async def publish(self, topic, payload, retain=False):
        self.packet_id += 1
        head = text(topic) + struct.pack("!H", self.packet_id)
        self.writer.write(packet(0x32 | retain, head + payload.encode()))
        await self.answer(PUBACK)

    async def received(self):
        """All that came before the answer to a ping, which comes after all that is due."""
        self.writer.write(b"\xc0\0")
        await self.answer(PINGRESP)
        messages, self.messages = list(self.messages), deque()
        return messages

    def say_no_more(self):
        """Close its half, if the broker has not closed both yet."""
        with contextlib.suppress(OSError):
            self.writer.write_eof()

    async def closed(self):
        """Wait until the broker has closed the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                while await self.reader.read(4096):
                    pass
            except ConnectionResetError:
                pass

    def die(self):
        """As when the process is killed."""
        self.writer.transport.abort()
