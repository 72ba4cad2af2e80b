"""One made-up agent: it joins and does what agents do, but compute.

It knows its key, says who it is and what it lends, acknowledges all commands, answers a probe order
with made-up times and routes, and an assignment with a download that has begun and never ends.

It speaks the least of MQTT that an agent speaks, so that thousands fit into a process: a thousand
of the real clients would measure themselves, since their library keeps a task each and wakes once a
second for each. The packets on the wire are the same.
"""

import asyncio
import json
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import aiohttp
from pydantic import BaseModel

from molink.control.addresses import ServerTrust
from molink.control.broker.packets import (
    Kind,
    Message,
    Packet,
    encode,
    encode_publish,
    encode_text,
    read_publish,
    take_packet,
)
from molink.control.connection import KEEPALIVE_S
from molink.control.identity import KeyPair
from molink.control.messages.invites import Invite
from molink.control.messages.joining import JoinAnswer, check_answer, request_to_join
from molink.control.messages.payloads import (
    Device,
    NodeHealth,
    NodeState,
    PathMeasured,
    PathReport,
    Presence,
    Profile,
    StageFact,
    StepCost,
)
from molink.control.messages.sealing import open_answer, seal
from molink.control.messages.topics import (
    COORDINATOR,
    FACT,
    HEALTH,
    PATHS,
    PRESENCE,
    PROFILE,
    Topic,
)
from molink.control.versions import own_protocols
from tools.experiments.swarm.broker_host import HOST, password_of

__all__ = ["Admit", "BrokerLogin", "Member", "at_port", "with_invite"]

JOIN_TIMEOUT_S = 60.0

PACKET_BYTES_MAX = 2**24
READ_BYTES = 4096

WITH_USER_AND_WILL = 0xC2 | 0x2C
"""Flags of a CONNECT: user, password, clean session; a retained last will with QoS 1."""

STEP_S = (0.8e-3, 8e-5, 7e-5)
"""Seconds of a layer: decode, each row more, a prompt's row; up to three times as much, by
chance."""

UPLOAD_MBPS = (10.0, 100.0)
ONE_WAY_MS = (3.0, 25.0)
MEMORY_MB = (24, 72)
"""Lent: a few layers of the benchmarks' random llama."""


@dataclass(frozen=True, slots=True)
class BrokerLogin:
    """Where the broker is, and as whom to connect."""

    port: int
    username: str
    password: str
    host: str = HOST
    tls: ServerTrust | None = None


Admit = Callable[["Member"], Awaitable[BrokerLogin]]
"""How a member is let in."""


