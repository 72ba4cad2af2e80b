"""How much does a token take longer for each millisecond that the links are longer?

    python -m tools.experiments.ring.latency_slope MODEL --out DIR

A round of three stages crosses three links one way, so 3 ms is the least; a transport that waits
for answers, or whose windows close while idle, has a multiple of it. One stream, a fresh ring for
each delay. About a quarter of a minute for each delay, policy and round.
"""

import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from molink.workload.figures import percentile
from molink_sim.report.plots import colour, picture
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    Setup,
    in_turn,
    markdown_table,
    milliseconds,
    policy_conditions,
    ring_experiment,
    show,
    write_results,
)
from tools.experiments.harness.serving import serving

__all__ = ["main", "slope_and_base"]


@ring_experiment()
@click.option(
    "--delays-ms", default="10,20,30,50", show_default=True, help="One way, instead of the link's."
)
@click.option("--tokens", default=48, show_default=True, help="Of the one answer that counts.")
def main(setup: Setup, delays_ms: str, tokens: int) -> None:
    """Measure the time per output token of one stream over links of several delays."""
    delays = [float(one) for one in delays_ms.split(",")]
    links = {_name(one.name, ms): (one, ms) for one in policy_conditions() for ms in delays}

    async def measure(condition: Condition, number: int) -> Measured:
        policy, one_way_ms = links[condition.name]
        return await _measure(setup, policy, one_way_ms, number, tokens)

    conditions = [replace(policy, name=name) for name, (policy, _) in links.items()]
    runs = in_turn(conditions, setup.rounds, measure)
    lines = _lines(runs, delays)
    own = {"delays_ms": delays_ms, "tokens": tokens}
    middle = write_results("latency_slope", setup, own, runs, {"lines": lines})
    show(_table(middle, delays, lines))
    _draw(setup.out / "latency_slope.png", middle, delays, lines)


def _name(policy: str, one_way_ms: float) -> str:
    return f"{policy} {one_way_ms:g} ms"


async def _measure(
    setup: Setup, policy: Condition, one_way_ms: float, number: int, tokens: int
) -> Measured:
    link = f"{setup.link_mbps:g}:{one_way_ms:g}"
    async with serving(setup, policy, number, link) as ring:
        times_s = (await ring.ask(32, tokens)).token_times_s
    gaps = sorted(b - a for a, b in pairwise(times_s))
    tpot_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1)
    return Measured({"tpot_s": tpot_s, "gap_p50_s": percentile(gaps, 50)})


def slope_and_base(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Of the line with the least squares."""
    line = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    return line.slope, line.intercept


def _lines(runs: Any, delays: list[float]) -> dict[str, Figures]:
    """For each policy a line through the medians: ms of a token over ms of delay."""
    lines = {}
    for policy in (one.name for one in policy_conditions()):
        points = [
            (ms, 1e3 * statistics.median(one.figures["tpot_s"] for one in runs[_name(policy, ms)]))
            for ms in delays
        ]
        slope, base_ms = slope_and_base(points)
        lines[policy] = {"slope": slope, "base_ms": base_ms}
    return lines


def _table(middle: dict[str, Figures], delays: list[float], lines: dict[str, Figures]) -> str:
    head = ("policy", *(f"{ms:g} ms" for ms in delays), "slope, ms per ms", "at 0 ms")
    rows = [
        [
            f"`{policy}`",
            *(milliseconds(middle[_name(policy, ms)]["tpot_s"]) for ms in delays),
            f"{line['slope']:.2f}",
            f"{line['base_ms']:.1f}",
        ]
        for policy, line in lines.items()
    ]
    return markdown_table(head, rows)


def _draw(
    path: Path, middle: dict[str, Figures], delays: list[float], lines: dict[str, Figures]
) -> None:
    with picture(path, 1, "Time per output token of one stream") as (axes,):
        for number, (policy, line) in enumerate(lines.items()):
            tpot_ms = [1e3 * middle[_name(policy, ms)]["tpot_s"] for ms in delays]
            label, shade = f"{policy}: {line['slope']:.2f} ms per ms", colour(policy, number)
            axes.plot(delays, tpot_ms, "o-", label=label, color=shade)
        axes.plot(delays, [3 * ms for ms in delays], ":", color="#444444", label="3 delays alone")
        axes.set(xlabel="one-way delay of each link, ms", ylabel="ms per token", ylim=(0, None))
        axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
