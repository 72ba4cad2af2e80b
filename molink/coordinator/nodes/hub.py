"""The coordinator's end of the control plane: reports go into the node book, commands go out.

Only members of the registry are listened to. A node that was removed there, perhaps by another
process, is forgotten within a second: its broker user, its access to the relay, its part of a ring.
One that says far more than nodes have to say is shut out for a while.

Each thing that may take time has a task of its own: whoever waits for the broker, or for a thousand
answers, holds up neither what others report nor the watch over silence.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from molink.control.broker.broker import Broker
from molink.control.client import ControlClient
from molink.control.inbox import NODE_BUDGET, Inbox
from molink.control.messages.assignment import Assignment
from molink.control.messages.payloads import (
    CoordinatorPresence,
    LinkKeys,
    NodeHealth,
    Presence,
    Profile,
    ShadowOrder,
    StageLink,
)
from molink.control.messages.topics import (
    ASSIGNMENT,
    COORDINATOR,
    LINK_KEYS,
    PRESENCE,
    SHADOW,
    Received,
)
from molink.control.registry.registry import Registry
from molink.control.versions import own_protocols
from molink.coordinator.nodes.access import REPORT_TOPICS, BrokerAccess, Suspensions
from molink.coordinator.nodes.newcomers import Newcomers, NodeServices
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.node_book import NODES_MAX, NodeBook
from molink.errors import ErrorGuard, JoinRefusedError
from molink.tasks import task_group

RECONNECT_S = 15.0
"""Seconds after the broker was away: nodes wait up to ten between two attempts to reach it."""

TICK_S = 0.5
"""Seconds between two checks of silence and of the registry."""

LATE_S = TICK_S + 2.0
"""A check that comes later than this: this PC was suspended or overloaded, and what nodes have
reported meanwhile still waits to be read."""

FLOOD_S = 5.0
"""Seconds after a flood was found in which no silence counts: the broker's rest of it is read."""

GONE_AFTER_S = 1.0
"""Seconds after its last will until a node is gone. One whose connection to the broker was reset
tries again within half a second and is there after a handshake; its ring, whose links stand, need
not end for that. A node that has really gone is missed by its neighbours about as soon."""

SUSPENDED = "It says far more than a node has to say, and is not listened to for {minutes:.0f} min."

log = logging.getLogger(__name__)


async def allow_members(broker: Broker, registry: Registry) -> None:
    """Make every member of a registry a user of a broker; quickest before it starts. One that
    somebody else's broker does not have is told so when it asks again."""
    for member in registry.list_nodes():
        if member.removed is None:
            with suppress(JoinRefusedError):
                await broker.allow(member.node_id, member.password)


