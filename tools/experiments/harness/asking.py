"""One prompt asked of a ring: its answer, how soon it began, and how much of it was cached."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from molink.bench.served_ring import ServedRing

__all__ = ["Answered", "ask", "random_prompt"]


@dataclass(frozen=True, slots=True)
class Answered:
    """A greedy answer of a fixed length."""

    tokens: list[int]
    ttft_s: float
    ended_at: float
    """On the clock of `time.perf_counter`."""
    cached_tokens: int
    """Of the prompt."""


def random_prompt(ring: ServedRing, tokens: int) -> list[int]:
    """Tokens drawn by the ring's seed."""
    return [ring.random.randrange(ring.model.vocabulary_size) for _ in range(tokens)]


async def ask(ring: ServedRing, prompt: Sequence[int], answer_tokens: int) -> Answered:
    """Ask for so many tokens. Raises MolinkError when the ring refuses or fails."""
    fixed = {"temperature": 0.0, "ignore_eos": True, "stream": True}
    body = {"prompt_token_ids": list(prompt), "max_tokens": answer_tokens, **fixed}
    asked_at, first_at, tokens, usage = time.perf_counter(), 0.0, list[int](), dict[str, Any]()
    async for event in ring.client.stream("/generate", body):
        tokens += event.get("token_ids", ())
        first_at = first_at or (time.perf_counter() if tokens else 0.0)
        usage = event.get("usage") or usage
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    return Answered(tokens, first_at - asked_at, time.perf_counter(), cached_tokens)
