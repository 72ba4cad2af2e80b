"""Does a node keep to the upload that its owner allows?

    python -m tools.experiments.links.upload_cap MODEL --out DIR

The links carry far more than the cap, and prompts come one after the other, so that only the cap
holds them back. What each node uploads is counted by the kernel, all its connections together, a
hundred times a second; the figure is the most within any one second, wherever it begins. About half
a minute for each policy and round.
"""

import time
from pathlib import Path
from typing import Any

import click

from molink.errors import UserError
from molink.workload.figures import percentile
from molink_sim.report.plots import colour, picture
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    Runs,
    Setup,
    in_turn,
    markdown_table,
    milliseconds,
    policy_conditions,
    ring_experiment,
    show,
    write_results,
)
from tools.experiments.harness.loads import decoding, first_token_s, prompts_always
from tools.experiments.harness.serving import serving
from tools.experiments.harness.traffic import Traffic, busiest_second, watching

__all__ = ["main"]

STREAM_TOKENS = 1000
PROMPTS_UNDER_WAY = 2
SHOWN_WINDOW_S = 0.25


@ring_experiment(link="100:30")
@click.option("--upload-mbps", default=8.0, show_default=True, help="The cap.")
@click.option("--load-s", default=15.0, show_default=True, help="How long prompts come.")
@click.option("--streams", default=2, show_default=True, help="Answers that decode beside them.")
@click.option("--prompt-tokens", default=1500, show_default=True, help="Of each prompt.")
def main(setup: Setup, **own: Any) -> None:
    """Measure what nodes with an upload cap upload in their busiest second."""

    async def measure(condition: Condition, number: int) -> Measured:
        return await _measure(setup, condition, number, **own)

    capped = policy_conditions("--wire", "raw", "--upload-mbps", f"{own['upload_mbps']:g}")
    runs = in_turn(capped, setup.rounds, measure)
    middle = write_results("upload_cap", setup, own, runs)
    show(_table(middle))
    _draw(setup.out / "upload_cap.png", runs, own["upload_mbps"])


async def _measure(
    setup: Setup,
    condition: Condition,
    number: int,
    *,
    upload_mbps: float,
    load_s: float,
    streams: int,
    prompt_tokens: int,
) -> Measured:
    async with (
        serving(setup, condition, number) as ring,
        decoding(ring, streams, STREAM_TOKENS) as seen,
        watching(ring) as traffic,
    ):
        start_s = time.perf_counter()
        prompts = await prompts_always(ring, PROMPTS_UNDER_WAY, load_s, prompt_tokens)
        gaps = sorted(gap for _, gap in seen.gaps(start_s, time.perf_counter()))
    if not prompts:
        raise UserError("no prompt ended in time: raise --load-s")
    busiest_mbps = max(_mbps(busiest_second(traffic.times_s, h.uploaded)) for h in traffic.hops)
    waits = sorted(first_token_s(prompt) for prompt in prompts)
    figures = {
        "busiest_mbps": busiest_mbps,
        "busiest_to_cap": busiest_mbps / upload_mbps,
        "mean_mbps": _mean_mbps(traffic),
        "ttft_p50_s": percentile(waits, 50),
        "gap_p99_s": percentile(gaps, 99),
    }
    return Measured(figures, {"uploads": _uploads(traffic)})


def _mbps(bytes_per_s: float) -> float:
    return bytes_per_s * 8e-6


def _mean_mbps(traffic: Traffic) -> float:
    """Of the node that uploads most."""
    took_s = traffic.times_s[-1] - traffic.times_s[0]
    return max(_mbps((hop.uploaded[-1] - hop.uploaded[0]) / took_s) for hop in traffic.hops)


def _uploads(traffic: Traffic) -> list[tuple[float, float]]:
    """(time, Mbps) of the first node, in short windows: for the eye."""
    uploaded, times = traffic.hops[0].uploaded, traffic.times_s
    points, last = [], 0
    for number, at_s in enumerate(times):
        if at_s - times[last] >= SHOWN_WINDOW_S:
            rate = (uploaded[number] - uploaded[last]) / (at_s - times[last])
            points.append((at_s - times[0], _mbps(rate)))
            last = number
    return points


def _table(middle: dict[str, Figures]) -> str:
    head = (
        "policy",
        "busiest second, Mbps",
        "of the cap",
        "mean, Mbps",
        "TTFT p50, ms",
        "gap p99 of the streams, ms",
    )
    rows = [
        [
            f"`{name}`",
            f"{figures['busiest_mbps']:.2f}",
            f"{figures['busiest_to_cap']:.1%}",
            f"{figures['mean_mbps']:.2f}",
            milliseconds(figures["ttft_p50_s"]),
            milliseconds(figures["gap_p99_s"]),
        ]
        for name, figures in middle.items()
    ]
    return markdown_table(head, rows)


def _draw(path: Path, runs: Runs, cap_mbps: float) -> None:
    title = f"Upload of the first node, windows of {SHOWN_WINDOW_S:g} s (last round)"
    with picture(path, 1, title) as (axes,):
        for number, (name, measured) in enumerate(runs.items()):
            points = zip(*measured[-1].samples["uploads"], strict=True)
            axes.plot(*points, label=name, color=colour(name, number), lw=1)
        axes.axhline(cap_mbps, color="#444444", ls="--", lw=1, label="cap")
        axes.set(xlabel="s", ylabel="Mbps", ylim=(0, 1.5 * cap_mbps))
        axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
