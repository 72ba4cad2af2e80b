"""What does it cost to hand a long prompt over from one ring to another on the same machine?

    python -m tools.experiments.ring.hand_over MODEL --out DIR

Two rings in both conditions. With roles one computes the prompt and hands its KV over to the other,
which answers; without, the ring that computes the prompt answers it. What the first token is later
by with roles is what the hand-over does not hide behind the prompt. A user watches an answer of the
other ring meanwhile: both conditions share the machine with the prompt, so what its gaps are longer
by with roles is the hand-over's; with `--own-cores` rings do not share one. About half a minute for
each condition and round.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from molink.bench.served_ring import ServedRing, serve_ring
from molink.json_object import JsonObject
from molink.workload.figures import percentile
from tools.experiments.harness.experiment import (
    Condition,
    Measured,
    Setup,
    in_turn,
    markdown_table,
    milliseconds,
    ring_experiment,
    show,
    write_results,
)
from tools.experiments.harness.loads import decoding, first_token_s

__all__ = ["main"]

CONDITIONS = (
    Condition("with roles", ("--roles", "prefill,decode")),
    Condition("without", ("--roles", "both,both")),
)

WARM_UP_TOKENS = (128, 8)

ALONE_S = 3.0
"""How long the answer is watched while no prompt is computed."""


@ring_experiment()
@click.option("--prompt-tokens", default=8000, show_default=True, help="Of the prompt.")
@click.option("--prompts", default=3, show_default=True, help="One after the other.")
@click.option("--nodes", default=2, show_default=True, help="Stages of each ring.")
@click.option(
    "--own-cores",
    is_flag=True,
    help="Stages of each ring on a core of their own: they share no more than a hand-over.",
)
def main(setup: Setup, **own: Any) -> None:
    """Measure the first token of prompts that are handed over, and gaps beside them."""

    async def measure(condition: Condition, number: int) -> Measured:
        return await _measure(setup, condition, number, **own)

    middle = write_results("hand_over", setup, own, in_turn(CONDITIONS, setup.rounds, measure))
    rows = [[name, *map(milliseconds, figures.values())] for name, figures in middle.items()]
    show(markdown_table(["rings", *(f"{name}, ms" for name in middle["without"])], rows))


async def _measure(
    setup: Setup,
    condition: Condition,
    number: int,
    *,
    prompt_tokens: int,
    prompts: int,
    nodes: int,
    own_cores: bool,
) -> Measured:
    async with _two_rings(setup, condition, number, nodes) as ring:
        if own_cores:
            _part((await ring.cluster())["rings"])
        firsts = [first_token_s(await ring.ask(prompt_tokens, 2)) for _ in range(prompts)]
        async with decoding(ring, 1, 512) as streams:
            began = time.perf_counter()
            await asyncio.sleep(ALONE_S)
            asked = time.perf_counter()
            beside = [first_token_s(await ring.ask(prompt_tokens, 2)) for _ in range(prompts)]
            ended = time.perf_counter()
            rings = await _rings_of(ring, 1 + prompts)
            alone = [gap for _, gap in streams.gaps(began, asked)]
            gaps = [gap for _, gap in streams.gaps(asked, ended)]
    return Measured(
        {
            "first token": percentile(sorted(firsts), 50),
            "beside an answer": percentile(sorted(beside), 50),
            "gap alone p50": percentile(sorted(alone), 50),
            "gap p50": percentile(sorted(gaps), 50),
            "gap p99": percentile(sorted(gaps), 99),
        },
        {"rings that answered": rings},
    )


async def _rings_of(ring: ServedRing, requests: int) -> list[int]:
    """The rings that the latest requests are answered by: without roles, the prompts' is to be
    another than the stream's."""
    told = (await ring.client.get("/cluster/requests"))["requests"][:requests]
    found = [one["attempts"][-1]["ring"] for one in told if one["attempts"]]
    click.echo(f"answered by rings {found}", err=True)
    return found


def _part(rings: list[JsonObject]) -> None:
    """Have each ring's stages compute on a core of their own, threads that copy included."""
    cores = sorted(os.sched_getaffinity(0))
    for core, ring in zip(cores, sorted(rings, key=lambda one: one["ring"]), strict=False):
        for stage in ring["stages"]:
            for task in Path(f"/proc/{stage['pid']}/task").iterdir():
                os.sched_setaffinity(int(task.name), {core})


@asynccontextmanager
async def _two_rings(
    setup: Setup, condition: Condition, seed: int, nodes: int
) -> AsyncIterator[ServedRing]:
    """Both rings, once they serve, and each has answered."""
    options = ["--nodes", str(nodes), *setup.serve_options, *condition.options]
    async with serve_ring(setup.model, options, seed, WARM_UP_TOKENS) as ring:
        while len((await ring.cluster())["rings"]) < 2:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
        await asyncio.gather(*(ring.ask(*WARM_UP_TOKENS) for _ in range(4)))
        yield ring


if __name__ == "__main__":
    main()
