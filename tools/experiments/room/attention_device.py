"""What does it cost that KV lies apart from its weights, and how long is a pause when what computes
is killed?

    python -m tools.experiments.room.attention_device --out DIR

A ring of `molink serve`, without emulated links, answers the same prompts one at a time: first as
always, then with `--attention-device host`, and then so while processes that compute are killed in
the middle of answers, stage by stage. Answers are held against the first ones.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click
import psutil

from molink.bench.served_ring import ServedRing, serve_ring
from molink.errors import UserError
from molink.workload.figures import percentile
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

PROCESSES = "molink.compute."
"""Module of the process with a stage's weights, and so of its forks."""

PROMPT_TOKENS = 200
APART = ("--attention-device", "host")
KILL_BETWEEN = (0.2, 0.8)
"""Shares of an answer between which the process is killed."""


@dataclass(slots=True)
class Answer:
    """Tokens of one answer, and when they came."""

    tokens: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    killed_s: float = 0.0
    """When the process was killed; 0: none was."""

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between its tokens."""
        return [after - one for one, after in zip(self.at_s, self.at_s[1:], strict=False)]

    @property
    def pause_s(self) -> float:
        """The longest wait for a token that came after the kill, beyond the median of all."""
        ends = zip(self.gaps_s, self.at_s[1:], strict=True)
        longest = max(gap for gap, end in ends if end > self.killed_s)
        return longest - statistics.median(self.gaps_s)

    @property
    def row_ms(self) -> dict[str, Any]:
        """What a report says of it, in milliseconds."""
        gaps_ms = [gap * 1e3 for gap in self.gaps_s]
        pause_ms = self.pause_s * 1e3 if self.killed_s else None
        return {"tokens": self.tokens, "gaps_ms": gaps_ms, "pause_ms": pause_ms}


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts that are asked one after the other."""

    prompts: Sequence[list[int]]
    answer_tokens: int

    async def answers(self, ring: ServedRing, kills: Random | None = None) -> list[Answer]:
        """The answers of a ring; with `kills` one process is killed in each."""
        found = []
        for number, prompt in enumerate(self.prompts):
            victims = _computing(ring) if kills else [None]
            victim = victims[number % len(victims)]
            at = int(kills.uniform(*KILL_BETWEEN) * self.answer_tokens) if kills else -1
            found.append(await self._ask(ring, prompt, victim, at))
        return found

    async def _ask(
        self, ring: ServedRing, prompt: list[int], victim: psutil.Process | None, at: int
    ) -> Answer:
        answer = Answer()
        fixed = {"temperature": 0.0, "ignore_eos": True, "stream": True}
        body = {"prompt_token_ids": prompt, "max_tokens": self.answer_tokens, **fixed}
        async for event in ring.client.stream("/generate", body):
            tokens = event.get("token_ids") or []
            answer.tokens += tokens
            answer.at_s += [time.perf_counter()] * len(tokens)
            if victim is not None and not answer.killed_s and len(answer.tokens) >= at:
                victim.kill()
                answer.killed_s = time.perf_counter()
        return answer


def _computing(ring: ServedRing) -> "list[psutil.Process | None]":
    """Processes that compute, stage by stage."""
    server = psutil.Process(ring.server.process.pid)
    alive = [one for one in server.children(True) if one.status() != psutil.STATUS_ZOMBIE]
    found = [one for one in alive if PROCESSES in " ".join(one.cmdline())]
    loaded = {one.pid for one in found}
    forked = {one.ppid(): one for one in found if one.ppid() in loaded}
    if 2 * len(forked) != len(found):
        raise UserError(f"{len(found)} processes have weights, and {len(forked)} compute.")
    return [forked[pid] for pid in sorted(forked)]


@experiment
@click.option("--model", default="demo", show_default=True)
@click.option("--kills", default=12, show_default=True)
@click.option("--answer-tokens", default=80, show_default=True)
@click.option("--stages", default=3, show_default=True)
@click.option("--plain/--no-plain", default=True, help="Ask a ring with KV beside its weights too.")
@click.option("--seed", default=0, show_default=True)
def main(out: Path, seed: int, **own: Any) -> None:
    """Measure a ring with KV apart from its weights, and kill what computes."""
    asyncio.run(_run(out, Random(seed), **own))


async def _run(
    out: Path, random: Random, model: str, kills: int, answer_tokens: int, stages: int, plain: bool
) -> None:
    prompts = [[random.randrange(50, 400) for _ in range(PROMPT_TOKENS)] for _ in range(kills)]
    load, seed = Load(prompts, answer_tokens), random.randrange(1000)
    fixed = ("--nodes", str(stages), "--dtype", "float32", "--device", "cpu")
    options = (*fixed, "--kv-tokens", "1024", "--no-prefix-cache")
    found = dict[str, list[Answer]]()
    if plain:
        async with serve_ring(model, options, seed, (8, 4)) as ring:
            found["KV with the weights"] = await load.answers(ring)
    async with serve_ring(model, (*options, *APART), seed, (8, 4)) as ring:
        found["apart"] = await load.answers(ring)
        found["apart, a process killed in each answer"] = await load.answers(ring, random)
    first = next(iter(found.values()))
    rows = [_row(name, answers, first) for name, answers in found.items()]
    show(markdown_table(("ring", "answers", "others", "ms a token p50", "pauses, ms"), rows))
    results: dict[str, Any] = {
        name: [one.row_ms for one in answers] for name, answers in found.items()
    }
    write_report(out, "attention_device", results | {"model": model, "stages": stages})


def _row(name: str, answers: Sequence[Answer], plain: Sequence[Answer]) -> list[str]:
    others = sum(a.tokens != b.tokens for a, b in zip(answers, plain, strict=True))
    token_ms = statistics.median(gap for one in answers for gap in one.gaps_s) * 1e3
    pauses_ms = sorted(one.pause_s * 1e3 for one in answers if one.killed_s)
    pause_text = ""
    if pauses_ms:
        pause_text = " / ".join(f"{percentile(pauses_ms, q):.0f}" for q in (50, 95, 100))
    return [name, str(len(answers)), str(others), f"{token_ms:.1f}", pause_text]


if __name__ == "__main__":
    main()
