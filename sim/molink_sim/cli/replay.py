"""`molink sim replay`: a log of the core, played again."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.terminal.tables import STDOUT, report_option, write_report

if TYPE_CHECKING:
    from molink_sim.replay import Replay


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@report_option
def replay(path: Path, json_file: Path | None) -> None:
    """Play the event log of a stage, or of a ring's recovery, again, and say where it decides
    otherwise, objects or fails.

    Exit code 1 when a decision is another one than in the log.
    """
    from molink.errors import UserError
    from molink_sim.replay import replay as play

    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The log {path} cannot be read: {error}.") from None
    found = play(lines)
    if json_file is not None:
        write_report(json_file, json.dumps(asdict(found), default=str, indent=2))
    if json_file != STDOUT:
        _print(found)
    if found.difference is not None:
        raise SystemExit(1)


def _print(found: "Replay") -> None:
    click.echo(f"Calls: {found.calls_count} in {found.lasted_s:.3f} s")
    click.echo(f"Messages refused: {found.refusals_count}")
    for case, off in (("a step", found.step_errors), ("the round", found.round_errors)):
        if off.judged:
            times = f"{1e3 * off.p50_s:.1f} / {1e3 * off.p95_s:.1f} ms, {off.shares_text}"
            click.echo(f"Time until decode by {case}: off by {times} (p50 / p95)")
    for title, finding in (
        ("First refusal", found.first_refusal),
        ("Exception", found.error),
        ("Another decision", found.difference),
    ):
        if finding is not None:
            click.echo(f"{title}: line {finding.line}, {finding.at_s:.3f} s: {finding.what}")
    if found.failure is not None:
        click.echo(f"The stage failed: {found.failure}")
    if found.difference is None:
        click.echo("Every decision is the one of the log.")
