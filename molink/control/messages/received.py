"""What arrives on the control plane, as values: from a topic's text to its kind and its node."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from molink.control.messages.topics import ALL_TOPICS, Topic, node_of

__all__ = ["Received", "UnreadableError", "read_message"]

_BY_PATH: dict[str, Topic[Any]] = {topic.path: topic for topic in ALL_TOPICS}


class UnreadableError(ValueError):
    """Raised when something arrived that is no message of ours."""


@dataclass(frozen=True, slots=True)
class Received:
    """One message; `received.topic is PRESENCE` says which kind."""

    topic: Topic[Any]
    node_id: str
    """Whom it is about, and for what is said by nodes: who said it; empty for the coordinator's."""
    message: BaseModel
    """Of the class `topic.message`."""
    retained: bool = False
    """Said earlier, perhaps long ago: no sign of life."""


def read_message(path: str, payload: bytes, retained: bool) -> Received:
    """Raises UnreadableError for an unknown topic or a payload that does not fit it."""
    node_id = node_of(path)
    topic = _BY_PATH.get(path if node_id is None else _template(path))
    if topic is None:
        raise UnreadableError(f"unknown topic {path[:200]!r}")
    try:
        message = topic.message.model_validate_json(payload)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableError(f"{path}: {where} {first['msg']}") from None
    return Received(topic, node_id or "", message, retained)


def _template(path: str) -> str:
    levels = path.split("/")
    levels[3] = "{node}"
    return "/".join(levels)
