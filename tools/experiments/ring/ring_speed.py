"""How fast is a ring on this machine, through the REST API, and what do its stages weigh?

    python -m tools.experiments.ring.ring_speed MODEL --out DIR

Starts `molink serve` with three stages, once on loopback and once behind emulated home links, in
turn and several times over; loads it with 1, 4 and 8 users, then with single long prompts. Prints
medians. Meant for a quiet machine: the load generator shares its cores.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import psutil

from molink.bench.load import LoadSettings
from molink.bench.served_ring import ServerProcess
from molink.node.stage_handle import STAGE_MODULE
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    experiment,
    figures_of,
    in_turn,
    markdown_table,
    medians,
    rounds_option,
    show,
    write_report,
)
from tools.experiments.harness.serving import run_whole_load

__all__ = ["main"]

CONCURRENCIES = (1, 4, 8)
INPUT_TOKENS, OUTPUT_TOKENS = 32, 64
WAVES = 3
"""Requests of each user in one measurement."""

LONG_INPUT_TOKENS, LONG_OUTPUT_TOKENS, LONG_REQUESTS = 1000, 2, 5


@experiment
@click.argument("model")
@click.option("--link", default="100:30", show_default=True, help="The emulated link.")
@rounds_option()
@click.option("--serve-options", default="", help="Further options of `molink serve`.")
def main(out: Path, model: str, link: str, rounds: int, serve_options: str) -> None:
    """Measure MODEL over three stages, on loopback and over LINK."""
    further = tuple(serve_options.split())
    conditions = [
        Condition("loopback", further),
        Condition(f"link {link}", ("--link", link, *further)),
    ]

    async def measure(condition: Condition, number: int) -> Measured:
        return Measured(await _measure(model, condition.options))

    runs = in_turn(conditions, rounds, measure)
    middle = medians(runs)
    report = {"model": Path(model).name, "rounds": rounds, "medians": middle}
    write_report(out, "ring_speed", {**report, "runs": figures_of(runs)})
    show(_table(middle))


async def _measure(model: str, options: Sequence[str]) -> Figures:
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
    return await run_whole_load(
        LoadSettings(server.url, users, requests, input_tokens, output_tokens)
    )


@asynccontextmanager
async def _serving(model: str, options: Sequence[str]) -> AsyncIterator[ServerProcess]:
    server = await ServerProcess.start(model, ["--nodes", "3", *options])
    try:
        yield server
    finally:
        await server.stop()


def _stage_rss_mb(server: ServerProcess) -> list[float]:
    children = psutil.Process(server.pid).children(recursive=True)
    stages = [child for child in children if STAGE_MODULE in child.cmdline()]
    return [stage.memory_info().rss / 1e6 for stage in stages]


def _table(middle: dict[str, Figures]) -> str:
    rows = [
        [name, *(f"{figures[name]:.4g}" for figures in middle.values())]
        for name in next(iter(middle.values()))
    ]
    return markdown_table(["medians", *middle], rows)


if __name__ == "__main__":
    main()
