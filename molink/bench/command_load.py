"""From the options of `molink bench` to a load: a closed loop, or with --trace an open one."""

from collections.abc import Callable, Collection
from typing import Any

from molink.bench.load import LoadSettings, run_load
from molink.bench.runner import RequestRecord
from molink.bench.trace_load import TraceSettings, run_trace
from molink.errors import UserError

__all__ = ["refuse_beside_profile", "run_settings", "settings_from"]

CLOSED_LOOP = ("concurrency", "requests", "input_tokens", "output_tokens")
OPEN_LOOP = ("rate", "duration_s", "scale")


def settings_from(
    options: dict[str, Any], given: Collection[str]
) -> "LoadSettings | TraceSettings":
    """The load that `options` ask for; `given` names those that the user typed."""
    options = dict(options)
    traced = options["trace"] is not None
    _refuse(CLOSED_LOOP if traced else OPEN_LOOP, given, "not" if traced else "only")
    for name in CLOSED_LOOP if traced else (*OPEN_LOOP, "trace"):
        del options[name]
    if not traced:
        return LoadSettings(**options)
    if options["rate"] is None:
        raise UserError("--trace needs --rate, the requests per second")
    scale = options.pop("scale") or 1.0
    return TraceSettings(**options, input_scale=scale, output_scale=scale)


def refuse_beside_profile(given: Collection[str]) -> None:
    """Raises UserError when an option of a load was given: a profile has no server."""
    for name in given:
        raise UserError(f"--{name.replace('_', '-')} goes not with --profile")


def _refuse(names: Collection[str], given: Collection[str], how: str) -> None:
    for name in names:
        if name in given:
            raise UserError(f"--{name.replace('_', '-')} goes {how} with --trace")


async def run_settings(
    settings: LoadSettings | TraceSettings,
    planned: Callable[[int], None],
    done: Callable[[RequestRecord], None],
) -> dict[str, Any]:
    """Run it; `planned` hears how many requests there are, `done` of each one's end."""
    if isinstance(settings, TraceSettings):
        return await run_trace(settings, planned, done)
    planned(settings.requests)
    return await run_load(settings, done)
