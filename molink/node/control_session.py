"""A node's session with the coordinator: presence, facts and health.

The same for a volunteer's agent and for a local node of `molink serve`: presence is retained and
has a last will, facts and health follow from what the stage manager holds.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel

from molink.control.addresses import BrokerAddress, Credentials
from molink.control.client import ControlClient
from molink.control.messages.cell import CellFacts
from molink.control.messages.payloads import NodeHealth, NodeState, Presence, StageFact
from molink.control.messages.topics import FACT, HEALTH, PRESENCE, Topic
from molink.control.versions import own_protocols
from molink.node.stage_manager import StageManager
from molink.version import version

HEARTBEAT_S, HEARTBEAT_PAUSE_S = 1.0, 0.15
"""Between two heartbeats at most, four of which the coordinator lets pass before it calls a node
lost, and at least: a stage may report twenty times a second."""

Message = TypeVar("Message", bound=BaseModel)


@dataclass(slots=True)
class ControlSession:
    """Session of one node with the coordinator, from its start to its end."""

    node_id: str
    name: str
    """For people."""
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    started_at: float = field(default_factory=time.monotonic)
    started_unix_s: float = 0.0
    """On the coordinator's clock."""
    client: ControlClient | None = None
    """While it is a member."""
    fact: StageFact | None = None
    """How far the stage was when that was published last."""

    @property
    def connected(self) -> bool:
        """Whether the broker is connected now."""
        return self.client is not None and self.client.connected

    @asynccontextmanager
    async def open(
        self, broker: BrokerAddress, identity: Credentials, topics: Sequence[Topic[Any]]
    ) -> AsyncIterator[ControlClient]:
        """Be a member, as `identity`, subscribed to `topics`. Raises ControlError when the broker
        refuses it."""
        async with ControlClient.open(
            broker,
            identity.username,
            identity.password,
            client_id=self.node_id,
            will=(PRESENCE, self.node_id, self.presence(online=False)),
            subscriptions=[topic.of(self.node_id) for topic in topics],
        ) as client:
            self.client = client
            try:
                await client.publish(PRESENCE, self.node_id, self.presence(online=True))
                yield client
            finally:
                self.client = None
                farewell = self.presence(online=False, reason="The agent was stopped.")
                await asyncio.shield(client.publish(PRESENCE, self.node_id, farewell))

    async def publish(self, topic: Topic[Message], message: Message) -> None:
        """Publish a message of this node, if it is a member now."""
        if self.client is not None:
            await self.client.publish(topic, self.node_id, message)

    async def publish_fact(self, fact: StageFact) -> None:
        """Publish how far the stage is."""
        self.fact = fact
        await self.publish(FACT, fact)

    async def send_heartbeats(
        self,
        manager: StageManager,
        state: Callable[[], NodeState],
        cell: Callable[[], CellFacts | None] = lambda: None,
    ) -> NoReturn:
        """Report this node's health once a second, and soon after its stage has reported. `cell`:
        what its PC lends to its LAN."""
        while True:
            manager.health_changed.clear()
            health = self.health(manager, state()).model_copy(update={"cell": cell()})
            await self.publish(HEALTH, health)
            await asyncio.sleep(HEARTBEAT_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S - HEARTBEAT_PAUSE_S):
                    await manager.health_changed.wait()

    def health(self, manager: StageManager, state: NodeState) -> NodeHealth:
        """The heartbeat of this node, with its stage's latest report."""
        return NodeHealth(
            incarnation=self.incarnation,
            state=state,
            uptime_s=time.monotonic() - self.started_at,
            stage=manager.health,
            paths=manager.routes.paths,
        )

    def presence(self, *, online: bool, reason: str = "") -> Presence:
        """The node's presence: who it is, and whether it is there."""
        return Presence(
            name=self.name,
            incarnation=self.incarnation,
            started_unix_s=self.started_unix_s,
            version=version(),
            protocol=own_protocols().newest,
            online=online,
            reason=reason,
        )
