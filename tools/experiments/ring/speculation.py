"""What do drafts bring: tokens per second through the REST API, with a drafter and without?

    python -m tools.experiments.ring.speculation MODEL --out DIR

Starts `molink serve` with three stages of one thread behind emulated links, with `--drafter none`
and with each drafter given, in turn; loads it with 1, 4, 8 and 16 users, then lets one user's
answers repeat what their prompt holds. MODEL is best a cyclic one (`tools/cycle_model.py`), whose
drafter is right as often as it was made to be. Tokens a round are counted by what comes together.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import click

from molink.bench.load import LoadSettings
from molink.bench.runner import PlannedRequest, RequestRecord
from molink.bench.served_ring import ServedRing
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Setup,
    markdown_table,
    ring_experiment,
    show,
)
from tools.experiments.harness.serving import rings_in_turn, run_whole_load

__all__ = ["main"]

INPUT_TOKENS, OUTPUT_TOKENS, WAVES = 32, 64, 3

COPIES = 3
"""Answers that repeat a prompt, of which the median counts."""

OFF = "none"


@ring_experiment(link="100:30")
@click.option("--drafter", "drafters", multiple=True, default=("copy",), help="One or several.")
@click.option("--users", default="1,4,8,16", show_default=True, help="Users at a time.")
@click.option("--copied", default=500, show_default=True, help="Tokens that answers repeat; 0: no.")
def main(setup: Setup, drafters: Sequence[str], users: str, copied: int) -> None:
    """Compare drafters with none on a ring of MODEL."""
    counts = [int(one) for one in users.split(",")]
    conditions = [Condition(one, ("--drafter", one)) for one in (OFF, *drafters)]

    async def figures(ring: ServedRing, number: int) -> Figures:
        found = await _loads(ring.server.url, counts, number)
        return found | ({"tokens_per_s_copying": await _copying(ring, copied)} if copied else {})

    own = {"drafters": list(drafters), "users": counts, "copied": copied}
    show(_table(rings_in_turn("speculation", setup, conditions, figures, own)))


async def _loads(url: str, counts: Sequence[int], seed: int) -> Figures:
    figures: Figures = {}
    for users in counts:
        settings = LoadSettings(
            url, users, WAVES * users, INPUT_TOKENS, OUTPUT_TOKENS, seed=1 + seed
        )
        report: dict[str, Any] = await run_whole_load(settings)
        figures[f"tokens_per_s_{users}"] = report["tokens_per_s"]
        figures[f"ttft_s_{users}"] = report["ttft_s"]["p50"]
        figures[f"tokens_per_round_{users}"] = report["tokens_per_round"]
    return figures


async def _copying(ring: ServedRing, copied: int) -> float:
    """Tokens per second, after the first, of answers that repeat what the prompt holds: a cyclic
    model first says so many tokens, and then goes on behind them from where it began."""
    speeds = []
    for seed in range(COPIES):
        word = Random(seed).randrange(4, ring.model.vocabulary_size)
        said = await _answer(ring, (word,), copied)
        again = await _answer(ring, (word, *said.token_ids), copied)
        first_s, *_, last_s = again.token_times_s
        speeds.append((len(again.token_times_s) - 1) / (last_s - first_s))
    return sorted(speeds)[COPIES // 2]


async def _answer(ring: ServedRing, prompt: tuple[int, ...], tokens: int) -> RequestRecord:
    return await ring.send(PlannedRequest(prompt, tokens, seed=1))


def _table(middle: dict[str, Figures]) -> str:
    """Figures as rows, drafters as columns, and how many times as fast as without each is."""
    rows = []
    for name, before in middle[OFF].items():
        values = [figures[name] for figures in middle.values()]
        times = [f" ({value / before:.2f} x)" if before else "" for value in values[1:]]
        rows.append(
            [
                name,
                f"{before:.4g}",
                *(f"{v:.4g}{t}" for v, t in zip(values[1:], times, strict=True)),
            ]
        )
    return markdown_table(["medians", *middle], rows)


if __name__ == "__main__":
    main()
