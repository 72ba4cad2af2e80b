"""Member of a cluster that computes nothing: it joins with an invite, as an agent does, and then
says what an experiment likes.

It uses the classes of the product for everything but the lies: so it follows when these change, and
whatever an honest agent may do it may, too.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from molink.control.addresses import Credentials
from molink.control.identity import KeyPair
from molink.control.messages.assignment import Assignment, Extend, Follow, GoOn, Hold, Join, Load
from molink.control.messages.invites import Invite
from molink.control.messages.payloads import (
    AssignedWork,
    Device,
    LinkKeys,
    NodeHealth,
    NodeState,
    NodeWish,
    PathMeasured,
    PathReport,
    ProbeOrder,
    Profile,
    Services,
    StageFact,
    StepCost,
)
from molink.control.messages.topics import (
    ACCEPTED,
    ASSIGNMENT,
    FACT,
    HEALTH,
    LINK_KEYS,
    PATHS,
    PROBE,
    PROFILE,
    SERVICES,
    WISH,
    Topic,
)
from molink.errors import UserError
from molink.node.control_session import ControlSession
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink.tasks import cancel
from molink.transport.link.inbound import ArrivedMessage
from molink.transport.link.process_links import ProcessLinks
from molink.wire.curve_keys import CurveKeys
from molink.wire.frames import FROM_COORDINATOR, FROM_STAGE, FROM_TAIL, LinkRole, Submit
from molink_agent.daemon.membership import Membership, join_cluster
from tools.experiments.guard.honest_paths import HonestPaths

__all__ = ["FakeNode"]

TOLD: tuple[Topic[Any], ...] = (ACCEPTED, SERVICES, LINK_KEYS, PROBE, ASSIGNMENT)

HEARTBEAT_S = 1.0
POLL_S = 0.1
CREEP_S, HOUR_S = 3.0, 3600.0

LISTEN = "127.0.0.1"

_RAW = PackingHealth("raw", 0, 0, 0.0)


def honest_health() -> dict[str, Any]:
    """What a stage says that has little to do."""
    health = StageHealth(
        kv_tokens_used=0,
        busy_s=1.0,
        busy_share=0.5,
        steps=200,
        requests_running=0,
        requests_waiting=0,
        frames_refused=0,
        packed=_RAW,
        unpacked=_RAW,
        bytes_saved=0,
        decode_round_s=None,
        micro_batch_count=None,
        decode_step_s=0.01,
        prefill_row_s=0.001,
        links=(),
    )
    return asdict(health)


@dataclass(slots=True)
class FakeNode:
    """A member that says what it likes, acknowledges what comes on its links, and computes
    nothing."""

    invite: str
    folder: Path
    name: str
    memory_bytes: int = 8 * 2**30
    step_s: float = 1e-5
    """Of a layer, as it claims: a planner gives it everything that it says it can hold."""
    loads: bool = True
    """False: it downloads for ever."""
    creeps_per_s: float = 0.0
    """By how much its download rises, if it does not load."""
    answers: bool = True
    """False: its stage's ports are open, and nobody who connects ever hears anything."""
    measures: bool = False
    """True: neighbours can measure the path to it, and it reports its own as they are."""
    says_ready: bool = True
    line: dict[str, Any] = field(default_factory=dict)
    """What it says of its stage beside the truth, once that is loaded."""
    stage: dict[str, Any] = field(default_factory=honest_health)
    """What it says of its stage while that serves."""
    beats: bool = True
    pair: KeyPair = field(default_factory=KeyPair.generate)
    serving: bool = False
    requests_read: int = 0
    """Requests whose prompts it has read."""
    probe_orders: int = 0
    assignments: list[Assignment] = field(default_factory=list)
    membership: Membership = field(init=False)
    session: ControlSession = field(init=False)
    paths: HonestPaths = field(init=False)
    _measuring: "asyncio.Task[None] | None" = None
    _creeping: asyncio.Task[None] | None = None
    _links: ProcessLinks | None = None
    _silent_ports: list[socket.socket] = field(default_factory=list)
    _allowed: tuple[str, ...] = ()
    _model: str = ""

    def __post_init__(self) -> None:
        self.session = ControlSession(self.node_id, self.name, started_unix_s=time.time())
        self.paths = HonestPaths(self.node_id, LISTEN)

    @property
    def node_id(self) -> str:
        """The id that follows from its key."""
        return self.pair.node_id

    async def join(self) -> None:
        """Become a member, by the request of a real agent. Raises MolinkError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.membership = await join_cluster(
            Invite.parse(self.invite), self.pair, self.name, self.folder
        )

    @asynccontextmanager
    async def member(self) -> AsyncIterator["FakeNode"]:
        """Join, and take part while the block runs."""
        await self.join()
        answer = self.membership.answer
        identity = Credentials(answer.username, answer.password)
        async with self.session.open(self.membership.broker, identity, TOLD):
            await self.say(WISH, NodeWish(wish="serve"))
            await self.say(PROFILE, self.profile(steps=None))
            tasks = [asyncio.create_task(self._hear()), asyncio.create_task(self._beat())]
            try:
                yield self
            finally:
                ended = [task for task in tasks if task.done()]
                await cancel(*tasks, self._measuring, self._creeping)
                await self.paths.close()
                self._close_links()
                for task in ended:
                    task.result()  # Raises what ended it.

    async def until_serving(self, within_s: float = 60.0) -> None:
        """Wait until a ring has taken it. Raises UserError."""
        give_up_s = time.monotonic() + within_s
        while not self.serving:
            if time.monotonic() > give_up_s:
                raise UserError(f"{self.name} was taken into no ring within {within_s:g} s")
            await asyncio.sleep(POLL_S)

    # -- what it says ----------------------------------------------------------------------------

    async def say(self, topic: Topic[Any], message: Any) -> None:
        """Publish a message of its own."""
        await self.session.publish(topic, message)

    async def say_raw(self, topic: Topic[Any], payload: bytes) -> None:
        """Publish bytes that are no message."""
        if self.session.client is not None:
            await self.session.client._send(topic, self.node_id, payload)

    def profile(self, **changed: Any) -> Profile:
        """The PC that it claims to be."""
        cpu = Device(
            kind="cpu",
            name="made up",
            memory_bytes=self.memory_bytes,
            free_bytes=self.memory_bytes,
            threads=2,
        )
        claimed: dict[str, Any] = {
            "devices": (cpu,),
            "cpu_threads": 2,
            "memory_bytes": self.memory_bytes,
            "disk_free_bytes": 2**40,
            "upload_mbps": 900.0,
            "download_mbps": 900.0,
            "addresses": self.paths.addresses or (f"{LISTEN}:9",),
            "steps": self._steps(),
        }
        return Profile(**(claimed | changed))

    def _steps(self) -> StepCost:
        return StepCost(
            model=self._model or "demo",
            decode_fixed_s=self.step_s,
            decode_row_s=self.step_s / 10,
            prefill_row_s=self.step_s / 10,
        )

    async def _beat(self) -> None:
        began_s = time.monotonic()
        while True:
            if self.beats:
                health = NodeHealth(
                    incarnation=self.session.incarnation,
                    state=NodeState.SERVING if self.serving else NodeState.STANDBY,
                    uptime_s=time.monotonic() - began_s,
                    stage=self._moving_stage() if self.serving else None,  # type: ignore[arg-type]
                )
                await self.say(HEALTH, health)
            await asyncio.sleep(HEARTBEAT_S)

    def _moving_stage(self) -> dict[str, Any]:
        """A stage that works, as far as its words go: whatever counts up goes on counting."""
        for name in ("steps", "sequence", "reports"):
            if isinstance(self.stage.get(name), int):
                self.stage[name] += 1
        return dict(self.stage)

    # -- what it is told -------------------------------------------------------------------------

    async def _hear(self) -> None:
        client = self.session.client
        assert client is not None
        async for received in client.messages():
            match received.message:
                case Services(probe_key=key) if self.measures:
                    await self.paths.offer(key)
                    await self.say(PROFILE, self.profile())
                case ProbeOrder() as order:
                    await self._measure(order)
                case LinkKeys(allowed=allowed):
                    self._allowed = allowed
                    if self._links is not None and self._links.guard is not None:
                        self._links.guard.allow(allowed)
                case Assignment() as assignment:
                    await self._obey(assignment)

    async def _measure(self, order: ProbeOrder) -> None:
        self.probe_orders += 1
        self._model = order.model
        await self.say(PROFILE, self.profile())
        if self.measures:
            await cancel(self._measuring)
            self._measuring = asyncio.create_task(self._report_paths(order))
            return
        peers = [peer.node_id for peer in order.peers]
        paths = [PathMeasured(to=to, path="direct", rtt_ms=1.0, rate_mbps=900.0) for to in peers]
        await self.say(PATHS, PathReport(round=order.round, paths=tuple(paths)))

    async def _report_paths(self, order: ProbeOrder) -> None:
        await self.say(PATHS, await self.paths.report(order))

    async def _obey(self, assignment: Assignment) -> None:
        self.assignments.append(assignment)
        self.serving = False
        match assignment.command:
            case Load(work=work) | Extend(work=work) | Hold(work=work):
                await self._load(assignment, work)
            case Join() | GoOn() | Follow():
                await self._serve(assignment)
            case _:
                self._close_links()
                await self._fact(assignment, "stopped")

    async def _serve(self, assignment: Assignment) -> None:
        if self.says_ready:
            if self._links is not None:
                self._links.epoch = assignment.epoch
            await self._fact(assignment, "ready")
            self.serving = True

    async def _creep(self, assignment: Assignment) -> None:
        """Tell of a download that goes on, for an hour or until it is told something else."""
        for step in range(1, int(HOUR_S / CREEP_S)):
            await asyncio.sleep(CREEP_S)
            if self.assignments[-1] is not assignment:
                return
            fraction = min(0.99, 0.01 + step * CREEP_S * self.creeps_per_s)
            await self._fact(assignment, "downloading", fraction=fraction)

    async def _load(self, assignment: Assignment, work: AssignedWork) -> None:
        if not self.loads:
            await self._fact(assignment, "downloading", fraction=0.01)
            if self.creeps_per_s:
                await cancel(self._creeping)
                self._creeping = asyncio.create_task(self._creep(assignment))
            return
        self._close_links()
        is_head = assignment.stage == 0
        ports = self._listen((FROM_TAIL, FROM_COORDINATOR) if is_head else (FROM_STAGE,))
        line = {
            "port": ports[0],
            "coordinator_port": ports[1] if is_head else None,
            "device": "cpu",
            "dtype": work.dtype,
            "kv_tokens_capacity": work.kv_tokens or 4096,
            "weights_bytes": 1,
        }
        await self._fact(assignment, "loaded", line=line | self.line)

    async def _fact(self, assignment: Assignment, kind: Any, **more: Any) -> None:
        await self.say(FACT, StageFact(revision=assignment.revision, kind=kind, **more))

    # -- its links -------------------------------------------------------------------------------

    def _listen(self, senders: Sequence[LinkRole]) -> list[int]:
        """Ports where it takes and acknowledges everything; where it says nothing when it answers
        no links."""
        if not self.answers:
            self._silent_ports = [socket.create_server((LISTEN, 0)) for _ in senders]
            return [port.getsockname()[1] for port in self._silent_ports]
        keys = CurveKeys(self.pair.public_z85, self.pair.secret_z85, self._allowed)
        self._links = ProcessLinks.bind(
            self.name, LISTEN, senders, self._read, lambda error: None, keys
        )
        return [link.port for link in self._links.inbound]

    def _read(self, arrived: ArrivedMessage) -> None:
        """In the links' thread: what every head can read of its users."""
        if self._links is not None:
            self.requests_read += isinstance(self._links.decode(arrived), Submit)

    def _close_links(self) -> None:
        if self._links is not None:
            self._links.close()
            self._links = None
        while self._silent_ports:
            self._silent_ports.pop().close()
