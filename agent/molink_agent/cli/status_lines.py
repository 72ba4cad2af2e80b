"""`molink agent status` for people: what this PC does, what is lent of it, what it has given."""

from collections.abc import Iterator, Mapping
from typing import Any

from molink_agent.daemon.narration import device_sentence
from molink_agent.limits.limits import Limits, plain_limits

__all__ = ["status_lines"]

GB = 2**30
MB = 1e6
MINUTE_S, HOUR_S = 60, 3600

Status = Mapping[str, Any]


def status_lines(status: Status) -> Iterator[str]:
    """A headline, then one thing in each line; of each of several devices so many lines."""
    yield f"{status['name']} ({status['id']}) in {status['cluster']}"
    devices = status["devices"]
    for device in devices:
        if len(devices) > 1:
            yield f"{device['device'] or 'no device'}: {device['name']} ({device['id']})"
        yield from _device_lines(device, "  " if len(devices) > 1 else "")
    yield f"limits:  {_limits(status['limits'])}"
    if status["limits_problem"]:
        yield f"         {status['limits_problem']}"
    if status.get("given") is not None:
        yield f"given:   {_given(status['given'])}"


def _device_lines(device: Status, margin: str) -> Iterator[str]:
    yield f"{margin}state:   {device_sentence(device)}"
    if device["paths"]:
        links = ", ".join(f"{name} {kind}" for name, kind in device["paths"].items())
        yield f"{margin}links:   {links}"
    yield f"{margin}lends:   {_lent(device)}"


def _lent(status: Status) -> str:
    devices = [
        f"{one['device']} {one['lent_bytes'] / GB:.1f} of {one['total_bytes'] / GB:.1f} GB"
        for one in status["lends"]
    ]
    return ", ".join(devices) or "nothing yet"


def _limits(limits: Mapping[str, Any]) -> str:
    """Those that the owner has set."""
    default = plain_limits(Limits())
    own = [f"{key} {_value(value)}" for key, value in limits.items() if value != default.get(key)]
    return ", ".join(own) or "none of your own; `molink agent set --help` shows what there is"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(value) if isinstance(value, list) else str(value)


def _given(given: Mapping[str, Any]) -> str:
    if not any(given.values()):
        return "nothing yet"
    return (
        f"{_duration(given['uptime_s'])} of serving, {given['token_layers']:,} tokens x layers, "
        f"{given['bytes_sent'] / MB:,.1f} MB sent"
    )


def _duration(seconds: float) -> str:
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.1f} h"
