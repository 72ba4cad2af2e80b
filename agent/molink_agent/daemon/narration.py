"""What the agent does, in sentences for its owner: in the terminal, in its log, in the journal.

Made from the answer of `molink agent status`, so that whoever looks on sees what whoever asks is
told. Each begins with the state's own name, as guides and GET /cluster call it; where several
devices are lent, behind the device's. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Narration", "device_sentence", "now_sentence"]

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
        lines = {"connection": _connection(status, "connection" in self._told)}
        for device in _devices(status):
            lines |= self._of_device(device, _mark(device, status))
        lines["limits"] = str(status["limits_problem"])
        new = [line for topic, line in lines.items() if line and line != self._told.get(topic)]
        self._told |= {topic: line for topic, line in lines.items() if line or topic in self._told}
        return new

    def _of_device(self, device: Status, mark: str) -> dict[str, str]:
        """By topic; a device is told apart by its node's id."""
        doing, trouble = (f"{topic} of {device.get('id')}" for topic in ("doing", "trouble"))
        told = self._told.get(doing, "")
        failed = _trouble(device)
        return {
            doing: mark + _doing(device) if _is_told(device) else told,
            trouble: failed and mark + failed,
        }


def now_sentence(status: Status) -> str:
    """How it is, with the progress of what is loading; of several devices one after the other."""
    return "; ".join(_mark(one, status) + device_sentence(one) for one in _devices(status))


def device_sentence(status: Status) -> str:
    """The same of one device."""
    if not _is_told(status):
        return f"{status['state']}: not connected to the coordinator now; it tries again by itself"
    loaded = status["loaded"]
    if status["state"] == "loading" and loaded is not None and loaded["kind"] in LOADING:
        what = LOADING[loaded["kind"]].format(held=_held(status))
        return f"loading: {what}, {loaded['fraction']:.0%}"
    busy = f", busy {status['busy_share']:.0%} of the time" if status["state"] == "serving" else ""
    return f"{_doing(status)}{busy}"


def _devices(status: Status) -> Sequence[Status]:
    """Of a status, or itself where it is of one device."""
    return status.get("devices") or (status,)


def _is_told(device: Status) -> bool:
    """Whether its state is the coordinator's too; of one that is not let in nothing more comes."""
    return bool(device["connected"] or device.get("refused"))


def _mark(device: Status, status: Status) -> str:
    """Which of several devices is meant."""
    if len(_devices(status)) < 2:
        return ""
    return f"{device['device'] or device['name']}: "


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
