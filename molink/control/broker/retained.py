"""The last message of each retained topic, for who subscribes later. Pure.

Kept in one shelf for each beginning of a topic, `molink/v1/node/ID`: a node that joins asks for
what was told to it, and should not be looked up among the messages of all others.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from molink.control.broker.topic_tree import matches

__all__ = ["Retained", "RetainedMessages"]

_SHELF_LEVELS = 4


@dataclass(frozen=True, slots=True)
class Retained:
    """One message."""

    topic: str
    data: bytes
    qos: int
    writer: str


class RetainedMessages:
    """By topic."""

    def __init__(self) -> None:
        self._shelves: dict[str, dict[str, Retained]] = {}
        self._counts: dict[str, int] = {}
        """Of each writer."""

    def put(self, message: Retained, limit: int | None) -> bool:
        """Keep it instead of what was there; without data, keep nothing.

        False, and nothing is kept, when its writer has `limit` topics already.
        """
        self._remove(message.topic)
        if not message.data:
            return True
        count = self._counts.get(message.writer, 0)
        if limit is not None and count >= limit:
            return False
        self._counts[message.writer] = count + 1
        self._shelves.setdefault(_shelf(message.topic), {})[message.topic] = message
        return True

    def matching(self, topic_filter: str) -> Iterator[Retained]:
        """Those under that filter."""
        beginning = _shelf(topic_filter)
        anywhere = "+" in beginning or "#" in beginning
        shelves = self._shelves.values() if anywhere else [self._shelves.get(beginning, {})]
        for shelf in shelves:
            for message in shelf.values():
                if matches(topic_filter, message.topic):
                    yield message

    def _remove(self, topic: str) -> None:
        shelf = self._shelves.get(_shelf(topic), {})
        former = shelf.pop(topic, None)
        if former is None:
            return
        self._counts[former.writer] -= 1
        if not shelf:
            del self._shelves[_shelf(topic)]


def _shelf(topic: str) -> str:
    return "/".join(topic.split("/")[:_SHELF_LEVELS])
