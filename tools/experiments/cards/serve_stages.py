"""Does a ring of three stages on one card answer as one on CPUs does, and how fast?

    python -m tools.experiments.cards.serve_stages --out DIR

`molink serve demo` in fp32, three processes on one card, which take turns on it: right for a proof
that a ring works, not to serve. Its greedy answers are compared with those of the same ring on
CPUs, token by token; then one and eight users ask.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from pathlib import Path

import psutil
import torch

from molink.bench.load import LoadSettings
from molink.bench.served_ring import ServedRing, serve_ring
from molink.engine.device.card import Card
from molink.errors import UserError
from tools.experiments.cards.figures import Figure, card_options, keep
from tools.experiments.harness.experiment import experiment
from tools.experiments.harness.serving import run_whole_load

__all__ = ["main"]

MODEL = "demo"
STAGES = {"cuda": 3, "cpu": 1}
OPTIONS = ("--dtype", "float32", "--kv-tokens", "8192")
USERS, REQUESTS_EACH = (1, 8), 4

PROMPTS = ("The quick brown fox", "12 + 30 =", "Once upon a time there was a PC that")
ANSWER_TOKENS = 32

PREDICTED_TOKENS_PER_S = {1: (100, 1_000), 8: (300, 4_000)}
"""Of a tiny model: what stages, links and turns on the card take."""

MB = 2**20
PREDICTED_STAGE_MB = (400, 1_200)
"""A process's context and libraries count half a gigabyte; the model's layers next to nothing."""


@experiment
@card_options
def main(out: Path, device: str) -> None:
    """Print whether answers are equal, tokens per second and memory."""
    keep(out, "serve_stages", torch.device(device), asyncio.run(_all(torch.device(device))))


async def _all(device: torch.device) -> list[Figure]:
    return [figure async for figure in _served(device)]


async def _served(device: torch.device) -> AsyncIterator[Figure]:
    options = ("--nodes", str(STAGES[device.type]), *OPTIONS)
    async with serve_ring(MODEL, ("--device", str(device), *options), 0, (8, 2)) as ring:
        answers = [await _answer(ring, prompt) for prompt in PROMPTS]
        for used in _stage_bytes(ring, device):
            yield Figure("memory of a stage", used / MB, "MB", *PREDICTED_STAGE_MB)
        for users in USERS:
            speed = await _tokens_per_s(ring, users, 4 if device.type == "cpu" else 64)
            yield Figure(f"{users} users", speed, "tokens/s", *PREDICTED_TOKENS_PER_S[users])
    if device.type == "cuda":
        async with serve_ring(MODEL, ("--device", "cpu", *options), 0, (8, 2)) as ring:
            wanted = [await _answer(ring, prompt) for prompt in PROMPTS]
        if answers != wanted:
            raise UserError(f"the card answers {answers}, CPUs {wanted}")
        yield Figure("answers equal to those of CPUs", float(len(answers)), "", len(PROMPTS))
    else:
        yield Figure("answers", float(len(answers)))


async def _answer(ring: ServedRing, prompt: str) -> list[int]:
    body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0.0}
    tokens = list[int]()
    async with aclosing(ring.client.stream("/generate", body)) as events:
        async for event in events:
            tokens += event["token_ids"]
    return tokens


async def _tokens_per_s(ring: ServedRing, users: int, output_tokens: int) -> float:
    url = ring.server.url
    report = await run_whole_load(
        LoadSettings(url, users, users * REQUESTS_EACH, 32, output_tokens)
    )
    return float(report["tokens_per_s"])


def _stage_bytes(ring: ServedRing, device: torch.device) -> Collection[int]:
    """What each process of the ring holds of the card, where the driver tells."""
    held = Card(device).bytes_by_process() if device.type == "cuda" else None
    children = psutil.Process(ring.server.pid).children(recursive=True)
    return [held[child.pid] for child in children if held is not None and child.pid in held]


if __name__ == "__main__":
    main()
