"""Whom the broker lets in: a removed node no more, one that says far too much not for a while.

A node that exceeds its budget is shut out at the broker, since reading on only to drop what it says
would cost everybody: first for a minute, each time twice as long. An hour without it and all is
forgiven; an honest agent that had a bad day is back by itself.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from molink.control.backoff import Backoff
from molink.control.broker.broker import Broker
from molink.control.client import ControlClient
from molink.control.messages.topics import (
    FACT,
    HEALTH,
    PATHS,
    PRESENCE,
    PROFILE,
    SEEN,
    WISH,
    Topic,
)
from molink.errors import ErrorGuard
from molink.tasks import gathered

REPORT_TOPICS: tuple[Topic[Any], ...] = (PRESENCE, PROFILE, PATHS, SEEN, FACT, WISH, HEALTH)
"""All that a node reports. Presence first: what is retained of the others belongs to it."""

FIRST_S, LONGEST_S = 60.0, 3600.0
"""Seconds of a suspension: the first, and the longest; each is twice as long as the last."""

FORGIVEN_S = 3600.0
"""Seconds after the end of the last suspension: the next begins with the shortest again."""

RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 30.0
"""Seconds between two attempts to tell the broker: it may be away, or its users unreadable."""


@dataclass(slots=True)
class Suspensions:
    """Nodes that are suspended because they said far too much, and until when.

    Times are seconds on a clock that never jumps.
    """

    _until: dict[str, float] = field(default_factory=dict)
    """Ends of the present suspensions, by node."""
    _before: dict[str, tuple[int, float]] = field(default_factory=dict)
    """How often each was, and when the last one ended or ends."""

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._until

    def suspend(self, node_id: str, now: float) -> float:
        """Suspend a node; for how many seconds."""
        count, ended_at = self._before.get(node_id, (0, now))
        if now - ended_at > FORGIVEN_S:
            count = 0
        length_s = min(LONGEST_S, FIRST_S * 2.0 ** min(count, 30))
        self._until[node_id] = now + length_s
        self._before[node_id] = count + 1, now + length_s
        return length_s

    def over(self, now: float) -> list[str]:
        """Nodes whose suspension is over and which `end` was not called for."""
        return [node_id for node_id, until in self._until.items() if until <= now]

    def end(self, node_id: str) -> None:
        """End the suspension of a node; how often it was is remembered."""
        self._until.pop(node_id, None)

    def forget(self, node_id: str) -> None:
        """A node that was removed."""
        self._until.pop(node_id, None)
        self._before.pop(node_id, None)


@dataclass(slots=True)
class BrokerAccess:
    """Keeper of the broker's users: tells it which nodes are shut out or let in, until it hears."""

    broker: Broker
    client: ControlClient
    """The coordinator's own, which removes what the broker has kept of a node."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Telling the broker its users"))
    _pending: dict[str, str | None] = field(default_factory=dict)
    """Node to its password; None: it is shut out."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pending_count(self) -> int:
        """Nodes of which the broker has not heard yet."""
        return len(self._pending)

    def shut_out(self, node_id: str) -> None:
        """Have the broker refuse a node, end its connection and keep nothing of what it said."""
        self._pending[node_id] = None
        self._changed.set()

    def let_in(self, node_id: str, password: str) -> None:
        """Have the broker let a node in again."""
        self._pending[node_id] = password
        self._changed.set()

    async def run(self) -> None:
        """Tell the broker, again and again until it hears, until cancelled."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, Random())
        while True:
            await self._changed.wait()
            self._changed.clear()
            backoff.reset()
            while self._pending:
                with self.guard:
                    await gathered(self._update_broker(*one) for one in list(self._pending.items()))
                    break
                await asyncio.sleep(backoff.next_s())

    async def _update_broker(self, node_id: str, password: str | None) -> None:
        if password is None:
            await self.broker.forbid(node_id)
            kept = (topic for topic in REPORT_TOPICS if topic.retained)
            await gathered(self.client.clear(topic, node_id) for topic in kept)
        else:
            await self.broker.allow(node_id, password)
        if node_id in self._pending and self._pending[node_id] == password:
            del self._pending[node_id]