@dataclass(slots=True)
class ControlHub:
    """The coordinator's session with its broker. Made by `open`; `run` serves it."""

    client: ControlClient
    access: BrokerAccess
    registry: Registry
    book: NodeBook
    session: str
    services: NodeServices | None = None
    """None: nodes need none and measure nothing."""
    suspensions: Suspensions = field(default_factory=Suspensions)
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("A step of the control plane"))
    """Guard of a step; a broker that refuses us ends `run` all the same."""
    _excused_until: float = 0.0
    _is_dropping: bool = False
    """Whether the registry was changed and is still to be read."""
    _removed: set[str] = field(default_factory=set)
    """Nodes whose removal was carried out."""
    newcomers: Newcomers = field(init=False)
    _keys_sent: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _wills: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    """Last wills of nodes that may be there again in a moment."""

    def __post_init__(self) -> None:
        self.newcomers = Newcomers(self.client, self.book, self.services, self.assign, self.guard)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        broker: Broker,
        registry: Registry,
        book: NodeBook,
        services: NodeServices | None = None,
        suspensions: Suspensions | None = None,
    ) -> AsyncIterator["ControlHub"]:
        """Connected to a broker that runs. Raises ControlError when the broker refuses us."""
        session = secrets.token_hex(8)
        async with ControlClient.open(
            broker.address,
            broker.coordinator.username,
            broker.coordinator.password,
            will=(COORDINATOR, "", CoordinatorPresence(online=False, session=session)),
            subscriptions=[topic.of_all for topic in REPORT_TOPICS],
            inbox=Inbox(NODE_BUDGET),
        ) as client:
            access = BrokerAccess(broker, client)
            yield cls(
                client, access, registry, book, session, services, suspensions or Suspensions()
            )

    async def run(self, model: str) -> None:
        """Run until cancelled. Raises ControlError when the broker refuses us."""
        speaks = own_protocols()
        presence = CoordinatorPresence(
            online=True,
            session=self.session,
            model=model,
            protocol=speaks.newest,
            protocol_min=speaks.oldest,
        )
        await self.client.publish(COORDINATOR, "", presence)
        try:
            async with task_group() as group:
                for work in (
                    self._receive(),
                    self._tick(),
                    self.newcomers.answer(),
                    self._order_probes(),
                ):
                    group.create_task(work)
                group.create_task(self.access.run())
        finally:
            for will in self._wills.values():
                will.cancel()
            gone = presence.model_copy(update={"online": False})
            await asyncio.shield(self.client.publish(COORDINATOR, "", gone))

    async def assign(self, node: Node, assignment: Assignment) -> None:
        """Publish what a node shall do, under the next revision."""
        update = self._next_numbers() | {"session": self.session}
        numbered = assignment.model_copy(update=update)
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

    async def lead_to_shadow(self, node: Node, epoch: int, link: StageLink | None) -> None:
        """Publish where the shadow of a node's next stage is, in the ring of this epoch."""
        order = ShadowOrder(**self._next_numbers(), epoch=epoch, link=link)
        await self.client.publish(SHADOW, node.node_id, order)

    def _next_numbers(self) -> dict[str, int]:
        """An order's own number, and that of the protocol that its ring speaks."""
        return {"revision": self.registry.next_revision(), "protocol": own_protocols().newest}

    @property
    def trouble(self) -> str:
        """Sentence on changes that the broker has not heard of yet; empty when there are none."""
        count = self.access.pending_count
        return f"The broker has not heard yet that {count} nodes are shut out." if count else ""

    # -- what nodes report -----------------------------------------------------------------------

    async def _receive(self) -> None:
        async for received in self.client.messages():
            with self.guard:
                self._take(received)

    def _take(self, received: Received) -> None:
        node_id, message = received.node_id, received.message
        if not self._is_member(node_id) or self._is_stale(received):
            return
        if isinstance(message, Presence) and self._awaits_return(node_id, message):
            return
        self._note(received)

    def _awaits_return(self, node_id: str, presence: Presence) -> bool:
        """Whether a presence is a last will, which waits and gives no reason; any other one voids
        that."""
        if (will := self._wills.pop(node_id, None)) is not None:
            will.cancel()
        if presence.online or presence.reason or not self.book.node(node_id).is_here:
            return False
        received = Received(PRESENCE, node_id, presence)
        loop = asyncio.get_running_loop()
        self._wills[node_id] = loop.call_later(GONE_AFTER_S, self._did_not_return, received)
        return True

    def _did_not_return(self, received: Received) -> None:
        del self._wills[received.node_id]
        with self.guard:
            if received.node_id in self.book.nodes:  # It was not removed meanwhile.
                self._note(received)

    def _note(self, received: Received) -> None:
        node_id, message = received.node_id, received.message
        node = self.book.node(node_id)
        is_news = not (node.is_here and isinstance(message, NodeHealth))
        is_newcomer = (
            isinstance(message, Presence | Profile) and message not in node.latest_identity
        )
        self.book.take(node_id, message, received.arrived_s, live=not received.retained)
        if is_newcomer:
            self.newcomers.add(node_id)
        if is_news or node.is_assigned:
            self.book.wake(node)

    def _is_stale(self, received: Received) -> bool:
        """Whether a last will is stale. A broker that was restarted may still hold those of its
        end: a node that serves and does not come back is noticed by its silence. A local one is
        always there."""
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

    async def _order_probes(self) -> None:
        """Have the nodes measure the paths when it is time."""
        while self.services is not None:
            with self.guard:
                nodes = list(self.book)
                await self.services.probing.order_if_due(self.client, nodes, time.monotonic())
            await asyncio.sleep(TICK_S)

    # -- silence, floods, removals ---------------------------------------------------------------

    async def _tick(self) -> None:
        ticked_at = time.monotonic()
        while True:
            now = time.monotonic()
            if now - ticked_at > LATE_S:
                self.book.excuse_silence(now)  # It was we who did not hear.
            ticked_at = now
            for check in (self._watch_silence, self._suspend_floods, self._drop_removed):
                with self.guard:
                    check(now)
            await asyncio.sleep(TICK_S)

    def _watch_silence(self, now: float) -> None:
        """Judge by when messages came, not by when they are read."""
        if not self.client.connected:
            self._excused_until = now + RECONNECT_S
        if now < self._excused_until:
            self.book.excuse_silence(now)
        for node_id, at_s in self.client.inbox.heard.items():
            self.book.note_heard(node_id, at_s)
        if self.client.connected and not self.book.local:
            for node in self.book.notice_silence(now):
                log.info("%s is lost: no heartbeat for seconds", node.name)
                self.book.wake(node)

    def _suspend_floods(self, now: float) -> None:
        """Shut out who exceeds its budget by far; let in again whose time is over."""
        for node_id in self.client.inbox.take_overdrawn():
            if self._is_member(node_id):
                self._excused_until = max(self._excused_until, now + FLOOD_S)
                self._suspend(self.book.nodes[node_id], now)
        for node_id in self.suspensions.over(now):
            self._let_in_again(node_id)

    def _suspend(self, node: Node, now: float) -> None:
        """Suspend a node. If that is still heard, it has slipped in: the broker is told again."""
        self.access.shut_out(node.node_id)
        if node.node_id in self.suspensions:
            return
        minutes = self.suspensions.suspend(node.node_id, now) / 60
        node.suspended, node.lost = SUSPENDED.format(minutes=minutes), True
        self.client.inbox.mute(node.node_id)
        log.warning("%s is suspended. %s", node.name, node.suspended)
        self.book.wake(node)

    def _let_in_again(self, node_id: str) -> None:
        """Let a suspended node in again. Raises ControlError when the registry cannot be read: then
        it is tried again."""
        member = self.registry.member(node_id)
        if member is not None:
            self.access.let_in(node_id, member.password)
        self.suspensions.end(node_id)
        self.client.inbox.unmute(node_id)
        if node_id in self.book.nodes:
            self.book.node(node_id).suspended = ""

    def _drop_removed(self, now: float) -> None:
        """Forget nodes that were removed from the registry, by us or by another process."""
        self._is_dropping |= self.registry.changed()
        if not self._is_dropping:
            return
        for member in self.registry.list_nodes(forgotten=True):
            if member.removed is None:
                self._removed.discard(member.node_id)  # Forgotten, it may have come back.
                continue
            if member.node_id in self._removed:
                continue
            self._removed.add(member.node_id)
            self.access.shut_out(member.node_id)
            self.suspensions.forget(member.node_id)
            self.client.inbox.forget(member.node_id)
            self.book.drop(member.node_id)
            if self.services is not None:
                self.services.forbid(member.node_id)
        self._is_dropping = False
