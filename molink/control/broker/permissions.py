"""Permissions of the broker's clients to write and read topics. Pure; what an external broker
should allow, too (docs/deploying.md prints it as rules of Mosquitto).

A node writes the topics under its own `said/` that there are, and no others, so that what a broker
keeps for it has an end; it reads its own `told/#` and what the coordinator publishes for all; the
coordinator may do everything. Whole levels are compared: a test of prefixes would let `n1` read
what is meant for `n10`. A filter is allowed only if all that it could match is, so a node that asks
for `molink/v1/node/+/told/#` is refused rather than given a part.
"""

import re
from collections.abc import Iterable

from molink.control.messages.topics import ALL_TOPICS, ROOT
from molink.errors import UserError

COORDINATOR_NAME = "coordinator"
"""Eleven letters; a node id has sixteen."""

_USERNAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LEVELS_MAX = 32
"""Most levels of a topic; ours have six. A filter of a hostile depth costs memory for nothing."""
_FOR_ALL = f"{ROOT}/coordinator/said"
_REPORTS = tuple(
    topic for topic in ALL_TOPICS if topic.path.startswith(f"{ROOT}/node/{{node}}/said/")
)
"""All that a node may write."""


def check_username(username: str) -> None:
    """Raise UserError for a name that could mean something in a topic or a password file."""
    if not _USERNAME.fullmatch(username) or username == COORDINATOR_NAME:
        raise UserError(f"{username!r} is no node id: letters, digits, - and _ only, at most 64.")


def is_topic(topic: str) -> bool:
    """Whether a message may have it at all."""
    return is_filter(topic) and not any(mark in topic for mark in "+#")


def is_filter(topic_filter: str) -> bool:
    """Whether wildcards stand where MQTT allows them, as whole levels; nothing of the broker's
    own."""
    levels = topic_filter.split("/")
    if not topic_filter or topic_filter.startswith("$") or "\0" in topic_filter:
        return False
    if len(levels) > _LEVELS_MAX or "#" in levels[:-1]:
        return False
    return all(level in ("+", "#") or not set(level) & {"+", "#"} for level in levels)


def may_write(username: str, topic: str) -> bool:
    """Whether that user may send under that topic."""
    return username == COORDINATOR_NAME or any(topic == one.of(username) for one in _REPORTS)


def may_read(username: str, topic_filter: str) -> bool:
    """Whether that user may have all that the filter matches."""
    if username == COORDINATOR_NAME:
        return True
    readable = (f"{ROOT}/node/{username}/told", _FOR_ALL)
    return any(_lies_under(topic_filter, root) for root in readable)


def readers(topic: str, connected: Iterable[str]) -> Iterable[str]:
    """Few names, of the `connected` and of others, among which are all that may read a topic."""
    if _lies_under(topic, _FOR_ALL):
        return connected
    node_id, _, _ = topic.removeprefix(f"{ROOT}/node/").partition("/")
    return {COORDINATOR_NAME, node_id}


def _lies_under(topic: str, root: str) -> bool:
    above = root.split("/")
    return topic.split("/")[: len(above)] == above
