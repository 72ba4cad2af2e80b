"""Which subscribers want a topic. Pure.

A tree of levels rather than a list of filters: with a thousand nodes there are thousands of
filters, and each of a thousand health messages per second would be compared with all of them.
"""

from dataclasses import dataclass, field

__all__ = ["TopicTree", "matches"]


@dataclass(slots=True)
class _Branch:
    below: dict[str, "_Branch"] = field(default_factory=dict)
    subscribers: dict[str, int] = field(default_factory=dict)
    """Client id to QoS."""


class TopicTree:
    """Filters of clients; `+` and `#` are levels like others until something is looked up."""

    def __init__(self) -> None:
        self._root = _Branch()
        self._filters: dict[str, set[str]] = {}
        """Of each client."""

    def add(self, client_id: str, topic_filter: str, qos: int) -> None:
        """A client wants what matches; a second time changes only the QoS."""
        branch = self._root
        for level in topic_filter.split("/"):
            branch = branch.below.setdefault(level, _Branch())
        branch.subscribers[client_id] = qos
        self._filters.setdefault(client_id, set()).add(topic_filter)

    def filter_count(self, client_id: str) -> int:
        """How many filters a client has."""
        return len(self._filters.get(client_id, ()))

    def remove(self, client_id: str, topic_filter: str) -> None:
        """It wants it no longer; branches that lead nowhere are cut."""
        self._filters.get(client_id, set()).discard(topic_filter)
        _prune(self._root, topic_filter.split("/"), client_id)

    def remove_client(self, client_id: str) -> None:
        """It wants nothing any longer."""
        for topic_filter in self._filters.pop(client_id, set()):
            _prune(self._root, topic_filter.split("/"), client_id)

    def subscribers(self, topic: str) -> dict[str, int]:
        """Client id to the highest QoS among its filters that match."""
        found: dict[str, int] = {}
        branches = [self._root]
        for level in topic.split("/"):
            for branch in branches:
                _collect(branch.below.get("#"), found)
            nexts = (branch.below.get(name) for branch in branches for name in (level, "+"))
            branches = [branch for branch in nexts if branch is not None]
        for branch in branches:
            _collect(branch, found)
            _collect(branch.below.get("#"), found)
        return found


def matches(topic_filter: str, topic: str) -> bool:
    """Whether one filter matches one topic."""
    wanted, given = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(
        level in ("+", name) for level, name in zip(wanted, given, strict=True)
    )


def _collect(branch: _Branch | None, found: dict[str, int]) -> None:
    if branch is not None:
        for client_id, qos in branch.subscribers.items():
            found[client_id] = max(qos, found.get(client_id, 0))


def _prune(branch: _Branch, levels: list[str], client_id: str) -> None:
    if not levels:
        branch.subscribers.pop(client_id, None)
        return
    child = branch.below.get(levels[0])
    if child is None:
        return
    _prune(child, levels[1:], client_id)
    if not child.below and not child.subscribers:
        del branch.below[levels[0]]
