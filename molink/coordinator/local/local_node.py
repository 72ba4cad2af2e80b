"""A node within the process of `molink serve`: takes assignments, hosts one stage, reports.

The part of an agent that is left when no owner has to be asked: no probe, no relay, and the weights
lie where the operator says. Its reports and commands are the same, through the same broker.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from molink.control.addresses import BrokerAddress, Credentials
from molink.control.client import ControlClient
from molink.control.messages.payloads import AssignedWork, Assignment, NodeState, Profile
from molink.control.messages.topics import ASSIGNMENT, HEALTH, PROFILE
from molink.coordinator.local.direct_routes import DirectRoutes
from molink.coordinator.local.fixed_plan import RingPlan, stage_name
from molink.node.control_session import ControlSession
from molink.node.stage_handle import StageHandle
from molink.node.stage_manager import StageManager
from molink.tasks import task_group

__all__ = ["LocalNode"]

HEARTBEAT_S = 1.0
"""Its health is said at least so often; sooner whenever its stage reports."""


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Starter of one stage of a fixed plan; its weights are on the disk."""

    plan: RingPlan
    index: int

    async def prepare(self, work: AssignedWork, report: Callable[[float], None]) -> str:
        return self.plan.path

    async def start(
        self, work: AssignedWork, directory: str, allowed: tuple[str, ...]
    ) -> StageHandle:
        load, command = self.plan.load(self.index, work), self.plan.hosts.stages[self.index].command
        return await StageHandle.start(stage_name(self.index), load, command)


@dataclass(slots=True)
class LocalNode:
    """Node of this process, with one stage. Made by `of`."""

    identity: Credentials
    profile: Profile
    session: ControlSession
    stage: StageManager

    @classmethod
    def of(cls, plan: RingPlan, index: int, identity: Credentials) -> "LocalNode":
        """The node of a stage; `identity` is its user of the broker, named after its id."""
        session = ControlSession(identity.username, stage_name(index))
        routes = DirectRoutes.of(plan, index)
        stage = StageManager(
            _Launcher(plan, index), routes, session.publish_fact, operators_own=True
        )
        return cls(identity, plan.profile(index), session, stage)

    @property
    def node_id(self) -> str:
        """Its own."""
        return self.session.node_id

    @property
    def pid(self) -> int | None:
        """Of its stage's process, or of the command that reaches it."""
        return self.stage.handle.pid if self.stage.handle is not None else None

    @property
    def state(self) -> NodeState:
        """As GET /cluster names it."""
        return NodeState(self.stage.state)

    async def run(self, broker: BrokerAddress) -> None:
        """Until cancelled; then its stage ends. Raises ControlError when the broker refuses it."""
        try:
            async with self.session.open(broker, self.identity, (ASSIGNMENT,)) as client:
                await self.session.publish(PROFILE, self.profile)
                await self._take_part(client)
        finally:
            await self.stage.stop()

    async def _take_part(self, client: ControlClient) -> None:
        async with task_group() as group:
            group.create_task(self._receive(client))
            group.create_task(self._send_heartbeats())

    async def _receive(self, client: ControlClient) -> None:
        async for received in client.messages():
            if isinstance(received.message, Assignment):
                await self.stage.assign(received.message)

    async def _send_heartbeats(self) -> None:
        while True:
            self.stage.health_changed.clear()
            await self.session.publish(HEALTH, self.session.health(self.stage, self.state))
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self.stage.health_changed.wait()
