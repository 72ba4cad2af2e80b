"""A stage is killed while users read: for how long do answers stand still, and are they exact?

    python -m tools.experiments.ring.stage_kills MODEL --out DIR

Each stage is killed in turn, all users' answers under way: once where its own node loads it again,
in the process that waits there, and once where a standby holds its layers. Half of the users are
greedy, half seeded; every answer is compared with that to the same request with nothing killed. A
pause is the longest time between two tokens of a user from the kill on; the cluster's own events
say which part of it was loading. About two minutes for each condition and round.
"""

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import Any

import click
import psutil

from molink.bench.served_ring import ServedRing, serve_ring
from molink.errors import UserError
from molink.workload.figures import percentile
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    Setup,
    in_turn,
    markdown_table,
    ring_experiment,
    show,
    write_results,
)

__all__ = ["main"]

WARM_UP_TOKENS = (64, 8)
BEFORE_TOKENS = 10
"""Of every answer, when the stage is killed."""

SETTLED_S = 20.0
"""Before each kill: by then a process waits that has imported torch, and standbys hold all."""

RESUMED = re.compile(r"goes on ([\d.]+) s after a loss, ([\d.]+) of them to load")


@dataclass(slots=True)
class Answer:
    """Tokens of one user, and when each came."""

    tokens: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    def pause_s(self, killed_at: float) -> float:
        """The longest time between two tokens that does not end before the kill."""
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        return max(after - before for before, after in pairs if after > killed_at)


@ring_experiment(link="100:30")
@click.option("--nodes", default=4, show_default=True, help="Stages, each of which is killed.")
@click.option("--users", default=4, show_default=True, help="At once.")
@click.option("--tokens", default=60, show_default=True, help="Of each answer.")
def main(setup: Setup, **own: Any) -> None:
    """Measure the pause of answers when a stage is killed, with and without a standby."""
    every = str(own["nodes"])
    conditions = [
        Condition("its own node", ("--nodes", every)),
        Condition("a standby", ("--nodes", every, "--standby", every)),
    ]

    async def measure(condition: Condition, number: int) -> Measured:
        return await _measure(setup, condition, number, **own)

    middle = write_results("stage_kills", setup, own, in_turn(conditions, setup.rounds, measure))
    show(_table(middle))


async def _measure(
    setup: Setup, condition: Condition, number: int, *, nodes: int, users: int, tokens: int
) -> Measured:
    options = ("--link", setup.link, "--dtype", "float32", *setup.serve_options, *condition.options)
    async with serve_ring(setup.model, options, number, WARM_UP_TOKENS) as ring:
        bodies = [_body(ring, user, tokens) for user in range(users)]
        expected = await _answers(ring, bodies, None)
        pauses_s: list[float] = []
        for place in range(nodes):
            await asyncio.sleep(SETTLED_S)
            answers = await _answers(ring, bodies, place)
            if [one.tokens for one in answers[1]] != [one.tokens for one in expected[1]]:
                raise UserError(f"an answer is another one where stage {place} was killed")
            pauses_s += [one.pause_s(answers[0]) for one in answers[1]]
        return Measured(_figures(pauses_s, await _resumed(ring)))


def _body(ring: ServedRing, user: int, tokens: int) -> dict[str, Any]:
    chosen = {"temperature": 0.8, "seed": user} if user % 2 else {"temperature": 0.0}
    prompt = [ring.random.randrange(ring.model.vocabulary_size) for _ in range(32)]
    fixed = {"prompt_token_ids": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return fixed | chosen


async def _answers(
    ring: ServedRing, bodies: list[dict[str, Any]], place: int | None
) -> tuple[float, list[Answer]]:
    """All users' answers, and when the stage at `place` was killed while they came."""
    answers, killed_at = [Answer() for _ in bodies], 0.0
    async with asyncio.TaskGroup() as group:
        for body, answer in zip(bodies, answers, strict=True):
            group.create_task(_read(ring, body, answer))
        if place is not None:
            stage = (await ring.cluster())["stages"][place]
            while min(len(one.tokens) for one in answers) < BEFORE_TOKENS:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            killed_at = time.perf_counter()
            psutil.Process(stage["pid"]).kill()
    return killed_at, answers


async def _read(ring: ServedRing, body: dict[str, Any], answer: Answer) -> None:
    async for event in ring.client.stream("/generate", body):
        tokens = event.get("token_ids", ())
        answer.tokens += tokens
        answer.at_s += [time.perf_counter()] * len(tokens)


async def _resumed(ring: ServedRing) -> list[tuple[float, float]]:
    """Seconds from each loss to the ring's next epoch, and how many of them were loading."""
    events = (await ring.client.get("/cluster/events"))["events"]
    found = [RESUMED.search(one["text"]) for one in events if one["kind"] == "ring_resumed"]
    return [(float(one[1]), float(one[2])) for one in found if one is not None]


def _figures(pauses_s: list[float], resumed: list[tuple[float, float]]) -> Figures:
    ordered = sorted(pauses_s)
    return {
        "pause_p50_s": percentile(ordered, 50),
        "pause_p95_s": percentile(ordered, 95),
        "resumed_mean_s": sum(one for one, _ in resumed) / len(resumed),
        "loading_mean_s": sum(one for _, one in resumed) / len(resumed),
        "resumed_count": float(len(resumed)),
    }


def _table(middle: dict[str, Figures]) -> str:
    head = ("goes on with", "pause p50, s", "pause p95, s", "of it until joined", "of that loading")
    keys = ("pause_p50_s", "pause_p95_s", "resumed_mean_s", "loading_mean_s")
    rows = [[name, *(f"{one[key]:.2f}" for key in keys)] for name, one in middle.items()]
    return markdown_table(head, rows)


if __name__ == "__main__":
    main()
