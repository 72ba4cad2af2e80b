"""`molink sim paper`: the paper's tables, reproduced, and MoLink as it is today."""

from pathlib import Path

import click

from molink.terminal.command_line import quiet_option
from molink.terminal.tables import report_console, report_option, write_report

ASSUMABLE = ("software-30ms", "prompts-alone", "no-kv-limit", "256-at-once", "first-minutes")
"""Names in `molink_sim.paper.assumptions`."""


@click.command()
@click.option(
    "--table",
    type=click.Choice(["2", "3", "4", "5"]),
    default="2",
    show_default=True,
    help="2: systems over rates, and below 3: over bandwidths, 4: over delays; 5: each mechanism "
    "alone and together.",
)
@click.option(
    "--section", help="Only a part: rate, bandwidth, latency; paper's mechanisms, MoLink today."
)
@click.option(
    "--assume",
    "assumed",
    type=click.Choice(ASSUMABLE),
    multiple=True,
    help="What the paper does not say, for all rows; several times for several.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Azure's conversation trace, the paper's; without it, a generated one of its shape.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the arrivals.")
@report_option
@click.option(
    "--pictures",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw the sweeps into this folder: times over rate, bandwidth and latency.",
)
@quiet_option
def paper(
    table: str,
    section: str | None,
    assumed: tuple[str, ...],
    trace: Path | None,
    seed: int,
    json_file: Path | None,
    pictures: Path | None,
    quiet: bool,
) -> None:
    """Show a table of the MoLink paper beside what the simulator makes of it.

    For vllm, helix and the paper's own system, `error` is ours over the published value; for molink
    it is the factor to the published values of the paper's system.
    """
    from functools import partial

    from molink.terminal.progress import WorkProgress
    from molink_sim.paper.assumptions import ASSUMPTIONS, assume
    from molink_sim.paper.experiment import row_count, rows_of
    from molink_sim.paper.report import draw_paper, paper_json, paper_tables
    from molink_sim.report.summary import to_json
    from molink_sim.report.tables import print_table
    from molink_sim.workload import load_trace

    arrivals = None if trace is None else load_trace(trace)
    workload = "generated" if trace is None else trace.name
    with WorkProgress("runs", row_count(int(table), section), quiet=quiet) as bar:
        rows = []
        change = partial(assume, names=assumed)
        for row in rows_of(int(table), arrivals, seed, only=section, assumed=change):
            rows.append(row)
            bar.advance()
    _check_section(section, bool(rows))
    console = report_console(json_file)
    for name in assumed:
        console.print(f"Assumed: {ASSUMPTIONS[name].says} ({name}).")
    for found in paper_tables(rows):
        print_table(found, console)
    if json_file is not None:
        write_report(json_file, to_json(paper_json(int(table), rows, workload, assumed)))
    if pictures is not None:
        draw_paper(pictures, rows)


def _check_section(section: str | None, found: bool) -> None:
    from molink.errors import UserError

    if not found:
        raise UserError(f"The table has no section {section!r}: see --help for those it has.")
