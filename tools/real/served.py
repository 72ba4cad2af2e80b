"""What MoLink answers for a model: `molink serve` in processes of its own, asked through REST.

Shapes as in `scores`: T places, K words named at each.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from molink.bench.served_ring import ServerProcess
from molink.client.api_client import ApiClient
from molink.errors import UserError
from tools.real.scores import TOP, Scores

__all__ = ["Form", "Served", "Setting", "ask_all", "import_model", "measured"]

KV_TOKENS = 16_384
"""Room for twenty prompts of which one is long, and for their answers."""

MODEL_TOKENS_MAX = 8_192

WINDOWS_AT_ONCE = 4
"""Texts that are scored at a time; their scores are some megabytes each."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a model's weights are stored."""

    name: str
    words: tuple[str, ...] = ()
    """Of `molink import`, beside its source."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way of serving a model."""

    form: Form
    dtype: str
    stages: int
    link: str | None = None

    @property
    def name(self) -> str:
        """As the page shows it."""
        stages = "1 stage" if self.stages == 1 else f"{self.stages} stages"
        link = f", {self.link}" if self.link else ""
        return f"{self.form.name}, {self.dtype}, {stages}{link}"

    def options(self) -> list[str]:
        """Command-line options of `molink serve` for this setting."""
        link = ["--link", self.link] if self.link else []
        lengths = ["--kv-tokens", str(KV_TOKENS), "--max-model-len", str(MODEL_TOKENS_MAX)]
        return ["--nodes", str(self.stages), "--dtype", self.dtype, "--quiet", *link, *lengths]


@dataclass(slots=True)
class Served:
    """What a setting has answered."""

    prompts: dict[str, list[int]] = field(default_factory=dict)
    """Tokens of each prompt, as the server cuts them."""
    answers: dict[str, list[int]] = field(default_factory=dict)
    """Greedy tokens."""
    windows: list[Scores] = field(default_factory=list)
    tokens_per_s: float = 0.0
    """Of all answers together."""


def import_model(source: Path, folder: Path, form: Form) -> None:
    """Run `molink import`, unless it was run before. Raises UserError with what it said."""
    if (folder / "config.json").exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = ["-m", "molink.cli.main", "import", str(source), "--out", str(folder), "--quiet"]
    done = subprocess.run([sys.executable, *words, *form.words], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise UserError(f"molink import failed: {said}")


async def measured(
    folder: Path,
    setting: Setting,
    prompts: dict[str, Any],
    answer_tokens: int,
    windows: Sequence[Sequence[int]],
) -> Served:
    """Serve a checkpoint, ask all prompts at once (text, tokens or messages) and score the windows.

    Raises MolinkError when it does not start, or refuses or fails.
    """
    server = await ServerProcess.start(str(folder), setting.options())
    try:
        async with ApiClient(server.url) as client:
            served = Served({name: await _tokens(client, one) for name, one in prompts.items()})
            began_s = time.perf_counter()
            served.answers = await ask_all(client, served.prompts, answer_tokens)
            count = sum(len(answer) for answer in served.answers.values())
            served.tokens_per_s = count / (time.perf_counter() - began_s)
            served.windows = await _scored(client, windows)
            return served
    finally:
        await server.stop()


async def _tokens(client: ApiClient, prompt: Any) -> list[int]:
    """What the server makes of a text or a conversation; token ids as they are."""
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        return prompt
    kind = "prompt" if isinstance(prompt, str) else "messages"
    tokens: list[int] = (await client.post("/tokenize", {kind: prompt}))["tokens"]
    return tokens


async def ask_all(
    client: ApiClient, prompts: dict[str, list[int]], tokens: int
) -> dict[str, list[int]]:
    """Greedy answers of a fixed length, asked for at the same time."""

    async def ask(prompt: list[int]) -> list[int]:
        fixed = {"temperature": 0.0, "ignore_eos": True, "max_tokens": tokens}
        answer = await client.post("/generate", {"prompt_token_ids": prompt, **fixed})
        found: list[int] = answer["token_ids"]
        return found

    answers = await asyncio.gather(*(ask(prompt) for prompt in prompts.values()))
    return dict(zip(prompts, answers, strict=True))


async def _scored(client: ApiClient, windows: Sequence[Sequence[int]]) -> list[Scores]:
    """Scores of texts, as lm-eval asks for them: the prompt echoed, nothing generated."""
    places = asyncio.Semaphore(WINDOWS_AT_ONCE)

    async def score(window: Sequence[int]) -> Scores:
        asked = {"prompt": list(window), "max_tokens": 0, "echo": True, "prompt_logprobs": TOP}
        async with places:
            answer = await client.post("/v1/completions", asked)
        return scores_of_entries(answer["choices"][0]["prompt_logprobs"], window)

    return list(await asyncio.gather(*(score(window) for window in windows)))


def scores_of_entries(
    entries: Sequence[dict[str, dict[str, Any]] | None], window: Sequence[int]
) -> Scores:
    """vLLM's `prompt_logprobs` as tensors; the first token has none."""
    own, ids, top = list[float](), list[list[int]](), list[list[float]]()
    for entry, token in zip(entries[1:], window[1:], strict=True):
        assert entry is not None
        own.append(entry[str(token)]["logprob"])
        named = sorted(entry.items(), key=lambda item: int(item[1]["rank"]))[:TOP]
        ids.append([int(token_id) for token_id, _ in named])
        top.append([float(one["logprob"]) for _, one in named])
    return Scores(torch.tensor(own), torch.tensor(ids), torch.tensor(top))
