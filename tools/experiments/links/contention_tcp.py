"""Do links made of real TCP give the figures that emulated links give?

    python -m tools.experiments.links.contention_tcp MODEL --out DIR

The contention experiment twice in turn: over the emulator, and between network namespaces, where
every stage's upload has the rate, the delay and a queue that loses what it cannot hold, and the
kernel's TCP runs end to end. The emulator gives every hop a link of its own; a home has one upload
for all that leaves it, acknowledgements of what it receives included. Root only. About a minute for
each policy, kind of link and round.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from molink.bench.served_ring import ServedRing
from molink.config.link_schedule import LinkShape
from molink_sim.report.plots import logarithmic, picture
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    Runs,
    Setup,
    in_turn,
    markdown_table,
    milliseconds,
    ring_experiment,
    show,
    write_results,
)
from tools.experiments.harness.hosted_ring import HOSTS_VARIABLE, MODULE
from tools.experiments.harness.serving import NODES, serving, serving_over
from tools.experiments.homes.home_lines import HomeLines, home_lines
from tools.experiments.homes.home_network import check_available
from tools.experiments.links.contention import (
    contend,
    contention_options,
    gap_shares,
    gaps_over_time,
    last_rounds,
)

__all__ = ["main"]

EMULATED, REAL = "emulated", "real TCP"
LINES = {EMULATED: ":", REAL: "-"}
"""Of the shares: a policy has one colour, which kind of link it ran over its line tells."""

COLUMNS = {
    "gap_alone_p50_s": "gap alone p50, ms",
    "gap_alone_p99_s": "p99",
    "gap_beside_p50_s": "with prompts p50",
    "gap_beside_p99_s": "p99",
    "longest_gap_s": "longest",
    "ttft_mean_s": "TTFT mean",
    "ttft_p50_s": "p50",
    "ttft_p95_s": "p95",
}
LOST = "packets_lost"


@ring_experiment()
@contention_options
@click.option("--policies", default="molink,fifo,fair", show_default=True, help="Compared.")
@click.option("--queue-kb", default=1024, show_default=True, help="Of each upload, real TCP only.")
@click.option("--congestion", default="cubic", show_default=True, help="Control of real TCP.")
def main(setup: Setup, policies: str, queue_kb: int, congestion: str, **own: Any) -> None:
    """Measure the contention of MODEL over emulated links and over real TCP."""
    check_available()
    plain = LinkShape.parse(setup.link)
    shape = LinkShape(plain.rate_mbps, plain.one_way_ms, queue_kb * 1024)

    async def measure(condition: Condition, number: int) -> Measured:
        if condition.name.endswith(EMULATED):
            async with serving(setup, condition, number) as ring:
                return await contend(ring, **own)
        async with _real(setup, condition, number, shape, congestion) as (ring, lines):
            measured = await contend(ring, **own)
            measured.figures[LOST] = await lines.packets_lost()
        return measured

    named = policies.split(",")
    runs = in_turn(_conditions(named), setup.rounds, measure)
    options = {"policies": policies, "queue_kb": queue_kb, "congestion": congestion, **own}
    middle = write_results("contention_tcp", setup, options, runs)
    show(_table(middle, named))
    _draw(setup.out / "contention_tcp.png", setup, runs, named, own["quiet_s"])


def _conditions(policies: Sequence[str]) -> list[Condition]:
    return [
        Condition(_name(policy, kind), policy=policy)
        for policy in policies
        for kind in (EMULATED, REAL)
    ]


def _name(policy: str, kind: str) -> str:
    return f"{policy}, {kind}"


@asynccontextmanager
async def _real(
    setup: Setup, condition: Condition, seed: int, shape: LinkShape, congestion: str
) -> AsyncIterator[tuple[ServedRing, HomeLines]]:
    async with home_lines(shape, NODES, congestion) as lines:
        own = {HOSTS_VARIABLE: lines.hosts.text}
        async with serving_over((), setup, condition, seed, own, MODULE) as ring:
            yield ring, lines


def _table(middle: dict[str, Figures], policies: Sequence[str]) -> str:
    rows = []
    for policy in policies:
        emulated, real = (middle[_name(policy, kind)] for kind in (EMULATED, REAL))
        rows += [
            [f"`{policy}`, {EMULATED}", *_times(emulated), ""],
            [f"`{policy}`, {REAL}", *_times(real), f"{real[LOST]:.0f}"],
            ["ratio", *(f"{real[key] / emulated[key]:.2f}" for key in COLUMNS), ""],
        ]
    return markdown_table(("policy, links", *COLUMNS.values(), "packets lost"), rows)


def _times(figures: Figures) -> list[str]:
    return [milliseconds(figures[key]) for key in COLUMNS]


def _draw(path: Path, setup: Setup, runs: Runs, policies: Sequence[str], quiet_s: float) -> None:
    title = f"Gaps between tokens of streams, uploads {setup.link} (last round)"
    with picture(path, 3, title) as (*over_time, shares):
        over_time[1].sharey(over_time[0])
        for axes, (kind, line) in zip(over_time, LINES.items(), strict=True):
            named = last_rounds({policy: runs[_name(policy, kind)] for policy in policies})
            gaps_over_time(axes, named, quiet_s)
            axes.set_title(kind, fontsize=9)
            gap_shares(shares, named, f", {kind}", line)
        logarithmic(over_time[0], "y")
        logarithmic(shares, "x")


if __name__ == "__main__":
    main()
