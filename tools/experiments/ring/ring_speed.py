"""How fast is a ring on this machine, through the REST API, and what do its stages weigh?

    python -m tools.experiments.ring.ring_speed MODEL --json FILE

Starts `molink serve` with three stages, once on loopback and once behind emulated home links, in
turn and several times over; loads it with 1, 4 and 8 users, then with single long prompts. Prints
medians. Meant for a quiet machine: the load generator shares its cores.
"""

import asyncio
import json
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import psutil

from molink.bench.load import LoadSettings, run_load
from molink.bench.served_ring import ServerProcess
from molink.node.stage_handle import STAGE_MODULE

__all__ = ["main"]

CONCURRENCIES = (1, 4, 8)
INPUT_TOKENS, OUTPUT_TOKENS = 32, 64
WAVES = 3
"""Requests of each user in one measurement."""

LONG_INPUT_TOKENS, LONG_OUTPUT_TOKENS, LONG_REQUESTS = 1000, 2, 5

Figures = dict[str, float]


@click.command()
@click.argument("model")
@click.option("--link", default="100:30", show_default=True, help="The emulated link.")
@click.option("--rounds", default=3, show_default=True, help="How often to measure each.")
@click.option("--serve-options", default="", help="Further options of `molink serve`.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write this file.")
def main(model: str, link: str, rounds: int, serve_options: str, json_file: Path | None) -> None:
    """Measure MODEL over three stages, on loopback and over LINK."""
    conditions = {"loopback": [], f"link {link}": ["--link", link]}
    runs: dict[str, list[Figures]] = {name: [] for name in conditions}
    for _ in range(rounds):
        for name, options in conditions.items():
            runs[name].append(asyncio.run(_measure(model, [*options, *serve_options.split()])))
            click.echo(f"{name}: {_rounded(runs[name][-1])}")
    medians = {name: _medians(figures) for name, figures in runs.items()}
    click.echo(json.dumps({"medians": medians}, indent=2))
    if json_file is not None:
        report = {"model": Path(model).name, "rounds": rounds, "medians": medians, "runs": runs}
        json_file.write_text(json.dumps(report, indent=2) + "\n")


async def _measure(model: str, options: list[str]) -> Figures:
    figures: Figures = {}
    async with _serving(model, options) as server:
        figures["rss_mb_before_load"] = max(_stage_rss_mb(server))
        for users in CONCURRENCIES:
            report = await _load(server, users, WAVES * users, INPUT_TOKENS, OUTPUT_TOKENS)
            figures[f"tokens_per_s_{users}"] = report["tokens_per_s"]
            figures[f"tpot_s_{users}"] = report["tpot_s"]["p50"]
        report = await _load(server, 1, LONG_REQUESTS, LONG_INPUT_TOKENS, LONG_OUTPUT_TOKENS)
        figures["ttft_s_long"] = report["ttft_s"]["p50"]
    return figures


async def _load(
    server: ServerProcess, users: int, requests: int, input_tokens: int, output_tokens: int
) -> dict[str, Any]:
    settings = LoadSettings(server.url, users, requests, input_tokens, output_tokens)
    report = await run_load(settings)
    if report["failed"]:
        raise click.ClickException(f"{report['failed']} requests failed: the run is void.")
    return report


@asynccontextmanager
async def _serving(model: str, options: list[str]) -> AsyncIterator[ServerProcess]:
    server = await ServerProcess.start(model, ["--nodes", "3", *options])
    try:
        yield server
    finally:
        await server.stop()


def _stage_rss_mb(server: ServerProcess) -> list[float]:
    children = psutil.Process(server.pid).children(recursive=True)
    stages = [child for child in children if STAGE_MODULE in child.cmdline()]
    return [stage.memory_info().rss / 1e6 for stage in stages]


def _medians(runs: list[Figures]) -> Figures:
    return _rounded({name: statistics.median(run[name] for run in runs) for name in runs[0]})


def _rounded(figures: Figures) -> Figures:
    return {name: round(value, 4) for name, value in figures.items()}


if __name__ == "__main__":
    main()
