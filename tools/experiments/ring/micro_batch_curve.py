"""How many micro-batches should circle a ring?

    python -m tools.experiments.ring.micro_batch_curve MODEL --out DIR

Each extra micro-batch reads the weights once more, and lets a stage compute while another's tokens
are on the way. So it costs with few users and pays with many: the curve shows where, and what the
count that the product chooses by itself (`auto`) comes to. Half a minute for each count and round.
"""

from pathlib import Path

import click

from molink.bench.load import LoadSettings
from molink.bench.served_ring import ServedRing
from molink_sim.report.plots import colour, picture
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

INPUT_TOKENS = 32


@ring_experiment()
@click.option("--counts", default="1,2,3,4,5,6,auto", show_default=True, help="Micro-batches.")
@click.option("--users", default="1,4,8,16", show_default=True, help="At once.")
@click.option("--policies", default="molink", show_default=True, help="Scheduling of the links.")
@click.option("--tokens", default=48, show_default=True, help="Of each answer.")
def main(setup: Setup, counts: str, users: str, policies: str, tokens: int) -> None:
    """Measure time per token and tokens per second against the number of micro-batches."""
    crowds = [int(one) for one in users.split(",")]

    async def measure(condition: Condition, number: int) -> Measured:
        async with serving(setup, condition, number) as ring:
            figures: Figures = {}
            for crowd in crowds:
                figures |= await _crowd(ring, crowd, tokens, number)
        return Measured(figures)

    conditions = [
        Condition(_name(policy, count), ("--micro-batches", count), policy)
        for policy in policies.split(",")
        for count in counts.split(",")
    ]
    runs = in_turn(conditions, setup.rounds, measure)
    own = {"counts": counts, "users": users, "policies": policies, "tokens": tokens}
    middle = write_results("micro_batch_curve", setup, own, runs)
    show(_table(middle, crowds))
    _draw(setup.out / "micro_batch_curve.png", setup, middle, crowds, policies.split(","))


def _name(policy: str, count: str) -> str:
    return f"{policy} {count}"


async def _crowd(ring: ServedRing, users: int, tokens: int, seed: int) -> Figures:
    load = LoadSettings(ring.server.url, users, users, INPUT_TOKENS, tokens, seed=seed)
    report = await run_whole_load(load)
    return {
        f"tpot_{users}_s": report["tpot_s"]["p50"],
        f"tokens_per_s_{users}": report["tokens_per_s"],
    }


def _table(middle: dict[str, Figures], crowds: list[int]) -> str:
    head = ("policy, micro-batches", *(f"{users} at once: TPOT, ms; tokens/s" for users in crowds))
    rows = [
        [
            name,
            *(
                f"{milliseconds(one[f'tpot_{users}_s'])}; {one[f'tokens_per_s_{users}']:.1f}"
                for users in crowds
            ),
        ]
        for name, one in middle.items()
    ]
    return markdown_table(head, rows)


def _draw(
    path: Path,
    setup: Setup,
    middle: dict[str, Figures],
    crowds: list[int],
    policies: list[str],
) -> None:
    """The first policy's curves; `auto` is a mark at the right."""
    named = {name.split()[1]: one for name, one in middle.items() if name.split()[0] == policies[0]}
    with picture(path, 2, f"Micro-batches, link {setup.link}, {policies[0]}") as panels:
        for axes, key in zip(panels, ("tpot_{}_s", "tokens_per_s_{}"), strict=True):
            for number, users in enumerate(crowds):
                values = [one[key.format(users)] for one in named.values()]
                shade = colour(str(users), number)
                axes.plot(range(len(named)), values, "o-", label=f"{users} at once", color=shade)
            axes.set_xticks(range(len(named)), list(named))
            axes.set(xlabel="micro-batches", ylim=(0, None))
        panels[0].set(ylabel="time per token, s")
        panels[1].set(ylabel="tokens/s")
        panels[0].legend(fontsize=8)


if __name__ == "__main__":
    main()
