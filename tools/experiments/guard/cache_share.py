"""One key floods the prefix cache of a ring: is another key's chat still cached?

    python -m tools.experiments.guard.cache_share MODEL --out DIR

A chat of eight turns by one key, of which each sends the whole history. Before the eighth either
nobody else asks, or another key asks 28 prompts that share nothing, one at a time or four, or the
chat's own key does, which is how it was while keys had no shares. Each on a ring of its own, with
KV for less than half of the flood.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time

from molink.api.keys.store import KeyStore
from molink.bench.served_ring import ServedRing
from molink.client.api_client import ApiClient
from tools.experiments.harness.asking import ask, random_prompt
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
from tools.experiments.harness.serving import serving_over

__all__ = ["main"]

TURNS, TURN_TOKENS, ANSWER_TOKENS = 8, 200, 16
FLOOD, FLOOD_TOKENS = 28, 600
KV_TOKENS = "6144"

FLOODS = {
    "nobody": ("", 1),
    "another key": ("ben", 1),
    "another key, four at a time": ("ben", 4),
    "its own key": ("anna", 1),
}
"""Who floods, and with how many prompts at a time."""


@ring_experiment()
def main(setup: Setup) -> None:
    """Measure cached tokens and time to first token of a chat's eighth turn after a flood."""
    conditions = tuple(Condition(name) for name in FLOODS)

    async def measure(condition: Condition, number: int) -> Measured:
        with TemporaryDirectory() as folder:
            links = ("--link", setup.link, "--kv-tokens", KV_TOKENS)
            environment = {"XDG_DATA_HOME": folder}
            async with serving_over(links, setup, condition, number, environment) as ring:
                return Measured(await _trial(ring, Path(folder), *FLOODS[condition.name]))

    runs = in_turn(conditions, setup.rounds, measure)
    middle = write_results("cache_share", setup, {}, runs)
    heads = ("flooded by", "cached of the 8th turn", "TTFT of the 7th, s", "of the 8th, s", "ratio")
    show(markdown_table(heads, [_row(name, one) for name, one in middle.items()]))


async def _trial(ring: ServedRing, folder: Path, flooding: str, at_once: int) -> Figures:
    store = KeyStore.open(folder / "molink")
    keys = {name: store.create(time(), name=name)[1] for name in ("anna", "ben")}
    store.close()
    async with (
        ApiClient(ring.server.url, keys["anna"]) as chat,
        ApiClient(ring.server.url, keys[flooding or "ben"]) as crowd,
    ):
        anna, history, ttft_s, told = replace(ring, client=chat), list[int](), list[float](), 0
        for turn in range(TURNS):
            if turn == TURNS - 1 and flooding:
                await _flood(replace(ring, client=crowd), at_once)
            history += random_prompt(ring, TURN_TOKENS)
            answered = await ask(anna, history, ANSWER_TOKENS)
            told = answered.cached_tokens
            ttft_s.append(answered.ttft_s)
            prompt_tokens = len(history)
            history += answered.tokens
    seventh_s, eighth_s = ttft_s[-2:]
    return {
        "cached_tokens": float(told),
        "prompt_tokens": float(prompt_tokens),
        "seventh_turn_s": seventh_s,
        "eighth_turn_s": eighth_s,
    }


async def _flood(ring: ServedRing, at_once: int) -> None:
    waiting = [random_prompt(ring, FLOOD_TOKENS) for _ in range(FLOOD)]

    async def user() -> None:
        while waiting:
            await ask(ring, waiting.pop(), 1)

    await asyncio.gather(*(user() for _ in range(at_once)))


def _row(name: str, one: Figures) -> tuple[str, ...]:
    seventh_s, eighth_s = one["seventh_turn_s"], one["eighth_turn_s"]
    cached = f"{one['cached_tokens']:,.0f} of {one['prompt_tokens']:,.0f}"
    return name, cached, f"{seventh_s:.2f}", f"{eighth_s:.2f}", f"{eighth_s / seventh_s:.2f}"


if __name__ == "__main__":
    main()
