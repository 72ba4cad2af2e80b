"""Eight mixed requests to a published model in miniature, compared with `generate`."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from molink.checkpoint.layers_together import layers_together
from molink.engine.self_test import miniature
from tests.engine.recurrent.hybrids import small_model
from tests.engine.recurrent.mixed_requests import MixedRequests
from tests.engine.ring_driver import load_stages
from tests.engine.tiny_models import generate

PROMPT_TOKENS = (1, 5, 33, 70, 131, 18, 2, 47)
NEW_TOKENS = 12
NEAR_TIE = 0.1
"""A router near a tie sends a row to another expert after one rounding more or less, and the two
best logits change by up to 0.05 each."""

LAYERS_MIN = 7
LAYERS_OF = {"Gemma 4": 6, "Gemma 4 E2B": 8, "Gemma 4 E4B": 8}
"""Gemma 4's config class makes the last layer a full one, which is each sixth; where layers share
KV, those of their own before them are enough for two stages."""


@dataclass(frozen=True)
class Compared:
    """How answers stand to those of `generate`."""

    equal: int
    near_ties: int
    """Answers that part from it where the two best logits are within NEAR_TIE."""
    restarts: int = 0
    inside: int = 0
    """Decode steps that were computed inside of prompts' steps."""


def mixed_answers(name: str, directory: Path, device: str = "cpu") -> Compared:
    """Over three uneven stages in one process, fp32: uneven spans, requests dropped and computed
    again, decode steps inside of prompts' steps."""
    whole, cuts = saved_miniature(name, directory)
    prompts = prompts_for(whole)
    stages = load_stages(directory, cuts, device=device)
    mixed = MixedRequests(stages, prompts, NEW_TOKENS, random.Random(5))
    answers = mixed.run()
    assert min(mixed.mixed, mixed.restarts, mixed.inside) >= 2
    return compared(whole, prompts, answers, mixed.restarts, mixed.inside)


def saved_miniature(name: str, directory: Path) -> tuple[Any, tuple[int, ...]]:
    """Write a checkpoint of several shards; returns the whole model, and cuts into uneven stages
    of which the outer ones have one and two layers, the last more where more stay together."""
    with pytest.MonkeyPatch.context() as patch:
        known = [LAYERS_OF[start] for start in LAYERS_OF if name.startswith(start)]
        patch.setattr(miniature, "LAYERS_MIN", max(known, default=LAYERS_MIN))
        whole = small_model(name)
    whole.save_pretrained(directory, max_shard_size="120KB")
    count = whole.config.num_hidden_layers
    together = layers_together(whole.config.to_dict(), count)
    last = min((first for first, _ in together), default=count)
    return whole, (0, 1, min(last, count - 2), count)


def prompts_for(whole: Any) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(1, whole.config.vocab_size, (tokens,), generator=generator).tolist()
        for tokens in PROMPT_TOKENS
    ]


def compared(
    whole: Any,
    prompts: Sequence[list[int]],
    answers: Sequence[list[int]],
    restarts: int = 0,
    inside: int = 0,
) -> Compared:
    equal = near_ties = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        wanted = generate(whole, prompt, len(answer))
        equal += answer == wanted
        near_ties += answer != wanted and is_near_tie(whole, prompt, answer, wanted)
    return Compared(equal, near_ties, restarts, inside)


def is_near_tie(whole: Any, prompt: list[int], answer: list[int], wanted: list[int]) -> bool:
    """Whether the answers part where the whole model could as well have said the other word."""
    same = next(n for n, (a, b) in enumerate(zip(answer, wanted, strict=True)) if a != b)
    with torch.inference_mode():
        logits = whole(torch.tensor([prompt + wanted[:same]]), use_cache=False).logits[0, -1]
    best = logits.topk(2)
    return answer[same] in best.indices and float(best.values[0] - best.values[1]) < NEAR_TIE
