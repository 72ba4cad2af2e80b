"""`molink sim pools`: Mooncake's pools of prefill and decode nodes, and the paper's figures."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from molink.terminal.command_line import quiet_option
from molink.terminal.tables import report_console, report_option, write_report

FIGURES = ("fig9", "fig10", "fig11", "rejections", "swing", "scheduling", "lines")
BY_TRACE = ("fig11", "rejections", "scheduling")
DIGITS = 3


@click.command()
@click.option(
    "--paper",
    "figure",
    type=click.Choice(FIGURES),
    required=True,
    help="Rates held on ArXiv and L-Eval, on long prompts, on the real load; who is refused at "
    "twice the pace; how loads swing; routing policies on a trace; which lines pools need.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Mooncake's JSONL with hash_ids, in place of drawn requests; scheduling needs one.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 200),
    default=50,
    show_default=True,
    help="Seeds of rejections.",
)
@click.option(
    "--decode",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Nodes that decode, of rejections.",
)
@click.option(
    "--rate", type=float, help="Requests a second, of rejections, else twice the trace's."
)
@click.option(
    "--gap-ms",
    type=click.FloatRange(1, 10_000),
    help="Mean gap asked for, of fig9 and fig10, else five times that of an idle node.",
)
@report_option
@quiet_option
def pools(
    figure: str,
    trace: Path | None,
    seeds: int,
    decode: int,
    rate: float | None,
    gap_ms: float | None,
    json_file: Path | None,
    quiet: bool,
) -> None:
    """Show a figure of Mooncake beside what pools of its nodes come to here.

    Nodes are eight A800 each by rooflines, requests are drawn with the means of the paper's data
    sets; Conductor, prefix trees and their eviction are the product's core.
    """
    from molink.terminal.progress import WorkProgress
    from molink_sim.report.summary import to_json
    from molink_sim.report.tables import print_table

    found: dict[str, list[Mapping[str, Any]]] = {}
    for title, rows in _tables(figure, trace, seeds, decode, rate, gap_ms).items():
        with WorkProgress("rows", None, quiet=quiet) as bar:
            found[title] = []
            for row in rows:
                found[title].append(row)
                bar.advance()
        print_table(_table(title, found[title]), report_console(json_file))
    if json_file is not None:
        write_report(json_file, to_json({"figure": figure, "tables": found}))


def _tables(
    figure: str,
    path: Path | None,
    seeds: int,
    decode: int,
    rate: float | None,
    gap_ms: float | None,
) -> Mapping[str, Iterator[Mapping[str, Any]]]:
    from molink.errors import UserError
    from molink_sim.cache.trace import read_cache_trace
    from molink_sim.pools import figures, overload

    if path is not None and figure not in BY_TRACE:
        raise UserError(f"--trace is for {', '.join(BY_TRACE)}: {figure} draws its requests.")
    if figure == "scheduling" and path is None:
        raise UserError("scheduling compares policies on a trace: name it with --trace.")
    if rate is not None and not 0 < rate < 1e3:
        raise UserError(f"--rate takes a number above 0 and below 1,000, got {rate:g}.")
    gap_s = None if gap_ms is None else gap_ms / 1e3
    trace = None if path is None else read_cache_trace(path)
    match figure:
        case "fig9":
            return {"Rates held, four nodes": figures.figure_9(gap_s)}
        case "fig10":
            return {"Rates held, four nodes, half of each prompt cached": figures.figure_10(gap_s)}
        case "fig11":
            return {
                "Rates held, twenty nodes, 30 s and 0.1 s": figures.figure_11(trace),
                "Requests whose mean gap is within 0.1 s": figures.under_target(trace),
            }
        case "rejections":
            rows = overload.rejections(decode, rate or overload.RATE_PER_S, seeds, trace)
            return {f"8P+{decode}D, {rate or overload.RATE_PER_S:.1f} requests/s": rows}
        case "swing":
            return {"9P+1D, 30 requests/s, loads over their targets": overload.swing()}
        case "scheduling":
            assert trace is not None
            return {"Eight prefill nodes": figures.scheduling(trace)}
    return {
        "A cached prefix comes sooner than it is computed from": figures.worth_fetching(),
        "3P+1D over lines": figures.lines(),
    }


def _table(title: str, rows: list[Mapping[str, Any]]) -> Any:
    from molink_sim.report.tables import Table

    head = list(dict.fromkeys(name for row in rows for name in row))
    return Table(title, head, [[_cell(row.get(name, "")) for name in head] for row in rows])


def _cell(value: Any) -> str:
    return f"{value:,.{DIGITS}f}" if isinstance(value, float) else str(value)
