"""The coordinator's end of the control plane: what nodes say goes into the book, orders go out.

Only members of the registry are heard. Whoever was removed there, perhaps by another process, is
forgotten within a second: its broker user, its way through the relay, its place in a ring.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

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
from molink.control.messages.received import Received
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
)
from molink.control.registry.registry import Registry
from molink.coordinator.members.node_book import NODES_MAX, Node, NodeBook
from molink.coordinator.members.probing import Probing
from molink.errors import ControlError, ErrorGuard

__all__ = ["SAID_TOPICS", "ControlHub"]

SAID_TOPICS = (PRESENCE, PROFILE, PATHS, SEEN, FACT, WISH, HEALTH)
"""All that a node says. Presence first: what is retained of the others belongs to it."""

RECONNECT_S = 15.0
"""After the broker was away: nodes wait up to ten seconds between two attempts to reach it."""

TICK_S = 0.5
"""Between two looks at silence and at the registry."""

LATE_S = TICK_S + 2.0
"""A look that comes later than this: this PC was suspended or overloaded, and what nodes have said
meanwhile still waits to be read."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ControlHub:
    """Made by `open`; `run` serves it."""

    client: ControlClient
    broker: Broker
    registry: Registry
    book: NodeBook
    session: str
    services_of: Callable[[str], Services] = field(default=lambda node_id: Services())
    """What a node is told of relay and measurements."""
    probing: Probing | None = None
    """None: nodes measure nothing."""
    lasting: bool = False
    """Whether nodes live as long as we do: then neither silence nor a last will is a loss."""
    noticed: Callable[[str], None] = field(default=lambda node_id: None)
    """A node has said something, has gone or was removed."""
    removed: Callable[[str], None] = field(default=lambda node_id: None)
    """Beside: its way through the relay ends."""
    strangers_count: int = 0
    """Messages of nodes that the registry does not know."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("A step of the control plane"))
    """A broker that refuses us ends `run` all the same."""
    _excused_until: float = 0.0
    _is_dropping: bool = False
    """Whether the registry was changed and is still to be read."""
    _forbidden: set[str] = field(default_factory=set)
    _told_keys: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, broker: Broker, registry: Registry, book: NodeBook, *, lasting: bool = False
    ) -> AsyncIterator["ControlHub"]:
        """Connected to a broker that runs; the caller adds what its nodes are to be told. Raises
        ControlError when the broker refuses us."""
        session = secrets.token_hex(8)
        async with ControlClient.open(
            broker.address,
            broker.coordinator.username,
            broker.coordinator.password,
            will=(COORDINATOR, "", CoordinatorPresence(online=False, session=session)),
            subscriptions=[topic.of_all for topic in SAID_TOPICS],
        ) as client:
            yield cls(client, broker, registry, book, session, lasting=lasting)

    async def run(self, model: str) -> None:
        """Until cancelled. Raises ControlError when the broker refuses us."""
        presence = CoordinatorPresence(online=True, session=self.session, model=model)
        await self.client.publish(COORDINATOR, "", presence)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hear())
                group.create_task(self._tick())
        finally:
            gone = presence.model_copy(update={"online": False})
            await asyncio.shield(self.client.publish(COORDINATOR, "", gone))

    async def tell(self, node: Node, assignment: Assignment) -> None:
        """Publish an assignment, the keys of those who will connect first."""
        await self.client.publish(ASSIGNMENT, node.node_id, assignment)

    async def allow_links(self, node: Node, keys: tuple[str, ...]) -> None:
        """Tell a node whose links it accepts from now on, unless it knows."""
        if self._told_keys.get(node.node_id) == keys:
            return
        message = LinkKeys(revision=self.registry.next_revision(), allowed=keys)
        self._told_keys[node.node_id] = keys
        await self.client.publish(LINK_KEYS, node.node_id, message)

    async def _hear(self) -> None:
        async for received in self.client.messages():
            with self.guard:
                await self._take(received)

    async def _take(self, received: Received) -> None:
        if not self._is_member(received.node_id):
            self.strangers_count += 1
            return
        if self._is_stale(received):
            return
        node = self.book.node(received.node_id)
        is_news = not (node.is_here and isinstance(received.message, NodeHealth))
        live = not received.retained
        self.book.take(received.node_id, received.message, time.monotonic(), live=live)
        if isinstance(received.message, Presence):
            await self._greet(received)
        if isinstance(received.message, Profile) and self.probing is not None:
            await self.probing.order_timing(self.client, [node])
        if is_news or node.is_assigned:
            self.noticed(received.node_id)

    def _is_stale(self, received: Received) -> bool:
        """A broker that was restarted may still hold the wills of its end: whoever serves and does
        not come back is noticed by its silence."""
        message = received.message
        return (
            (received.retained or self.lasting)
            and isinstance(message, Presence)
            and not message.online
            and received.node_id in self.book.nodes
            and self.book.nodes[received.node_id].is_here
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
            services = self.services_of(received.node_id)
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
                await self._look(now)
            await asyncio.sleep(TICK_S)

    async def _look(self, now: float) -> None:
        """Who is silent, who was removed, and whether it is time to measure the ways."""
        self._watch_connection(now)
        if self.client.connected and not self.lasting:
            for node in self.book.notice_silence(now):
                log.info("%s is lost: no word for seconds", node.name)
                self.noticed(node.node_id)
        self._is_dropping |= self.registry.changed_elsewhere()
        if self._is_dropping:
            await self._drop_removed()
            self._is_dropping = False
        if self.probing is not None:
            await self.probing.look(self.client, list(self.book), now)

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
            self.noticed(member.node_id)
            self.removed(member.node_id)
            try:
                await self.broker.forbid(member.node_id)
            except ControlError as error:
                log.warning("%s is removed, but the broker did not hear: %s", member.name, error)
