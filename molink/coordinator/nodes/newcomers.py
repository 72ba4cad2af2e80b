"""Nodes that have come, or have come back: each is accepted, sent its services and measured once.

An answer waits for the broker's acknowledgement, so newcomers wait in a line of their own, and many
are answered at a time: after a restart of the coordinator all of a thousand nodes are new.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from molink.control.client import ControlClient
from molink.control.messages.assignment import Assignment, Stop
from molink.control.messages.payloads import Accepted, Presence, Services
from molink.control.messages.topics import ACCEPTED, SERVICES
from molink.control.versions import own_protocols
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.nodes.probing import Probing
from molink.errors import ErrorGuard
from molink.tasks import gathered

ANSWERS_AT_ONCE = 50
"""Answers to newcomers at a time: each waits for the broker's acknowledgement."""

UP_TO_DATE = "No ring needs it yet."
"""Message to a node that was outdated before."""


class NodeServices(Protocol):
    """Services of a coordinator for its nodes, beside the broker."""

    @property
    def probing(self) -> Probing:
        """Orders nodes to measure each other."""

    def of_node(self, node_id: str) -> Services:
        """Addresses and own keys that a node is sent."""

    def forbid(self, node_id: str) -> None:
        """End the access of a node that was removed."""


@dataclass(slots=True)
class Newcomers:
    """Line of nodes that wait for an answer to their presence or profile."""

    client: ControlClient
    book: NodeBook
    services: NodeServices | None
    """None: nodes need none and measure nothing."""
    assign: Callable[[Node, Assignment], Awaitable[None]]
    guard: ErrorGuard
    _waiting: dict[str, None] = field(default_factory=dict)
    _has_any: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while somebody waits."""
    _greeted: dict[str, Presence] = field(default_factory=dict)
    """Presence of each node that was answered."""

    def add(self, node_id: str) -> None:
        """Have a node answered soon; once, however often it is added before."""
        self._waiting[node_id] = None
        self._has_any.set()

    async def answer(self) -> None:
        """Greet newcomers and have them time a layer. What repeats itself is answered once."""
        while True:
            await self._has_any.wait()
            some = list(self._waiting)[:ANSWERS_AT_ONCE]
            for node_id in some:
                del self._waiting[node_id]
            if not self._waiting:
                self._has_any.clear()
            nodes = [self.book.nodes[one] for one in some if one in self.book.nodes]
            await gathered(self._answer_one(node) for node in nodes)

    async def _answer_one(self, node: Node) -> None:
        with self.guard:
            await self._greet(node)
            if node.may_measure and self.services is not None:
                await self.services.probing.order_timing(self.client, [node])

    async def _greet(self, node: Node) -> None:
        """Accept a node that has come: of two agents with one key the one that started later."""
        presence, before = node.presence, self._greeted.get(node.node_id)
        if presence is not None and presence.online and presence != before:
            accepted = Accepted(
                incarnation=presence.incarnation, started_unix_s=presence.started_unix_s
            )
            services = self.services.of_node(node.node_id) if self.services else Services()
            await self.client.publish(ACCEPTED, node.node_id, accepted)
            await self.client.publish(SERVICES, node.node_id, services)
            self._greeted[node.node_id] = presence
            # As the reason to do nothing: builds that know of no such state show their owner that.
            was_outdated = before is not None and own_protocols().trouble(before.protocol)
            if node.outdated or (was_outdated and not node.is_assigned):
                why = node.outdated or UP_TO_DATE
                await self.assign(node, Assignment(revision=0, command=Stop(), reason=why))
