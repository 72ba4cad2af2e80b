"""A client that says exactly what a test wants said, right or wrong, and nothing on its own."""

import asyncio
import contextlib
import struct
from collections import deque
from dataclasses import dataclass, field

from molink.control.addresses import BrokerAddress

TIMEOUT_S = 15.0
CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 2, 3, 4, 9, 13


def text(value):
    raw = value.encode()
    return struct.pack("!H", len(raw)) + raw


def packet(kind, body):
    length, rest = b"", len(body)
    while True:
        rest, digit = rest // 128, rest % 128
        length += bytes([digit | 0x80 if rest else digit])
        if not rest:
            return bytes([kind]) + length + body


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
            kind = (await self.reader.readexactly(1))[0]
            length = shift = 0
            while True:
                (digit,) = await self.reader.readexactly(1)
                length |= (digit & 0x7F) << shift
                shift += 7
                if digit < 0x80:
                    return kind, await self.reader.readexactly(length)

    async def answer(self, wanted):
        """The next packet of that kind; messages before it are kept."""
        while True:
            kind, body = await self.packet()
            if kind >> 4 == PUBLISH:
                self.take(kind, body)
            if kind >> 4 == wanted:
                return body

    def take(self, kind, body):
        (length,) = struct.unpack("!H", body[:2])
        topic, rest = body[2 : 2 + length].decode(), body[2 + length :]
        if kind & 6:
            self.writer.write(packet(0x40, rest[:2]))
            rest = rest[2:]
        self.messages.append((topic, rest.decode(), bool(kind & 1)))

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
