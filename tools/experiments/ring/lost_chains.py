"""A stage is lost while a thousand chats are cached and nobody talks: what do they find afterwards?

    python -m tools.experiments.ring.lost_chains MODEL --out DIR

A thousand prompts of 64 random tokens are asked once, 32 at a time. A hundred of them, the ones
that return, are asked again, one after the other; then the middle one of three stages is killed,
and when the ring goes on they are asked for the first time, and again. A hundred prompts that are
new end it. Every answer is compared with the first to the same prompt. About three minutes a round.
"""

import asyncio
import time
from collections.abc import Sequence

import psutil

from molink.bench.served_ring import ServedRing
from molink.errors import UserError
from tools.experiments.harness.asking import Answered, ask, random_prompt
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Setup,
    markdown_table,
    ring_experiment,
    show,
)
from tools.experiments.harness.serving import rings_in_turn

__all__ = ["main"]

CHAINS, RETURNING, PROMPT_TOKENS, ANSWER_TOKENS = 1000, 100, 64, 4

USERS = 32

KV_TOKENS = 2 * CHAINS * PROMPT_TOKENS

SETTLED_S = 10.0
"""Before the kill: by then a process waits that has imported torch."""

RESUMED_WITHIN_S = 60.0

KEPT = Condition("kept", ("--dtype", "float32", "--kv-tokens", str(KV_TOKENS), "--queue-s", "600"))

Prompt = tuple[int, ...]


@ring_experiment(link="100:10")
def main(setup: Setup) -> None:
    """Measure what idle chats find in the cache before and after a stage is lost."""
    middle = rings_in_turn("lost_chains", setup, [KEPT], _figures)
    show(_table(middle[KEPT.name]))


async def _figures(ring: ServedRing, _: int) -> Figures:
    prompts = [tuple(random_prompt(ring, PROMPT_TOKENS)) for _ in range(CHAINS)]
    first = dict(zip(prompts, await _ask_all(ring, prompts), strict=True))
    returning = prompts[:: CHAINS // RETURNING]
    figures: Figures = {}
    figures |= _noted("before", await _ask_each(ring, returning, first))
    figures["before_cached_tokens"] = await _cached(ring)
    await asyncio.sleep(SETTLED_S)
    figures["loss_s"] = await _lose_a_stage(ring)
    figures["after_cached_tokens"] = await _cached(ring)
    figures |= _noted("first", await _ask_each(ring, returning, first))
    figures |= _noted("second", await _ask_each(ring, returning, first))
    new = [tuple(random_prompt(ring, PROMPT_TOKENS)) for _ in range(RETURNING)]
    return figures | _noted("new", await _ask_each(ring, new, {}))


async def _ask_all(ring: ServedRing, prompts: Sequence[Prompt]) -> list[Answered]:
    free = asyncio.Semaphore(USERS)

    async def ask_one(prompt: Prompt) -> Answered:
        async with free:
            return await ask(ring, prompt, ANSWER_TOKENS)

    return await asyncio.gather(*map(ask_one, prompts))


async def _ask_each(
    ring: ServedRing, prompts: Sequence[Prompt], expected: dict[Prompt, Answered]
) -> list[Answered]:
    answers = []
    for prompt in prompts:
        answers.append(await ask(ring, prompt, ANSWER_TOKENS))
        if prompt in expected and answers[-1].tokens != expected[prompt].tokens:
            raise UserError("an answer is another one than that to the same prompt before")
    return answers


async def _cached(ring: ServedRing) -> float:
    return float((await ring.settled_cluster())["prefix_cache"]["tokens"])


async def _lose_a_stage(ring: ServedRing) -> float:
    """Seconds from the kill of the middle stage until its ring goes on."""
    psutil.Process((await ring.cluster())["stages"][1]["pid"]).kill()
    killed_at = time.time()
    async with asyncio.timeout(RESUMED_WITHIN_S):
        while True:
            for event in (await ring.client.get("/cluster/events"))["events"]:
                if event["kind"] == "ring_resumed" and event["unix_s"] >= killed_at:
                    return float(event["unix_s"] - killed_at)
            await asyncio.sleep(0.1)


def _noted(name: str, answers: Sequence[Answered]) -> Figures:
    count = len(answers)
    return {
        f"{name}_ttft_s": sum(one.ttft_s for one in answers) / count,
        f"{name}_hit_tokens": sum(one.cached_tokens for one in answers) / count,
    }


def _table(figures: Figures) -> str:
    names = {
        "before": "before the loss",
        "first": "first time after it",
        "second": "second time",
        "new": "new prompts",
    }
    rows = [
        (name, f"{figures[f'{key}_hit_tokens']:.1f}", f"{1e3 * figures[f'{key}_ttft_s']:.0f}")
        for key, name in names.items()
    ]
    told = (
        f"Cached before {figures['before_cached_tokens']:,.0f} tokens, after "
        f"{figures['after_cached_tokens']:,.0f}; the ring went on after {figures['loss_s']:.2f} s."
    )
    return markdown_table(("", "cached tokens", "TTFT, ms"), rows) + "\n" + told


if __name__ == "__main__":
    main()
