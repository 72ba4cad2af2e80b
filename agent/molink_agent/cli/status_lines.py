"""`molink agent status` for people: what this PC does, what is lent of it, what it has given."""

from collections.abc import Iterator, Mapping
from typing import Any

from molink_agent.daemon.narration import now_sentence
from molink_agent.limits.limits import Limits, plain_limits

__all__ = ["status_lines"]

GB = 2**30
MB = 1e6
MINUTE_S, HOUR_S = 60, 3600

Status = Mapping[str, Any]


def status_lines(status: Status) -> Iterator[str]:
    """A headline, then one thing in each line."""
    yield f"{status['name']} ({status['id']}) in {status['cluster']}"
    yield f"state:   {now_sentence(status)}"
    if status["paths"]:
        yield "links:   " + ", ".join(f"{name} {kind}" for name, kind in status["paths"].items())
    yield f"lends:   {_lent(status)}"
    yield f"limits:  {_limits(status['limits'])}"
    if status["limits_problem"]:
        yield f"         {status['limits_problem']}"
    if status.get("given") is not None:
        yield f"given:   {_given(status['given'])}"


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
