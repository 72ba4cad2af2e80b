"""`molink bench`: a load on a server, measured as its users feel it; or step times of stages."""

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molink.cli.options import key_option, model_argument, url_option
from molink.errors import UserError
from molink.terminal.command_line import (
    EXIT_STOPPED,
    SectionedCommand,
    quiet_option,
    shown_option,
)
from molink.terminal.tables import STDOUT, report_option, write_report

if TYPE_CHECKING:
    from molink.bench.load import Settings
    from molink_scheduler.routing.admission import Targets

STAGE_ENVIRONMENT = {
    "GOMP_SPINCOUNT": "0",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": "1",
}
"""How a stage process runs torch, which reads it when it is imported."""

SECTIONS = {
    "Server": "--url --key",
    "Load": (
        "--concurrency --requests --input-tokens --output-tokens --seed --temperature --warmup"
    ),
    "Another load": "--trace --rate --duration-s --scale --sessions",
    "Targets": "--ttft-target-s --tpot-target-ms --tbt-target-ms --tbt-percentile",
    "Report": "--json --quiet",
    "Profile": "--profile --model",
}

_AT_LEAST_ONE = click.IntRange(min=1)
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)


@click.command(cls=SectionedCommand, sections=SECTIONS)
@model_argument(required=False)
@url_option
@key_option
@shown_option("--concurrency", type=_AT_LEAST_ONE, default=1, help="Requests at once.")
@shown_option("--requests", type=_AT_LEAST_ONE, default=8, help="Requests in all.")
@shown_option("--input-tokens", type=_AT_LEAST_ONE, default=32, help="Tokens in each prompt.")
@shown_option("--output-tokens", type=_AT_LEAST_ONE, default=64, help="Tokens in each answer.")
@click.option(
    "--trace",
    metavar="FILE|generated",
    help="Lengths and arrival times of a trace instead, or of the mix that ships with MoLink.",
)
@click.option("--rate", type=_ABOVE_ZERO, help="Rate of the trace, in requests per second.")
@click.option(
    "--duration-s", type=_ABOVE_ZERO, help="Length of the trace; 60 s when it is generated."
)
@click.option("--scale", type=_ABOVE_ZERO, help="Multiply the trace's lengths by this.")
@click.option(
    "--sessions",
    metavar="FILE",
    help="Agents' sessions of a file instead, --concurrency at a time, turn after turn.",
)
@shown_option("--seed", default=0, help="Seed of the random prompts.")
@shown_option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Temperature of sampling; 0 is greedy.",
)
@shown_option(
    "--warmup",
    type=click.IntRange(min=0),
    default=1,
    help="Short requests for each concurrent one before the clock starts.",
)
@click.option("--ttft-target-s", type=float, help="Count answers whose first token comes so soon.")
@click.option(
    "--tpot-target-ms",
    type=float,
    help="Count answers with a mean of so many milliseconds between tokens.",
)
@click.option(
    "--tbt-target-ms",
    type=float,
    help="Count answers whose gaps between tokens are within so many milliseconds.",
)
@shown_option(
    "--tbt-percentile",
    type=float,
    default=99.0,
    help="Percentile of an answer's gaps that --tbt-target-ms is for.",
)
@report_option
@click.option(
    "--profile",
    "profile_file",
    metavar="OUT.json",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Step times of MODEL's stages on this machine instead; no server is asked.",
)
@quiet_option
def bench(
    json_file: Path | None,
    profile_file: Path | None,
    model: str | None,
    key: str | None,
    quiet: bool,
    **settings: Any,
) -> None:
    """Load a server with random prompts and measure it as its users do.

    Ctrl-C ends the load and prints what there is. With --profile: time the stages of MODEL, a
    directory or hub id, for the simulator.
    """
    from molink.bench.goodput import TARGETS, targets_of
    from molink.bench.load import refuse_beside_profile, settings_from

    source = click.get_current_context().get_parameter_source
    given = [name for name in settings if source(name) is click.core.ParameterSource.COMMANDLINE]
    if profile_file is not None:
        refuse_beside_profile(given + ["json"] * (json_file is not None))
        _write_profile(model, profile_file, quiet=quiet)
        return
    if model is not None:
        raise UserError(f"{model} is not needed: the server at --url says what it serves.")
    targets = targets_of({name: settings.pop(name) for name in TARGETS})
    load = settings_from(settings, given)
    if json_file not in (None, STDOUT):
        _check_writable(json_file, "--json")
    _show(asyncio.run(_run_with_bar(load, targets, key, quiet=quiet)), json_file)


def _write_profile(model: str | None, path: Path, *, quiet: bool) -> None:
    """Time the stages of `model` as a stage process computes, with one thread."""
    if model is None:
        raise UserError("--profile needs a MODEL, a directory or hub id, after the options.")
    _check_writable(path, "--profile")
    os.environ |= STAGE_ENVIRONMENT | os.environ  # before torch is imported
    from molink.bench.stage_profile import STEPS_IN_ALL, write_profile
    from molink.terminal.progress import WorkProgress

    with WorkProgress("steps", STEPS_IN_ALL, quiet=quiet) as bar:
        write_profile(model, path, bar.advance)


async def _run_with_bar(
    settings: "Settings", targets: "Targets", key: str | None, *, quiet: bool
) -> dict[str, Any]:
    from molink.bench.load import run_load
    from molink.terminal.progress import WorkProgress

    with WorkProgress("requests", quiet=quiet) as bar:
        return await run_load(
            settings,
            key=key,
            done=lambda record: bar.advance(),
            planned=bar.expect,
            targets=targets,
        )


def _show(report: dict[str, Any], json_file: Path | None) -> None:
    from rich.console import Console

    from molink.bench.report import print_report

    if json_file != STDOUT:
        print_report(report, Console())
    if json_file is not None:
        write_report(json_file, json.dumps(report, indent=2))
    if report.get("interrupted"):
        click.echo("Stopped before its end: these are the requests that had finished.", err=True)
        raise click.exceptions.Exit(EXIT_STOPPED)
    if report["finished"] == 0:
        raise UserError(f"no request finished: {report['first_error']}")


def _check_writable(path: Path, option: str) -> None:
    """Fail before the measurement, not after it."""
    try:
        path.touch()
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror}): choose another {option}"
        ) from error
