"""What is each mechanism worth by itself, and all of them together?

    python -m tools.experiments.ring.ablation MODEL --out DIR

In the manner of the paper's Table 5: a trace-shaped load, and mean TTFT, TPOT and latency with no
mechanism, with each alone, with all. Answers are shortened so that a run takes about a minute;
prompts keep their length, because they are what fills a link. Within a round all conditions get
the same requests.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from molink.bench.load import GENERATED, TraceSettings
from molink_sim.report.plots import picture
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    Setup,
    in_turn,
    markdown_table,
    milliseconds,
    ring_experiment,
    show,
    write_results,
)
from tools.experiments.harness.serving import run_whole_load, serving

__all__ = ["main"]

NONE = {"policy": "fifo", "span-tokens": "4096", "micro-batches": "3", "wire": "raw"}
"""The paper's "no optimizations": one queue, prompts whole, as many micro-batches as stages."""

ALONE = {
    "none": {},
    "none, fair": {"policy": "fair"},
    "scheduling": {"policy": "molink"},
    "spans": {"span-tokens": "auto"},
    "micro-batches": {"micro-batches": "auto"},
    "int8": {"wire": "int8"},
    "all": {
        "policy": "molink",
        "span-tokens": "auto",
        "micro-batches": "auto",
        "wire": "int8",
    },
}

MEANS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "latency_s": "latency"}


@ring_experiment()
@click.option("--trace", default=GENERATED, show_default=True, help="A file, or the shipped mix.")
@click.option("--rate", default=1.0, show_default=True, help="Requests per second.")
@click.option("--duration-s", default=30.0, show_default=True, help="How long requests come.")
@click.option("--input-scale", default=1.0, show_default=True, help="Of the prompts' lengths.")
@click.option("--output-scale", default=0.25, show_default=True, help="Of the answers' lengths.")
def main(setup: Setup, **own: Any) -> None:
    """Measure MODEL with no mechanism, with each alone and with all, on one load."""

    async def measure(condition: Condition, number: int) -> Measured:
        async with serving(setup, condition, number) as ring:
            report = await run_whole_load(TraceSettings(ring.server.url, seed=number, **own))
        return Measured(_figures(report))

    runs = in_turn(_conditions(), setup.rounds, measure)
    middle = write_results("ablation", setup, own, runs)
    show(_table(middle))
    _draw(setup.out / "ablation.png", setup, middle)


def _conditions() -> list[Condition]:
    return [_condition(name, {**NONE, **own}) for name, own in ALONE.items()]


def _condition(name: str, mechanisms: Mapping[str, str]) -> Condition:
    options = {key: value for key, value in mechanisms.items() if key != "policy"}
    words = tuple(part for key, value in options.items() for part in (f"--{key}", value))
    return Condition(name, words, mechanisms["policy"])


def _figures(report: dict[str, Any]) -> Figures:
    means = {f"{key.removesuffix('_s')}_mean_s": report[key]["mean"] for key in MEANS}
    return means | {
        "gap_p99_s": report["gap_s"]["p99"],
        "ttft_p95_s": report["ttft_s"]["p95"],
        "requests": float(report["finished"]),
        "tokens_per_s": report["tokens_per_s"],
    }


def _table(middle: dict[str, Figures]) -> str:
    head = ("with only", "TTFT mean, ms", "TPOT mean, ms", "latency mean, s", "gap p99, ms")
    rows = [
        [
            name,
            milliseconds(figures["ttft_mean_s"]),
            milliseconds(figures["tpot_mean_s"]),
            f"{figures['latency_mean_s']:.2f}",
            milliseconds(figures["gap_p99_s"]),
        ]
        for name, figures in middle.items()
    ]
    return markdown_table(head, rows)


def _draw(path: Path, setup: Setup, middle: dict[str, Figures]) -> None:
    with picture(path, len(MEANS), f"Ablation, link {setup.link}: means, s") as panels:
        for axes, (key, label) in zip(panels, MEANS.items(), strict=True):
            figure = f"{key.removesuffix('_s')}_mean_s"
            values = [figures[figure] for figures in middle.values()]
            shades = ["#0b6e4f" if name == "all" else "#9db8a8" for name in middle]
            axes.barh(range(len(middle)), values, color=shades)
            axes.set_yticks(range(len(middle)), list(middle), fontsize=8)
            axes.set(xlabel=f"{label}, s")
            axes.invert_yaxis()


if __name__ == "__main__":
    main()
