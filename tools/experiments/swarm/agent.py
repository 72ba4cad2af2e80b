"""One made-up agent: the least of MQTT that an agent speaks, so that thousands fit into a process.

A thousand of the real clients would measure themselves: their library keeps a task each, and looks
at the clock once a second for each. The packets on the wire are the same.
"""

import asyncio
import time
from dataclasses import dataclass

from molink.control.messages.payloads import NodeHealth, NodeState, Presence, Profile
from molink.control.messages.topics import COORDINATOR, HEALTH, PRESENCE, PROFILE
from tools.experiments.swarm.broker_host import HOST, password_of
from tools.experiments.swarm.packets import (
    CONNACK,
    PUBACK,
    SUBACK,
    connect,
    publish,
    read_packet,
    subscribe,
)

__all__ = ["Agent"]

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
            answer = await agent._answer(CONNACK)
            if answer[1]:
                raise ConnectionRefusedError(f"refused with {answer[1]}")
            agent._subscribe()
            await agent._answer(SUBACK)
            agent._say(PRESENCE.of(name), _presence(name, True), 1, True)
            agent._say(PROFILE.of(name), _PROFILE, 2, True)
            await agent._answer(PUBACK)
            await agent._answer(PUBACK)
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
        self.writer.write(subscribe(f"molink/v1/node/{self.name}/told/#", COORDINATOR.path))

    def _say(self, topic: str, payload: bytes, packet_id: int, retained: bool) -> None:
        self.writer.write(publish(topic, payload, packet_id, retained=retained))

    async def _answer(self, wanted: int) -> bytes:
        while (packet := await read_packet(self.reader)).kind != wanted:
            pass
        return packet.body


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
    return connect(name, name, password_of(name), PRESENCE.of(name), _presence(name, False))
