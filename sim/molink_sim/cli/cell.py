"""`molink sim cell`: who lends memory for KV to whom, and what papers say of it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from molink.errors import UserError
from molink.terminal.tables import report_console, report_option, write_report
from molink_sim.cli.lamina_tables import LAMINA

SEEDS = 6


@click.command()
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@click.option(
    "--paper",
    type=click.Choice(
        [
            *("capacity", "lending", "migration", "long", "swaps", "cuts"),
            *("lamina", "bandwidth", "intensity", "overlap", "turns", "heads", "fetching"),
            *("breakdown", "scaling"),
        ]
    ),
    help="Instead: tokens of KV of a cell's cards; what a lender may hold; a request that outgrows "
    "its card; long requests among short ones, and with ledgers that swap less (a minute each); "
    "prompts that are cut on one card (a minute); attention devices at equal cost, the bandwidth "
    "that they need, and what else Lamina's figures come to.",
)
@report_option
def cell(scenario: Path | None, paper: str | None, json_file: Path | None) -> None:
    """Play the devices, links and needs of the TOML file SCENARIO, or show a table of a paper.

    Devices lend each other memory by the ledger that ships; fields of the file are described in
    docs/benchmarks/cell.md.
    """
    from molink_sim.report.summary import to_json
    from molink_sim.report.tables import print_table

    if (scenario is None) == (paper is None):
        raise UserError("Name a SCENARIO or a table of --paper, one of both.")
    found = TABLES[paper]() if paper else _places(scenario)
    print_table(found, report_console(json_file))
    if json_file is not None:
        rows = [dict(zip(found.head, row, strict=True)) for row in found.rows]
        write_report(json_file, to_json({"title": found.title, "rows": rows}))


def _table(title: str, head: list[str], rows: list[list[str]]) -> Any:
    from molink_sim.report.tables import Table

    return Table(title, head, rows)


def _places(path: Path | None) -> Any:
    from molink_sim.cell.scenario import play

    assert path is not None
    head = ["at, s", "device", "needs, tokens", "at home", "borrowed", "missing", "lends, GB", ""]
    rows = [
        [
            f"{one.at_s:g}",
            one.device,
            f"{one.needed_tokens:,}",
            f"{one.home_tokens:,}",
            ", ".join(f"{tokens:,} of {name}" for name, tokens in one.borrowed_tokens.items()),
            f"{one.missing_tokens:,}",
            f"{one.lent_gb:.2f}",
            one.refused,
        ]
        for one in play(path)
    ]
    return _table(path.stem, head, rows)


def _capacity() -> Any:
    from molink_sim.cell.tables import capacities

    head = ["", "tokens of KV", "paper", "ours over it"]
    rows = [
        [name, f"{tokens:,.0f}", f"{paper:,}", f"{tokens / paper - 1:+.0%}"]
        for name, tokens, paper in capacities()
    ]
    return _table("A100 with 80 GB", head, rows)


def _lending() -> Any:
    from molink_sim.cell.tables import lendable

    rows = [[name, f"{size:.2f}"] for name, size in lendable()]
    return _table("TPOT 1.6 x, three stages that all lend", ["lender", "GB of a stage"], rows)


def _lamina() -> Any:
    from molink_sim.cell.attention_devices import MODELS, equal_cost

    found = list(equal_cost())
    mean = sum(paper.batch_ratio for _, _, paper, _ in found) / len(found)
    head = [
        "model",
        "trace",
        "H100s",
        "H100, H20",
        "batch",
        "times",
        "tokens/s",
        "best",
        "tokens/s",
    ]
    rows = [
        [
            *(model, trace, str(MODELS[model][0]), f"{paper.compute}, {paper.attention}"),
            *(f"{paper.batch:.0f}", f"{paper.batch_ratio:.2f}", f"{paper.rate_ratio - 1:+.0%}"),
            *(f"{best.compute}, {best.attention}", f"{best.rate_ratio - 1:+.0%}"),
        ]
        for model, trace, paper, best in found
    ]
    return _table(f"At equal cost; batches {mean:.2f} x in the mean", head, rows)


def _bandwidth() -> Any:
    from molink_sim.cell.attention_devices import least_bandwidth_gb_per_s

    batches, contexts = (50, 100, 200, 300), (1_024, 2_048, 4_096, 8_192)
    rows = [
        [f"{context:,}"]
        + [f"{least_bandwidth_gb_per_s('llama-3-70b', batch, context):.1f}" for batch in batches]
        for context in contexts
    ]
    head = ["tokens of context", *(f"batch {batch}" for batch in batches)]
    return _table("GB/s between an H100 and an H20, Llama-3-70B", head, rows)


def _long() -> Any:
    from molink_sim.cell.long_requests import tokens_per_s

    head, rows = ["long requests", "alone, tokens/s", "cell, tokens/s", "times", "seeds"], []
    for share in (0.01, 0.1, 0.3):
        pairs = [
            [tokens_per_s(share, lends=lends, seed=seed) for lends in (False, True)]
            for seed in range(SEEDS)
        ]
        alone, lent = (sum(each) / SEEDS for each in zip(*pairs, strict=True))
        times = [cell / one for one, cell in pairs]
        spread = f"{min(times):.2f} to {max(times):.2f}"
        mean = sum(times) / SEEDS
        rows.append([f"{share:.0%}", f"{alone:.0f}", f"{lent:.0f}", f"{mean:.2f}", spread])
    return _table("Four instances of Llama-2-13B on one A100-80 each", head, rows)


def _cuts() -> Any:
    from molink_sim.cell.cut_requests import most_users

    budgets = (1.0, 0.5, 0.36, 0.25)
    found = {budget: most_users(budget) for budget in budgets}
    head = ["kept", "users", "first token, s", "tokens/s", "times", "held at a time", "preempted"]
    rows = [
        [
            f"{budget:g}",
            str(one.users),
            f"{one.ttft_s:.2f}",
            f"{one.tokens_per_s:.0f}",
            f"{one.tokens_per_s / found[1.0].tokens_per_s:.2f}",
            str(one.held_most),
            str(one.preempted),
        ]
        for budget, one in found.items()
    ]
    return _table("Llama-3-8B on an RTX 4090, 4,000 + 500 tokens", head, rows)


def _migration() -> Any:
    from molink_sim.cell.migration import (
        PUBLISHED,
        published_standstill_s,
        slower,
        standstills_s,
    )

    fitted_s = published_standstill_s()
    rows = [
        [name, f"{stands_s:.1f}", *(f"{slower(tokens, stands_s):.2f}" for tokens in PUBLISHED)]
        for name, stands_s in (*standstills_s(), ("what fits the paper best", fitted_s))
    ]
    rows.append(["paper", "", *(f"{ratio:g}" for ratio in PUBLISHED.values())])
    head = ["KV moved at", "stands still, s", *(f"{tokens:,} tokens" for tokens in PUBLISHED)]
    return _table("Answers behind 105,000 tokens, times as long as with lent blocks", head, rows)


def _swaps() -> Any:
    from molink_sim.cell.swap_ledgers import LEDGERS, serve

    rows = list[list[str]]()
    for name, ledger in LEDGERS.items():
        served = [serve(ledger, seed) for seed in range(SEEDS)]
        rates = [fmean(one.tokens_per_s[link] for one in served) for link in range(2)]
        borrowed = fmean(one.borrowed_gb for one in served)
        circles = fmean(one.circle_share for one in served)
        swaps = sum(one.swaps for one in served)
        cells = [*(f"{rate:,.0f}" for rate in rates), f"{borrowed:.0f}", f"{circles:.0%}"]
        rows.append([name, *cells, str(swaps)])
    head = ["ledger", "tokens/s, cards' links", "tokens/s, 10 GbE", "borrowed, GB"]
    head += ["time with a circle", "swaps"]
    return _table(f"Needs that come and go, means of {SEEDS} seeds", head, rows)


TABLES: Mapping[str, Callable[[], Any]] = {
    **LAMINA,
    "migration": _migration,
    "swaps": _swaps,
    "capacity": _capacity,
    "lending": _lending,
    "lamina": _lamina,
    "bandwidth": _bandwidth,
    "long": _long,
    "cuts": _cuts,
}
