"""What the agent does, in sentences for its owner: in the terminal, in its log, in the journal.

Made from the answer of `molink agent status`, so that whoever looks on sees what whoever asks is
told. Each begins with the state's own name, as guides and GET /cluster call it. Pure.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["Narration", "now_sentence"]

Status = Mapping[str, Any]

DOING = {
    "joining": "measuring what this PC can do for the model, a minute at most",
    "standby": "ready, until the coordinator needs it",
    "loading": "{held}",
    "serving": "{held}, on {device}",
    "draining": "finishing or handing over what others count on",
    "paused": "until it is lent again",
}
"""In each state, unless there is a reason to tell."""

LOADING = {"downloading": "downloading the weights of {held}", "loading": "{held}"}
"""While it can be said how far it is."""


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
        return f"{status['state']}: not connected to the coordinator now; it tries again by itself"
    loaded = status["loaded"]
    if status["state"] == "loading" and loaded is not None and loaded["kind"] in LOADING:
        what = LOADING[loaded["kind"]].format(held=_held(status))
        return f"loading: {what}, {loaded['fraction']:.0%}"
    busy = f", busy {status['busy_share']:.0%} of the time" if status["state"] == "serving" else ""
    return f"{_doing(status)}{busy}"


def _held(status: Status) -> str:
    """Layers as people count them: both ends are held."""
    if status["layers"] is None:
        return "no layers"
    start, end = status["layers"]
    return f"layers {start} to {end - 1} of {status['model']}"


def _connection(status: Status, was_told: bool) -> str:
    if status["connected"]:
        return f"connected to {status['cluster']}"
    return "the coordinator is out of reach; it is tried again, nothing has to be done" * was_told


def _doing(status: Status) -> str:
    usual = DOING[status["state"]].format(held=_held(status), device=status["device"])
    return f"{status['state']}: {status['reason'] or usual}"


def _trouble(status: Status) -> str:
    loaded = status["loaded"]
    failed = loaded is not None and loaded["kind"] == "failed"
    return f"the stage has failed: {loaded['message']}" if failed else ""
