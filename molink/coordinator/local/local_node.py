"""A node within the process of `molink serve`: hears assignments, hosts one stage, says how it is.

The part of an agent that is left when nobody has to be asked: no owner, no probe, no relay, and the
weights lie where the operator says. What it tells and obeys is the same, through the same broker.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from molink.control.addresses import BrokerAddress, Credentials
from molink.control.client import ControlClient
from molink.control.messages.payloads import Assignment, NodeState, Profile, StageWork
from molink.control.messages.topics import ASSIGNMENT, HEALTH, PROFILE
from molink.coordinator.local.direct_routes import DirectRoutes
from molink.coordinator.local.fixed_plan import RingPlan, stage_name
from molink.node.control_session import ControlSession
from molink.node.stage_handle import StageHandle
from molink.node.stage_manager import StageManager
from molink.tasks import task_group

__all__ = ["LocalNode"]

BEAT_S = 1.0
"""Its health is said at least so often; sooner whenever its stage reports."""


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Starts the stage at one place of a fixed plan; its weights are on the disk."""

    plan: RingPlan
    place: int

    async def prepare(self, work: StageWork, report: Callable[[float], None]) -> str:
        return self.plan.path

    async def start(self, work: StageWork, directory: str, allowed: tuple[str, ...]) -> StageHandle:
        command = self.plan.hosts.stages[self.place].command
        return await StageHandle.start(stage_name(self.place), self.plan.load(self.place), command)


@dataclass(slots=True)
class LocalNode:
    """One node with one stage. Made by `of`."""

    identity: Credentials
    profile: Profile
    voice: ControlSession
    host: StageManager
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.host.reported = self._news.set

    @classmethod
    def of(cls, plan: RingPlan, place: int, identity: Credentials) -> "LocalNode":
        """The node of a stage; `identity` is its user of the broker, named after its id."""
        voice = ControlSession(identity.username, stage_name(place))
        routes = DirectRoutes.of(plan, place)
        host = StageManager(_Launcher(plan, place), routes, voice.say_fact, operators_own=True)
        return cls(identity, plan.profile(place), voice, host)

    @property
    def node_id(self) -> str:
        """Its own."""
        return self.voice.node_id

    @property
    def pid(self) -> int | None:
        """Of its stage's process, or of the command that reaches it."""
        return self.host.handle.pid if self.host.handle is not None else None

    @property
    def state(self) -> NodeState:
        """As GET /cluster names it."""
        return NodeState(self.host.state)

    async def run(self, broker: BrokerAddress) -> None:
        """Until cancelled; then its stage ends. Raises ControlError when the broker refuses it."""
        try:
            async with self.voice.speaking(broker, self.identity, (ASSIGNMENT,)) as client:
                await self.voice.say(PROFILE, self.profile)
                await self._live(client)
        finally:
            await self.host.stop()

    async def _live(self, client: ControlClient) -> None:
        async with task_group() as group:
            group.create_task(self._hear(client))
            group.create_task(self._beat())

    async def _hear(self, client: ControlClient) -> None:
        async for received in client.messages():
            if isinstance(received.message, Assignment):
                await self.host.take(received.message)

    async def _beat(self) -> None:
        while True:
            self._news.clear()
            await self.voice.say(HEALTH, self.voice.health(self.host, self.state))
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._news.wait()
