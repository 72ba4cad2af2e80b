"""What the agent does, in sentences for its owner: in the terminal, in its log, in the journal.

Made from the answer of `molink agent status`, so that whoever looks on sees what whoever asks is
told. Pure.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["Narration", "held_layers", "now_sentence"]

Status = Mapping[str, Any]

DOING = {
    "joining": "measures what this PC can do for the model: a minute at most",
    "standby": "stands by: the coordinator gives it layers when they are needed",
    "loading": "loads {held}",
    "serving": "serves {held}",
    "draining": "finishes or hands over what others count on",
    "paused": "is paused",
}
"""In each state, behind the name of the PC or by itself."""

LOADING = {
    "downloading": "downloads the weights of {held}: {fraction:.0%}",
    "loading": "loads {held}: {fraction:.0%}",
}
"""While it is under way."""


class Narration:
    """Remembers what was told last."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def update(self, status: Status) -> list[str]:
        """What is new since the last time."""
        lines = {
            "connection": _connection(status, "connection" in self._told),
            "doing": _doing(status) if status["connected"] else self._told.get("doing", ""),
            "trouble": _trouble(status),
            "limits": str(status["limits_problem"]),
        }
        new = [line for topic, line in lines.items() if line and line != self._told.get(topic)]
        self._told |= {topic: line for topic, line in lines.items() if line or topic in self._told}
        return new


def now_sentence(status: Status) -> str:
    """How it is, with the progress of what is loading."""
    if not status["connected"]:
        return "Waits for the coordinator."
    loaded = status["loaded"]
    if status["state"] == "loading" and loaded is not None and loaded["kind"] in LOADING:
        sentence = LOADING[loaded["kind"]].format(
            held=held_layers(status), fraction=loaded["fraction"]
        )
        return _begun(sentence)
    busy = f", busy {status['busy_share']:.0%} of the time" if status["state"] == "serving" else ""
    return f"{_begun(_doing(status))}{busy}"


def held_layers(status: Status) -> str:
    """As people count them: both ends are held."""
    if status["layers"] is None:
        return "no layers"
    start, end = status["layers"]
    return f"layers {start} to {end - 1} of {status['model']}"


def _connection(status: Status, was_told: bool) -> str:
    if status["connected"]:
        return f"is connected to {status['cluster']}"
    return "has lost the coordinator; it is tried again, nothing has to be done" * was_told


def _doing(status: Status) -> str:
    device = f" on {status['device']}" if status["state"] == "serving" else ""
    sentence = DOING[status["state"]].format(held=held_layers(status)) + device
    return f"{sentence}: {status['reason']}" if status["reason"] else sentence


def _trouble(status: Status) -> str:
    loaded = status["loaded"]
    failed = loaded is not None and loaded["kind"] == "failed"
    return f"the stage has failed: {loaded['message']}" if failed else ""


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
