"""`molink sim swarm`: many small worlds with faults, and what did not hold."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.terminal.command_line import quiet_option
from molink.terminal.tables import STDOUT, report_option, write_report

if TYPE_CHECKING:
    from molink_sim.swarm import SwarmReport

FAILURES_SHOWN_MAX = 20
"""Failures that are shown. More would scroll the first away; the JSON has all."""


@click.command()
@click.option(
    "--seeds", type=click.IntRange(1), default=200, show_default=True, help="Worlds to run."
)
@click.option(
    "--first-seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the first world.",
)
@click.option(
    "--faults",
    default="all",
    show_default=True,
    help="Kinds, with commas between them: node-loss, suspended, link-cut, one-way-cut, reset, "
    "slow-node, late, jitter, duplicates; or all, or none.",
)
@report_option
@quiet_option
def swarm(seeds: int, first_seed: int, faults: str, json_file: Path | None, quiet: bool) -> None:
    """Run seeded worlds with faults and check every invariant; exit code 1 when one fails."""
    from molink.terminal.progress import WorkProgress
    from molink_sim.swarm import fault_kinds, run_swarm

    with WorkProgress("worlds", seeds, quiet=quiet) as bar:
        report = run_swarm(seeds, first_seed, fault_kinds(faults), bar.advance)
    if json_file != STDOUT:
        _print(report)
    if json_file is not None:
        write_report(json_file, _as_json(report))
    if report.failures:
        raise SystemExit(1)


def _print(report: "SwarmReport") -> None:
    last_seed = report.first_seed + report.seeds - 1
    click.echo(f"Seeds run: {report.seeds} ({report.first_seed} to {last_seed})")
    click.echo(f"Faults: {report.faults_met} of {', '.join(report.faults) or 'no kind'}")
    click.echo(f"Requests: {report.requests}, {report.failed_requests} lost with a node")
    click.echo(f"Invariants checked: {len(report.invariants)}")
    for invariant in report.invariants:
        failed = len(
            {failure.seed for failure in report.failures if failure.invariant == invariant}
        )
        click.echo(f"  {invariant}: {f'FAILED for {failed} seeds' if failed else 'holds'}")
    click.echo(f"Failures: {len(report.failures)}")
    for failure in report.failures[:FAILURES_SHOWN_MAX]:
        click.echo(f"  seed {failure.seed}, {failure.invariant}: {failure.mistake}")
        click.echo(f"    {failure.command}")


def _as_json(report: "SwarmReport") -> str:
    import json
    from dataclasses import asdict

    return json.dumps(asdict(report), indent=2)
