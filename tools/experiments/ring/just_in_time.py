"""Does it pay to fill a link until the next decode is due, as the paper does?

    python -m tools.experiments.ring.just_in_time MODEL --out DIR

`molink` sends prompts in pieces of 8 ms, `just_in_time` in pieces of T_a x Band, and `paper` is
Algorithm 1 to the letter; docs/scheduling.md tells them apart. Six streams decode, alone and then
with a long prompt every few seconds, over links of several rates and delays. All
policies of a link are measured next to each other in time, in turn. Stages keep their event logs;
played again they say how far T_a was off from what came. About 40 s for each link, policy and
round, 18 minutes with three of each.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from molink_scheduler.timing.next_decode import ErrorSummary
from molink_sim.network.policies import POLICIES
from molink_sim.replay import replay
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
from tools.experiments.harness.serving import NODES, serving
from tools.experiments.links.contention import contend

__all__ = ["main"]

LINKS = "20:30,100:30,60:50"
COMPARED = "molink,just_in_time,paper"


@ring_experiment()
@click.option("--links", default=LINKS, show_default=True, help="MBPS:MS, instead of --link.")
@click.option("--policies", default=COMPARED, show_default=True, help="Orders on the links.")
@click.option("--streams", default=6, show_default=True, help="Answers that decode.")
@click.option("--prompt-tokens", default=1500, show_default=True, help="Of each long prompt.")
@click.option("--period-s", default=2.0, show_default=True, help="Between two prompts.")
@click.option("--quiet-s", default=6.0, show_default=True, help="Without prompts.")
@click.option("--loaded-s", default=20.0, show_default=True, help="With prompts.")
def main(setup: Setup, links: str, policies: str, **own: Any) -> None:
    """Measure gaps, prompts and the error of T_a of MODEL under each policy and link."""
    unknown = set(names := policies.split(",")) - set(POLICIES)
    if unknown:
        raise click.BadParameter(f"there is no policy {sorted(unknown)}", param_hint="--policies")
    places = {_name(name, link): (name, link) for link in links.split(",") for name in names}

    async def measure(condition: Condition, number: int) -> Measured:
        link = places[condition.name][1]
        log = setup.out / f"events-{condition.policy}-{link.replace(':', '-')}-{number}"
        logged = replace(condition, options=("--event-log", str(log)))
        async with serving(setup, logged, number, link) as ring:
            measured = await contend(ring, **own)
        return Measured(measured.figures | _errors(log), measured.samples)

    runs: Runs = {}
    for link in links.split(","):  # The policies of a link in turn: those are compared.
        of_link = [Condition(_name(name, link), (), name) for name in names]
        runs |= in_turn(of_link, setup.rounds, measure)
    middle = write_results("just_in_time", setup, {"links": links, **own}, runs)
    show(_table(middle))


def _name(policy: str, link: str) -> str:
    return f"{policy} {link}"


def _errors(log: Path) -> Figures:
    """How far T_a was off on the stages that send prompts, the worst of them; their logs are
    removed."""
    found = []
    for number in range(NODES):
        path = log.with_name(f"{log.name}.{number}")
        if number < NODES - 1:
            text = path.read_text()
            found.append(replay(text[: text.rindex("\n")].splitlines()))
        path.unlink()
    figures: Figures = {}
    for kind in ("step", "round"):
        worst: list[ErrorSummary] = [getattr(one, f"{kind}_errors") for one in found]
        for key in ("p50_share", "p95_share", "p50_s", "p95_s"):
            figures[f"{kind}_error_{key}"] = max(getattr(one, key) for one in worst)
    return figures


def _table(middle: dict[str, Figures]) -> str:
    head = (
        "policy, link",
        "gap alone p50, ms",
        "with prompts p50 / p99, ms",
        "p99 / p50 alone",
        "TTFT mean / p95, ms",
        "tokens/s beside prompts",
        "T_a of a step off by p50 / p95",
        "of a round",
    )
    return markdown_table(head, [_row(name, figures) for name, figures in middle.items()])


def _row(name: str, figures: Figures) -> list[str]:
    def pair(first: str, second: str) -> str:
        return f"{milliseconds(figures[first])} / {milliseconds(figures[second])}"

    def shares(kind: str) -> str:
        p50, p95 = (figures[f"{kind}_error_{key}_share"] for key in ("p50", "p95"))
        return f"{p50:.0%} / {p95:.0%}"

    return [
        f"`{name.partition(' ')[0]}` {name.partition(' ')[2]}",
        milliseconds(figures["gap_alone_p50_s"]),
        pair("gap_beside_p50_s", "gap_beside_p99_s"),
        f"{figures['p99_beside_to_p50_alone']:.2f}",
        pair("ttft_mean_s", "ttft_p95_s"),
        f"{figures['tokens_per_s']:.1f}",
        shares("step"),
        shares("round"),
    ]


if __name__ == "__main__":
    main()
