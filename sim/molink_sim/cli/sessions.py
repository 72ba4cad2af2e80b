"""`molink sim sessions`: what caching prompts is worth to agents."""

from pathlib import Path
from typing import Any

import click

from molink.json_object import JsonObject
from molink.terminal.command_line import quiet_option
from molink.terminal.tables import report_console, report_option, write_report


@click.command()
@click.option(
    "--sessions",
    "path",
    type=click.Path(path_type=Path),
    required=True,
    help="File as `molink bench --sessions` takes it.",
)
@click.option("--concurrency", type=click.IntRange(1), default=4, help="Sessions at a time.")
@click.option(
    "--rings", type=click.IntRange(1, 64), default=4, show_default=True, help="Equal ones."
)
@click.option("--model", default="llama-2-70b", show_default=True, help="Served by all rings.")
@click.option("--gpu", default="rtx4090", show_default=True, help="Device of every stage.")
@click.option(
    "--stages", type=click.IntRange(1), default=10, show_default=True, help="Stages of a ring."
)
@click.option("--bandwidth-mbps", default=100.0, show_default=True, help="Rate of every link.")
@click.option("--latency-ms", default=30.0, show_default=True, help="One-way delay of every link.")
@click.option(
    "--kv-tokens", type=click.IntRange(1), help="Tokens of KV of each ring, else what memory holds."
)
@click.option("--host-gb", type=click.FloatRange(0, 10_000), default=0.0, help="For cached KV.")
@click.option(
    "--routing",
    type=click.Choice(["random", "load", "cache", "molink"]),
    default="molink",
    show_default=True,
    help="Which ring takes a turn.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of everything that is random.")
@report_option
@quiet_option
def sessions(
    path: Path, concurrency: int, json_file: Path | None, quiet: bool, **options: Any
) -> None:
    """Play agents' sessions over rings, with the prefix cache and without it."""
    from molink.terminal.progress import WorkProgress
    from molink.workload.sessions import read_sessions
    from molink_sim.report.summary import to_json
    from molink_sim.report.tables import print_table
    from molink_sim.session_experiment import SessionRings, figures, replay

    rings = SessionRings(sessions_at_once=concurrency, **options)
    read, found = read_sessions(path), dict[str, dict[str, JsonObject]]()
    with WorkProgress("runs", 2, quiet=quiet) as bar:
        for name, cache in (("cache", True), ("no cache", False)):
            found[name] = figures(replay(rings, read, cache=cache))
            bar.advance()
    print_table(_table(path, found), report_console(json_file))
    if json_file is not None:
        write_report(json_file, to_json(found))


def _table(path: Path, found: dict[str, dict[str, JsonObject]]) -> Any:
    from molink_sim.report.tables import Table

    head = ["turns", "count", "cached", "TTFT p50, s", "most, s", "p50 without, s", "sooner, times"]
    rows = []
    for turns, with_cache in found["cache"].items():
        p50_s, without_s = with_cache["ttft_p50_s"], found["no cache"][turns]["ttft_p50_s"]
        figures = [with_cache["hit_rate"], p50_s, with_cache["ttft_max_s"], without_s]
        sooner = None if p50_s is None else without_s / p50_s
        cells = ["-" if one is None else f"{one:,.3f}" for one in [*figures, sooner]]
        rows.append([turns, f"{with_cache['turns']:,}", *cells])
    return Table(f"sessions of {path.name}", head, rows)
