"""`molink sim cache`: what remembering prompts is worth, on traces that share beginnings."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from molink.terminal.command_line import quiet_option

SHOWN = ("runs", "hit-rate", "held-rate", "overload")
COLUMNS = {
    "rate_per_s": "req./s",
    "hit_rate": "hits",
    "ttft_mean_s": "TTFT mean, s",
    "ttft_p90_s": "p90, s",
    "tpot_p90_s": "TPOT p90, s",
    "tbt_p90_s": "TBT p90, s",
}
OVERLOAD_COLUMNS = {
    "requests": "requests",
    "refused": "refused",
    "met_targets": "met targets",
    "computed_tokens": "computed",
    "wasted_tokens": "for nothing",
}
"""Columns of the table. More would not fit a terminal; the JSON has all."""

DIGITS = 3


@click.command()
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    required=True,
    help="Mooncake's JSONL with hash_ids, such as conversation_trace.jsonl.",
)
@click.option(
    "--show",
    type=click.Choice(SHOWN),
    default="runs",
    show_default=True,
    help="Routings at one rate; hit rate over capacity; the highest rate held by each routing; "
    "admission at twice that rate.",
)
@click.option(
    "--shape",
    type=click.Choice(["home", "paper"]),
    default="home",
    show_default=True,
    help="Rings of home PCs, or of the prefill nodes of Mooncake's cluster.",
)
@click.option("--rings", type=int, help="Rings or nodes, else 4 or 8.")
@click.option("--model", default="llama-3-8b", show_default=True, help="Model of home rings.")
@click.option("--gpu", default="rtx4090", show_default=True, help="Device of every stage.")
@click.option("--stages", type=int, help="Stages of each ring, else 4 PCs or 1 node.")
@click.option("--bandwidth-mbps", default=100.0, show_default=True, help="Rate of every link.")
@click.option("--latency-ms", default=30.0, show_default=True, help="One-way delay of every link.")
@click.option("--capacity-tokens", type=int, help="KV of each ring, else what its memory holds.")
@click.option(
    "--routing",
    default="random,load,cache,molink",
    show_default=True,
    help="Names with commas between them. Overload takes the last.",
)
@click.option(
    "--admission",
    type=click.Choice(["accept", "baseline", "early", "predicted"]),
    default="accept",
    show_default=True,
    help="Who is refused, in runs, for missing the targets.",
)
@click.option("--rate", type=float, help="Requests per second, else the trace's own.")
@click.option(
    "--ttft-times", default=10.0, show_default=True, help="Target, in p90 of quiet rings."
)
@click.option("--tpot-times", default=5.0, show_default=True, help="The same between two tokens.")
@click.option("--tbt-times", type=float, help="The same of most single gaps, else no target.")
@click.option(
    "--tbt-percentile", default=99.0, show_default=True, help="Per cent of an answer's gaps."
)
@click.option(
    "--prompt-order",
    type=click.Choice(["shortest", "fifo"]),
    default="shortest",
    show_default=True,
    help="Order in which rings compute prompts: short ones pass, up to a bound, or as they came.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of everything that is random.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write all numbers to cache.json in this folder.",
)
@quiet_option
def cache(
    trace: Path, show: str, routing: str, out: Path | None, quiet: bool, **options: Any
) -> None:
    """Play a trace whose prompts share beginnings over rings that cache them.

    Rings are those of all other simulations, with every batch: a thousand requests of a busy
    trace take minutes. Routing, admission and the cache are the product's own.
    """
    from rich.console import Console

    from molink.terminal.progress import WorkProgress
    from molink_sim.cache.experiment import CacheSetting, rows_of
    from molink_sim.cache.trace import read_cache_trace
    from molink_sim.report.summary import to_json
    from molink_sim.report.tables import Table, print_table

    setting = CacheSetting(routings=tuple(routing.split(",")), **options)
    requests = read_cache_trace(trace, setting.seed)
    if out is not None:
        _make_folder(out)
    with WorkProgress("rows", None, quiet=quiet) as bar:
        rows = list(rows_of(show, setting, requests, bar.advance))
    print_table(Table(_title(show, trace, setting.shape), *_cells(show, rows)), Console())
    if out is not None:
        found = {"show": show, "trace": trace.name, "setting": asdict(setting), "rows": rows}
        (out / "cache.json").write_text(to_json(found))


def _make_folder(path: Path) -> None:
    """Before the simulation, not after it."""
    from molink.errors import UserError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to the folder {path} ({error.strerror})") from error


def _title(show: str, trace: Path, shape: str) -> str:
    return f"{show} of {trace.name}" + f", {shape} rings" * (show != "hit-rate")


def _cells(show: str, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    columns = OVERLOAD_COLUMNS if show == "overload" else COLUMNS
    first = next(iter(rows[0]), "") if rows else ""
    names = {first: first, **columns} if show != "hit-rate" else {name: name for name in rows[0]}
    head = [name.replace("_", " ") for name in names.values()]
    return head, [[_cell(row[name]) for name in names] for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.{DIGITS}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
