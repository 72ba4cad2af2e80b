"""Routing of messages to connected clients, and what is kept for later subscribers. Pure.

The permissions already tell who can want a topic: of a thousand nodes one, and the coordinator. So
a message is compared with the filters of those two, and no index of all filters is needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from molink.control.broker.packets import FILTERS_MAX, REFUSED, Message
from molink.control.broker.permissions import (
    is_filter,
    may_read,
    may_write,
    readers,
)

_PREFIX_LEVELS = 4
"""`molink/v1/node/ID`."""


class Client(Protocol):
    """Connection of a client, to which messages are sent."""

    def send(self, message: Message) -> None:
        """Send a message to the client."""

    def end(self, *, with_will: bool = True) -> None:
        """End the connection, by default with the last will."""


@dataclass(slots=True)
class _Subscriber:
    client: Client
    filters: dict[str, int] = field(default_factory=dict)
    """Topic filter to the QoS granted."""

    def qos(self, topic: str) -> int | None:
        """The highest QoS among the filters that match; None when none does."""
        return max((qos for one, qos in self.filters.items() if matches(one, topic)), default=None)


class Router:
    """Connected clients by name, their subscriptions, and the retained messages."""

    def __init__(self) -> None:
        self._subscribers: dict[str, _Subscriber] = {}
        self._retained = RetainedStore()

    def add_client(self, name: str, client: Client) -> None:
        """Connect a client; an earlier connection of the same name ends."""
        if (former := self._subscribers.get(name)) is not None:
            former.client.end()
        self._subscribers[name] = _Subscriber(client)

    def remove_client(self, name: str) -> None:
        """Forget a client and its subscriptions."""
        del self._subscribers[name]

    def end_client(self, name: str) -> None:
        """End the connection of a client, if there is one, without its last will."""
        if (found := self._subscribers.get(name)) is not None:
            found.client.end(with_will=False)

    def publish(self, name: str, message: Message) -> None:
        """Send a message of client `name` to all who subscribed to its topic.

        One that it may not write is dropped in silence, as Mosquitto does.
        """
        if not may_write(name, message.topic):
            return
        for reader in readers(message.topic, self._subscribers):
            subscriber = self._subscribers.get(reader)
            if subscriber and (qos := subscriber.qos(message.topic)) is not None:
                subscriber.client.send(replace(message, qos=min(message.qos, qos), retain=False))
        if message.retain:
            self._retained.put(message)

    def subscribe(self, name: str, topic_filter: str, qos: int) -> int:
        """Add a subscription; the QoS granted, or REFUSED."""
        filters = self._subscribers[name].filters
        full = topic_filter not in filters and len(filters) >= FILTERS_MAX
        if full or not is_filter(topic_filter) or not may_read(name, topic_filter):
            return REFUSED
        filters[topic_filter] = min(qos, 1)
        return filters[topic_filter]

    def unsubscribe(self, name: str, topic_filter: str) -> None:
        """Remove a subscription, if it exists."""
        self._subscribers[name].filters.pop(topic_filter, None)

    def retained(self, topic_filter: str) -> Iterator[Message]:
        """The retained messages under a filter that was just granted."""
        return self._retained.matching(topic_filter)


class RetainedStore:
    """Store of the last message of each retained topic: of a node as many as it may write.

    Grouped by the beginning of the topic, `molink/v1/node/ID`: a node that joins asks for what is
    retained for it, and that should not be looked up among the messages of all others.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Message]] = {}
        """Beginning, then topic, to its message."""

    def put(self, message: Message) -> None:
        """Keep a message instead of what was there; without payload, keep nothing."""
        group = self._groups.setdefault(_prefix(message.topic), {})
        group.pop(message.topic, None)
        if message.payload:
            group[message.topic] = message
        if not group:
            del self._groups[_prefix(message.topic)]

    def matching(self, topic_filter: str) -> Iterator[Message]:
        """The retained messages under a filter."""
        prefix = _prefix(topic_filter)
        anywhere = "+" in prefix or "#" in prefix
        groups = self._groups.values() if anywhere else [self._groups.get(prefix, {})]
        for group in groups:
            yield from (one for one in group.values() if matches(topic_filter, one.topic))


def _prefix(topic: str) -> str:
    return "/".join(topic.split("/")[:_PREFIX_LEVELS])


def matches(topic_filter: str, topic: str) -> bool:
    """Whether one filter matches one topic."""
    wanted, given = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(
        level in ("+", name) for level, name in zip(wanted, given, strict=True)
    )
