"""One made-up agent of a real coordinator: it joins with an invite and does what agents do, but
compute.

It knows its key, says who it is and what it lends, acknowledges all that it is told, answers a
probe order with made-up times and ways, and an assignment with a download that has begun and never
ends.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import aiohttp
from pydantic import BaseModel

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
from tools.experiments.swarm.packets import (
    CONNACK,
    PUBACK,
    PUBLISH,
    SUBACK,
    acknowledge,
    connect,
    publish,
    published,
    read_packet,
    subscribe,
)

__all__ = ["Member"]

JOIN_TIMEOUT_S = 60.0

STEP_S = (0.8e-3, 8e-5, 7e-5)
"""Of a layer: decode, each row more, a prompt's row; up to three times as much, by chance."""

UPLOAD_MBPS = (10.0, 100.0)
ONE_WAY_MS = (3.0, 25.0)
MEMORY_MB = (24, 72)
"""Lent: a few layers of the benchmarks' random llama."""


@dataclass(slots=True)
class Member:
    """Made for a number, from which all its chances follow."""

    number: int
    pair: KeyPair = field(default_factory=KeyPair.generate)
    frozen: bool = False
    orders: int = 0
    """Probe orders that came."""
    assignments: int = 0
    profile: Profile | None = None
    _random: Random = field(init=False)
    _reader: asyncio.StreamReader = field(init=False)
    _writer: asyncio.StreamWriter = field(init=False)
    _packet_ids: "count[int]" = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._random = Random(self.number)

    @property
    def node_id(self) -> str:
        """Of its key."""
        return self.pair.node_id

    @property
    def name(self) -> str:
        """For people."""
        return f"pc{self.number:04d}"

    async def join(self, session: aiohttp.ClientSession, invite: Invite) -> None:
        """Be let in, connect, subscribe, and say who it is.

        Raises MolinkError, OSError, TimeoutError, EOFError.
        """
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            answer = await self._admitted(session, invite)
            await self._connected(answer)
            self._writer.write(subscribe(f"molink/v1/node/{self.node_id}/told/#", COORDINATOR.path))
            await self._answer(SUBACK)
            self._say(PRESENCE, self._presence(online=True))
            await self._answer(PUBACK)
            self.profile = self._made_up_profile()
            self._say(PROFILE, self.profile)

    async def obey(self) -> None:
        """Take and answer what comes, until the connection ends."""
        while True:
            packet = await read_packet(self._reader)
            if packet.kind != PUBLISH:
                continue
            topic, payload, packet_id = published(packet)
            if packet_id:
                self._writer.write(acknowledge(packet_id))
            if topic.endswith("/told/probe"):
                self._measure(json.loads(payload))
            elif topic.endswith("/told/assignment"):
                self._load(json.loads(payload))

    def say_health(self) -> None:
        """That it lives."""
        if not self.frozen:
            state = NodeState.LOADING if self.assignments else NodeState.STANDBY
            health = NodeHealth(incarnation=self.node_id, state=state, uptime_s=time.monotonic())
            self._say(HEALTH, health)

    def die(self) -> None:
        """As when its process is killed."""
        self.frozen = True
        self._writer.transport.abort()

    def freeze(self) -> None:
        """It neither says nor reads anything any more; its connection stays."""
        self.frozen = True
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def _admitted(self, session: aiohttp.ClientSession, invite: Invite) -> JoinAnswer:
        request = request_to_join(invite, self.name, "1", time.time())
        sealed = seal(request, self.pair, invite.coordinator_key)
        async with session.post(f"{invite.url}/agents/join", data=sealed) as response:
            body = await response.read()
            if response.status != 200:
                raise OSError(f"{response.status}: {body[:200]!r}")
        answer = open_answer(body, self.pair, JoinAnswer, invite.coordinator_key)
        check_answer(request, answer, self.node_id)
        return answer

    async def _connected(self, answer: JoinAnswer) -> None:
        host = answer.broker_host or "127.0.0.1"
        self._reader, self._writer = await asyncio.open_connection(host, answer.broker_port)
        will = self._presence(online=False).model_dump_json().encode()
        topic = PRESENCE.of(self.node_id)
        self._writer.write(connect(self.node_id, answer.username, answer.password, topic, will))
        refused = (await self._answer(CONNACK))[1]
        if refused:
            raise ConnectionRefusedError(f"refused with {refused}")

    async def _answer(self, wanted: int) -> bytes:
        """Before it obeys: what it is told until it has said its profile is nothing to act on."""
        while (packet := await read_packet(self._reader)).kind != wanted:
            if packet.kind == PUBLISH and (packet_id := published(packet)[2]):
                self._writer.write(acknowledge(packet_id))
        return packet.body

    def _say(self, topic: Topic[Any], message: BaseModel) -> None:
        packet_id = next(self._packet_ids) % 0xFFFF + 1 if topic.qos else 0
        payload = message.model_dump_json().encode()
        path = topic.of(self.node_id)
        self._writer.write(publish(path, payload, packet_id, retained=topic.retained))

    def _presence(self, *, online: bool) -> Presence:
        return Presence(
            name=self.name,
            incarnation=self.node_id,
            started_unix_s=1.0,
            version="1",
            online=online,
        )

    def _made_up_profile(self) -> Profile:
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
        self.orders += 1
        assert self.profile is not None
        slow = self._random.uniform(1.0, 3.0)
        fixed_s, row_s, prompt_row_s = (slow * one for one in STEP_S)
        steps = StepCost(
            model=order["model"],
            decode_fixed_s=fixed_s,
            decode_row_s=row_s,
            prefill_row_s=prompt_row_s,
        )
        if self.profile.steps is None:  # As agents do, which keep what they have timed.
            self.profile = self.profile.model_copy(update={"steps": steps})
            self._say(PROFILE, self.profile)
        paths = tuple(self._way(peer["node_id"]) for peer in order["peers"])
        self._say(PATHS, PathReport(round=order["round"], paths=paths))

    def _way(self, peer: str) -> PathMeasured:
        assert self.profile is not None
        return PathMeasured(
            to=peer,
            path="direct",
            rtt_ms=2 * self._random.uniform(*ONE_WAY_MS),
            rate_mbps=self.profile.upload_mbps,
        )

    def _load(self, assignment: dict[str, Any]) -> None:
        self.assignments += 1
        revision, work = assignment["revision"], assignment["work"]
        if work is None:
            self._say(FACT, StageFact(revision=revision, kind="stopped"))
        else:
            self._say(FACT, StageFact(revision=revision, kind="downloading"))
