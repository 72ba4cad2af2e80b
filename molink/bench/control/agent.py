"""One made-up agent: the least of MQTT that an agent speaks, so that thousands fit into a process.

A thousand of the real clients would measure themselves: their library keeps a task each, and looks
at the clock once a second for each. The packets on the wire are the same.
"""

import asyncio
import struct
import time
from dataclasses import dataclass

from molink.bench.control.broker_host import HOST, password_of
from molink.control.connection import KEEPALIVE_S
from molink.control.messages import NodeHealth, NodeState, Presence, Profile
from molink.control.topics import COORDINATOR, HEALTH, PRESENCE, PROFILE

__all__ = ["Agent"]

_CONNACK, _PUBACK, _SUBACK = 2, 4, 9
_JOIN_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Agent:
    """Joined, and connected until it is cut."""

    name: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    frozen: bool = False

    @classmethod
    async def join(cls, name: str, door: int, port: int) -> "Agent":
        """Be let in, connect, subscribe, and say who it is. Raises OSError, TimeoutError."""
        async with asyncio.timeout(_JOIN_TIMEOUT_S):
            await _knock(name, door)
            agent = cls(name, *await asyncio.open_connection(HOST, port))
            agent.writer.write(_connect(name))
            answer = await agent._answer(_CONNACK)
            if answer[1]:
                raise ConnectionRefusedError(f"refused with {answer[1]}")
            agent._subscribe()
            await agent._answer(_SUBACK)
            agent._say(PRESENCE.of(name), _presence(name, True), 1, True)
            agent._say(PROFILE.of(name), _PROFILE, 2, True)
            await agent._answer(_PUBACK)
            await agent._answer(_PUBACK)
        return agent

    async def stay(self) -> None:
        """Take what comes until the connection ends; what is told to it does not matter here."""
        while await self.reader.read(4096):
            pass

    def say_health(self) -> None:
        """The time of sending is in `uptime_s`, for whoever measures delay."""
        health = NodeHealth(
            incarnation="made-up-one", state=NodeState.STANDBY, uptime_s=time.monotonic()
        )
        if not self.frozen:
            self._say(HEALTH.of(self.name), health.model_dump_json().encode(), 0, False)

    def die(self) -> None:
        """As when its process is killed."""
        self.frozen = True
        self.writer.transport.abort()

    def freeze(self) -> None:
        """It neither says nor reads anything any more; its connection stays."""
        self.frozen = True
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def _subscribe(self) -> None:
        filters = (f"molink/v1/node/{self.name}/told/#", COORDINATOR.path)
        body = b"".join(_text(one) + b"\x01" for one in filters)
        self.writer.write(_packet(0x82, b"\0\x01" + body))

    def _say(self, topic: str, payload: bytes, packet_id: int, retained: bool) -> None:
        qos = 2 if packet_id else 0
        ids = struct.pack("!H", packet_id) if packet_id else b""
        self.writer.write(_packet(0x30 | qos | retained, _text(topic) + ids + payload))

    async def _answer(self, wanted: int) -> bytes:
        while True:
            kind = (await self.reader.readexactly(1))[0] >> 4
            length = shift = 0
            while True:
                (digit,) = await self.reader.readexactly(1)
                length |= (digit & 0x7F) << shift
                shift += 7
                if digit < 0x80:
                    break
            body = await self.reader.readexactly(length)
            if kind == wanted:
                return body


async def _knock(name: str, door: int) -> None:
    reader, writer = await asyncio.open_connection(HOST, door)
    writer.write(f"{name}\n".encode())
    await reader.readline()
    writer.close()


_PROFILE = (
    Profile(
        devices=(),
        cpu_threads=8,
        memory_bytes=2**34,
        disk_free_bytes=2**36,
        upload_mbps=20.0,
        download_mbps=100.0,
    )
    .model_dump_json()
    .encode()
)


def _presence(name: str, online: bool) -> bytes:
    presence = Presence(
        name=name, incarnation="made-up-one", started_unix_s=0.0, version="1", online=online
    )
    return presence.model_dump_json().encode()


def _connect(name: str) -> bytes:
    flags = 0xC2 | 0x2C  # user, password, clean session; a retained last will with QoS 1
    head = _text("MQTT") + bytes((4, flags)) + struct.pack("!H", KEEPALIVE_S)
    will = _text(PRESENCE.of(name)) + _bytes(_presence(name, False))
    return _packet(0x10, head + _text(name) + will + _text(name) + _text(password_of(name)))


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
