"""The coordinator's end of the control plane: reports go into the node book, commands go out.

Only members of the registry are listened to. A node that was removed there, perhaps by another
process, is forgotten within a second: its broker user, its access to the relay, its part of a ring.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from molink.control.broker.broker import Broker
from molink.control.client import ControlClient
from molink.control.messages.payloads import (
    Accepted,
    Assignment,
    CoordinatorPresence,
    LinkKeys,
    NodeHealth,
    Presence,
    Profile,
    Services,
)
from molink.control.messages.topics import (
    ACCEPTED,
    ASSIGNMENT,
    COORDINATOR,
    FACT,
    HEALTH,
    LINK_KEYS,
    PATHS,
    PRESENCE,
    PROFILE,
    SEEN,
    SERVICES,
    WISH,
    Received,
)
from molink.control.registry.registry import Registry
from molink.coordinator.members.node_book import NODES_MAX, Node, NodeBook
from molink.coordinator.members.probing import Probing
from molink.errors import ControlError, ErrorGuard
from molink.tasks import task_group

__all__ = ["REPORT_TOPICS", "ControlHub", "NodeServices", "allow_members"]

REPORT_TOPICS = (PRESENCE, PROFILE, PATHS, SEEN, FACT, WISH, HEALTH)
"""All that a node reports. Presence first: what is retained of the others belongs to it."""

RECONNECT_S = 15.0
"""After the broker was away: nodes wait up to ten seconds between two attempts to reach it."""

TICK_S = 0.5
"""Between two checks of silence and of the registry."""

LATE_S = TICK_S + 2.0
"""A check that comes later than this: this PC was suspended or overloaded, and what nodes have
reported meanwhile still waits to be read."""

log = logging.getLogger(__name__)


async def allow_members(broker: Broker, registry: Registry) -> None:
    """Make every member of a registry a user of a broker; quickest before it starts."""
    for member in registry.list_nodes():
        if member.removed is None:
            await broker.allow(member.node_id, member.password)


class NodeServices(Protocol):
    """Services of a coordinator for its nodes, beside the broker."""

    @property
    def probing(self) -> Probing:
        """Orders nodes to measure each other."""

    def of_node(self, node_id: str) -> Services:
        """What a node is sent of it: addresses and its own keys."""

    def forbid(self, node_id: str) -> None:
        """End the access of a node that was removed."""


@dataclass(slots=True)
class ControlHub:
    """The coordinator's session with its broker. Made by `open`; `run` serves it."""

    client: ControlClient
    broker: Broker
    registry: Registry
    book: NodeBook
    session: str
    services: NodeServices | None = None
    """None: nodes need none and measure nothing."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("A step of the control plane"))
    """A broker that refuses us ends `run` all the same."""
    _excused_until: float = 0.0
    _is_dropping: bool = False
    """Whether the registry was changed and is still to be read."""
    _forbidden: set[str] = field(default_factory=set)
    _keys_sent: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        broker: Broker,
        registry: Registry,
        book: NodeBook,
        services: NodeServices | None = None,
    ) -> AsyncIterator["ControlHub"]:
        """Connected to a broker that runs. Raises ControlError when the broker refuses us."""
        session = secrets.token_hex(8)
        async with ControlClient.open(
            broker.address,
            broker.coordinator.username,
            broker.coordinator.password,
            will=(COORDINATOR, "", CoordinatorPresence(online=False, session=session)),
            subscriptions=[topic.of_all for topic in REPORT_TOPICS],
        ) as client:
            yield cls(client, broker, registry, book, session, services)

    async def run(self, model: str) -> None:
        """Until cancelled. Raises ControlError when the broker refuses us."""
        presence = CoordinatorPresence(online=True, session=self.session, model=model)
        await self.client.publish(COORDINATOR, "", presence)
        try:
            async with task_group() as group:
                group.create_task(self._receive())
                group.create_task(self._tick())
        finally:
            gone = presence.model_copy(update={"online": False})
            await asyncio.shield(self.client.publish(COORDINATOR, "", gone))

    async def assign(self, node: Node, assignment: Assignment) -> None:
        """Publish what a node shall do, under the next revision."""
        numbered = assignment.model_copy(update={"revision": self.registry.next_revision()})
        node.assignment = numbered
        await self.client.publish(ASSIGNMENT, node.node_id, numbered)

    async def allow_links(self, node: Node, keys: tuple[str, ...]) -> None:
        """Publish whose links a node accepts from now on, unless it knows. The links of local
        nodes are not encrypted and know no keys."""
        if node.is_local or self._keys_sent.get(node.node_id) == keys:
            return
        message = LinkKeys(revision=self.registry.next_revision(), allowed=keys)
        self._keys_sent[node.node_id] = keys
        await self.client.publish(LINK_KEYS, node.node_id, message)

    async def _receive(self) -> None:
        async for received in self.client.messages():
            with self.guard:
                await self._take(received)

    async def _take(self, received: Received) -> None:
        if not self._is_member(received.node_id) or self._is_stale(received):
            return
        node = self.book.node(received.node_id)
        is_news = not (node.is_here and isinstance(received.message, NodeHealth))
        live = not received.retained
        self.book.take(received.node_id, received.message, time.monotonic(), live=live)
        if isinstance(received.message, Presence):
            await self._greet(received)
        if isinstance(received.message, Profile) and self.services is not None:
            await self.services.probing.order_timing(self.client, [node])
        if is_news or node.is_assigned:
            self.book.wake(node)

    def _is_stale(self, received: Received) -> bool:
        """A broker that was restarted may still hold the last wills of its end: a node that serves
        and does not come back is noticed by its silence. A local one is there as long as we are."""
        message, node = received.message, self.book.node(received.node_id)
        return (
            (received.retained or node.is_local)
            and isinstance(message, Presence)
            and not message.online
            and node.is_here
        )

    def _is_member(self, node_id: str) -> bool:
        if node_id in self.book.nodes:
            return True
        member = self.registry.member(node_id)
        if member is None or len(self.book.nodes) >= NODES_MAX:
            return False
        node = self.book.node(node_id)
        node.public_key, node.pc = member.public_key, member.pc
        return True

    async def _greet(self, received: Received) -> None:
        """Of two agents with one key the one that started later is accepted."""
        presence = received.message
        assert isinstance(presence, Presence)
        if presence.online:
            accepted = Accepted(
                incarnation=presence.incarnation, started_unix_s=presence.started_unix_s
            )
            services = self.services.of_node(received.node_id) if self.services else Services()
            await asyncio.gather(
                self.client.publish(ACCEPTED, received.node_id, accepted),
                self.client.publish(SERVICES, received.node_id, services),
            )

    # -- silence, removals, probes ---------------------------------------------------------------

    async def _tick(self) -> None:
        ticked_at = time.monotonic()
        while True:
            now = time.monotonic()
            if now - ticked_at > LATE_S:
                self.book.excuse_silence(now)  # It was we who did not hear.
            ticked_at = now
            with self.guard:
                await self._check(now)
            await asyncio.sleep(TICK_S)

    async def _check(self, now: float) -> None:
        """Find who is silent and who was removed, and measure the paths if it is time."""
        self._watch_connection(now)
        if self.client.connected and not self.book.local:
            for node in self.book.notice_silence(now):
                log.info("%s is lost: no heartbeat for seconds", node.name)
                self.book.wake(node)
        self._is_dropping |= self.registry.changed_elsewhere()
        if self._is_dropping:
            await self._drop_removed()
            self._is_dropping = False
        if self.services is not None:
            await self.services.probing.order_if_due(self.client, list(self.book), now)

    def _watch_connection(self, now: float) -> None:
        if not self.client.connected:
            self._excused_until = now + RECONNECT_S
        if now < self._excused_until:
            self.book.excuse_silence(now)

    async def _drop_removed(self) -> None:
        for member in self.registry.list_nodes():
            if member.removed is None or member.node_id in self._forbidden:
                continue
            self._forbidden.add(member.node_id)
            self.book.drop(member.node_id)
            if self.services is not None:
                self.services.forbid(member.node_id)
            try:
                await self.broker.forbid(member.node_id)
            except ControlError as error:
                log.warning("%s is removed, but the broker does not know: %s", member.name, error)
