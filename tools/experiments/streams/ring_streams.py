"""200 answers at once over a whole ring that does no arithmetic: what does MoLink itself cost?

    python -m tools.experiments.streams.ring_streams --out DIR

`molink serve` with the demo model over three stages on loopback, each a process of its own
(`idle_stage`): scheduler, links, KV bookkeeping, coordinator and API are real, a step of a stage
sleeps in place of computing. Readers are another process, this one. `age` is the time from a
token's draw at the tail until it has been read and parsed: link to the coordinator, detokenizing,
API and reader. Once with steps as long as a home PC's, and once without any pause, as fast as it
goes.
"""

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import click
import psutil

from molink.bench.served_ring import ServerProcess
from molink.client.api_client import ApiClient
from molink.transport.sockets import raise_file_limit
from tools.experiments.guard.users import percentile
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
from tools.experiments.harness.processes import cpu_s
from tools.experiments.streams.idle_stage import MODULE, STEP_VARIABLE, age_s

__all__ = ["main"]

READERS = 200
STAGES = 3
STEP_S = 0.0165
"""Of each stage: with three micro-batches each answer gets some 20 tokens a second."""

PROMPT = [5, 17, 23, 8]
WARM_UP_TOKENS = 40
"""Of each answer, while streams still open."""

END_TOKENS = 20
"""Of each answer, while others have ended."""

KV_TOKENS = 2**18

COSTS = ("coordinator_us", "head_us", "middle_us", "tail_us")
"""Processor time of each process for one token."""


@experiment
@click.option("--tokens", default=400, show_default=True, help="Of each answer.")
@rounds_option()
def main(out: Path, tokens: int, rounds: int) -> None:
    """Measure the ring with steps that take time and with steps that take none."""
    raise_file_limit()
    gc.disable()  # The readers' own pauses would look like the ring's.
    steps = {f"{1e3 * step_s:g} ms": step_s for step_s in (STEP_S, 0.0)}

    async def measure(condition: Condition, number: int) -> Measured:
        step_s = steps[condition.name]
        return Measured(await _measure(step_s, tokens) | {"step_s": step_s})

    runs = in_turn([Condition(name) for name in steps], rounds, measure)
    middle = medians(runs)
    facts = {"readers": READERS, "stages": STAGES, "tokens": tokens, "rounds": rounds}
    write_report(
        out, "ring_streams", {**facts, "medians": middle, "runs": figures_of(runs)}, "ring-streams"
    )
    show(table(middle))


async def _measure(step_s: float, tokens: int) -> Figures:
    options = ("--nodes", str(STAGES), "--kv-tokens", str(KV_TOKENS))
    server = await ServerProcess.start("demo", options, {STEP_VARIABLE: str(step_s)}, MODULE)
    try:
        return await _watched(server, tokens)
    finally:
        await server.stop()


async def _watched(server: ServerProcess, tokens: int) -> Figures:
    coordinator = psutil.Process(server.pid)
    stages = [one for one in coordinator.children(recursive=True) if MODULE in one.cmdline()]
    assert len(stages) == STAGES, stages
    processes = [coordinator, *stages]
    began_s, before_s = time.monotonic(), [cpu_s(one) for one in processes]
    async with ApiClient(server.url) as client:
        streams = await asyncio.gather(*(_read(client, tokens) for _ in range(READERS)))
    took_s = time.monotonic() - began_s
    used = [(cpu_s(one) - at) for one, at in zip(processes, before_s, strict=True)]
    per_token = [1e6 * one / (READERS * tokens) for one in used]
    ages = [age for stream in streams for age, _ in stream]
    gaps = [gap for stream in streams for _, gap in stream]
    return {
        "tokens_per_s": READERS * tokens / took_s,
        "age_p50_s": percentile(ages, 0.5),
        "age_p99_s": percentile(ages, 0.99),
        "age_most_s": max(ages),
        "gap_p50_s": percentile(gaps, 0.5),
        "gap_p99_s": percentile(gaps, 0.99),
        **dict(zip(COSTS, per_token, strict=True)),
        "coordinator_rss_mb": coordinator.memory_info().rss / 1e6,
        "stage_rss_mb": max(one.memory_info().rss for one in stages) / 1e6,
    }


async def _read(client: ApiClient, tokens: int) -> list[tuple[float, float]]:
    """Age and gap of each token between warm-up and end, in seconds."""
    seen: list[tuple[float, float]] = []
    body = {"prompt_token_ids": PROMPT, "max_tokens": tokens, "ignore_eos": True}
    before = time.monotonic()
    async for event in client.stream("/generate", body):
        now = time.monotonic()
        for token_id in event["token_ids"]:
            seen.append((age_s(token_id, now), now - before))
            before = now
    assert len(seen) == tokens, len(seen)
    return seen[WARM_UP_TOKENS:-END_TOKENS]


def table(middle: dict[str, dict[str, Any]]) -> str:
    """One row for each length of a step."""
    head = (
        "step of a stage",
        "tokens/s",
        "age p50, ms",
        "p99, ms",
        "between tokens p50, ms",
        "p99, ms",
        "processor per token, µs: coordinator",
        "head",
        "middle",
        "tail",
        "memory, MB: coordinator",
        "a stage",
    )
    return markdown_table(head, [[name, *_cells(row)] for name, row in middle.items()])


def _cells(row: Figures) -> list[str]:
    times = ("age_p50_s", "age_p99_s", "gap_p50_s", "gap_p99_s")
    is_paced = row["step_s"] > 0  # Without pauses the readers are behind, and times are theirs.
    return [
        f"{row['tokens_per_s']:.0f}",
        *(f"{row[name] * 1e3:.1f}" if is_paced else "" for name in times),
        *(f"{row[name]:.0f}" for name in COSTS),
        f"{row['coordinator_rss_mb']:.0f}",
        f"{row['stage_rss_mb']:.0f}",
    ]


if __name__ == "__main__":
    main()