@dataclass(slots=True)
class Member:
    """A made-up agent; all its chances follow from its number."""

    number: int
    pair: KeyPair = field(default_factory=KeyPair.generate)
    frozen: bool = False
    probe_orders: int = 0
    assignments: int = 0
    profile: Profile | None = None
    _random: Random = field(init=False)
    _reader: asyncio.StreamReader = field(init=False)
    _writer: asyncio.StreamWriter = field(init=False)
    _unread: bytearray = field(default_factory=bytearray)
    _packet_ids: "count[int]" = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._random = Random(self.number)

    @property
    def node_id(self) -> str:
        """The id that follows from its key."""
        return self.pair.node_id

    @property
    def name(self) -> str:
        """Its name for people."""
        return f"pc{self.number:04d}"

    async def join(self, admit: Admit) -> None:
        """Be let in, connect, subscribe, and publish presence and profile.

        Raises MolinkError, OSError, TimeoutError, EOFError.
        """
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            await self._connect(await admit(self))
            self._subscribe(f"molink/v1/node/{self.node_id}/told/#", COORDINATOR.path)
            await self._answer(Kind.SUBACK)
            self._publish(PRESENCE, self.presence(online=True))
            await self._answer(Kind.PUBACK)
            self.profile = self.made_up_profile()
            self._publish(PROFILE, self.profile)

    async def run(self) -> None:
        """Take and answer what comes, until the connection ends. Raises OSError, EOFError."""
        while True:
            packet = await self._packet()
            if packet.kind != Kind.PUBLISH:
                continue
            message = self._received(packet)
            if message.topic.endswith("/told/probe"):
                self._measure(json.loads(message.payload))
            elif message.topic.endswith("/told/assignment"):
                self._load(json.loads(message.payload))

    def publish_health(self) -> None:
        """Publish that it lives; `uptime_s` is the time of sending, from which delays follow."""
        if not self.frozen:
            state = NodeState.LOADING if self.assignments else NodeState.STANDBY
            health = NodeHealth(incarnation=self.node_id, state=state, uptime_s=time.monotonic())
            self._publish(HEALTH, health)

    def kill(self) -> None:
        """End as when its process is killed: the connection closes."""
        self.frozen = True
        self._writer.transport.abort()

    def freeze(self) -> None:
        """Neither write nor read anything any more; the connection stays."""
        self.frozen = True
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    # -- MQTT --------------------------------------------------------------------------------------

    async def _connect(self, login: BrokerLogin) -> None:
        tls = None if login.tls is None else login.tls.ssl_context()
        self._reader, self._writer = await asyncio.open_connection(login.host, login.port, ssl=tls)
        will = self.presence(online=False).model_dump_json()
        texts = (self.node_id, PRESENCE.of(self.node_id), will, login.username, login.password)
        head = encode_text("MQTT") + struct.pack("!BBH", 4, WITH_USER_AND_WILL, KEEPALIVE_S)
        self._writer.write(encode(Kind.CONNECT, head + b"".join(map(encode_text, texts))))
        refused = (await self._answer(Kind.CONNACK))[1]
        if refused:
            raise ConnectionRefusedError(f"refused with {refused}")

    def _subscribe(self, *filters: str) -> None:
        body = b"".join(encode_text(topic) + b"\x01" for topic in filters)
        self._writer.write(encode(Kind.SUBSCRIBE, b"\0\x01" + body, flags=2))

    def _publish(self, topic: Topic[Any], message: BaseModel) -> None:
        packet_id = next(self._packet_ids) % 0xFFFF + 1 if topic.qos else 0
        payload = message.model_dump_json().encode()
        published = Message(topic.of(self.node_id), payload, topic.qos, topic.retained)
        self._writer.write(encode_publish(published, packet_id))

    async def _packet(self) -> Packet:
        while (packet := take_packet(self._unread, PACKET_BYTES_MAX)) is None:
            read = await self._reader.read(READ_BYTES)
            if not read:
                raise EOFError("the broker closed the connection")
            self._unread += read
        return packet

    async def _answer(self, wanted: Kind) -> bytes:
        """The answer to what it has sent; commands that come before its profile are dropped."""
        while (packet := await self._packet()).kind != wanted:
            if packet.kind == Kind.PUBLISH:
                self._received(packet)
        return packet.body

    def _received(self, packet: Packet) -> Message:
        """Acknowledge a message."""
        message, packet_id = read_publish(packet)
        if packet_id:
            self._writer.write(encode(Kind.PUBACK, struct.pack("!H", packet_id)))
        return message

    # -- what it publishes ------------------------------------------------------------------------

    def presence(self, *, online: bool) -> Presence:
        """What it says of itself when it comes, and what is said of it when it is gone."""
        return Presence(
            name=self.name,
            incarnation=self.node_id,
            started_unix_s=1.0,
            version="1",
            protocol=own_protocols().newest,
            online=online,
        )

    def made_up_profile(self) -> Profile:
        """A PC by chance."""
        lent = self._random.randint(*MEMORY_MB) * 10**6
        return Profile(
            devices=(Device(kind="cpu", name="made up", memory_bytes=2**33, free_bytes=lent),),
            cpu_threads=8,
            memory_bytes=2**33,
            disk_free_bytes=2**36,
            upload_mbps=self._random.uniform(*UPLOAD_MBPS),
            download_mbps=100.0,
            addresses=(f"10.0.{self.number // 250}.{self.number % 250 + 1}:4000",),
        )

    def _measure(self, order: dict[str, Any]) -> None:
        self.probe_orders += 1
        assert self.profile is not None
        slower = self._random.uniform(1.0, 3.0)
        fixed_s, row_s, prompt_row_s = (slower * step_s for step_s in STEP_S)
        steps = StepCost(
            model=order["model"],
            decode_fixed_s=fixed_s,
            decode_row_s=row_s,
            prefill_row_s=prompt_row_s,
        )
        if self.profile.steps is None:  # As agents do, which keep what they have timed.
            self.profile = self.profile.model_copy(update={"steps": steps})
            self._publish(PROFILE, self.profile)
        paths = tuple(self._path(peer["node_id"]) for peer in order["peers"])
        self._publish(PATHS, PathReport(round=order["round"], paths=paths))

    def _path(self, peer: str) -> PathMeasured:
        assert self.profile is not None
        return PathMeasured(
            to=peer,
            path="direct",
            rtt_ms=2 * self._random.uniform(*ONE_WAY_MS),
            rate_mbps=self.profile.upload_mbps,
        )

    def _load(self, assignment: dict[str, Any]) -> None:
        self.assignments += 1
        revision, command = assignment["revision"], assignment["command"]
        if command["kind"] == "stop":
            self._publish(FACT, StageFact(revision=revision, kind="stopped"))
        else:
            self._publish(FACT, StageFact(revision=revision, kind="downloading"))


# -- how members are let in -----------------------------------------------------------------------


def with_invite(session: aiohttp.ClientSession, invite: Invite) -> Admit:
    """Join a real coordinator with its invite."""

    async def admit(member: Member) -> BrokerLogin:
        request = request_to_join(invite, member.name, "1", time.time())
        sealed = seal(request, member.pair, invite.coordinator_key)
        # What comes back is sealed: whose certificate it is does not matter.
        async with session.post(f"{invite.url}/agents/join", data=sealed, ssl=False) as response:
            body = await response.read()
            if response.status != 200:
                raise OSError(f"{response.status}: {body[:200]!r}")
        answer = open_answer(body, member.pair, JoinAnswer, invite.coordinator_key)
        check_answer(request, answer, member.node_id)
        host = answer.broker_host or HOST
        login = (answer.broker_port, answer.username, answer.password)
        return BrokerLogin(*login, host, answer.broker_tls)

    return admit


def at_port(admission_port: int, broker_port: int) -> Admit:
    """Join a broker that `broker_host` hosts."""

    async def admit(member: Member) -> BrokerLogin:
        reader, writer = await asyncio.open_connection(HOST, admission_port)
        writer.write(f"{member.node_id}\n".encode())
        await reader.readline()
        writer.close()
        return BrokerLogin(broker_port, member.node_id, password_of(member.node_id))

    return admit
