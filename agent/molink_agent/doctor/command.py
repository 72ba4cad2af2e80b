"""`molink agent doctor`."""

import asyncio
import json
import sys
from pathlib import Path

import click

__all__ = ["doctor"]

EXIT_FAILED = 1
"""Something must be mended; 2 is for commands that were not understood."""


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Of the agent to look at; without it the user's only one.",
)
@click.option("--json", "wants_json", is_flag=True, help="Print the findings for machines.")
def doctor(data_dir: Path | None, wants_json: bool) -> None:
    """Look at all that an agent needs, and say how to mend what is wrong.

    Exits with 1 when something keeps this PC from helping.
    """
    from rich.console import Console

    from molink_agent.data_dir import default_data_dir
    from molink_agent.doctor.gather import gather
    from molink_agent.doctor.report import as_json, examine, print_findings

    with Console(stderr=True).status("Looking at this PC"):
        facts = asyncio.run(gather(data_dir or default_data_dir()))
    findings = examine(facts)
    report = as_json(findings)
    if wants_json:
        print(json.dumps(report, indent=2))
    else:
        print_findings(findings, Console())
    if not report["ok"]:
        sys.exit(EXIT_FAILED)
