"""Tokens per second of a published model over three stages, beside llama.cpp's RPC.

    python -m tools.real.speed --out DIR [--page]

Both serve the same file, and each stage is a process with one thread. The two take turns, on
loopback and over emulated home lines, in rounds of which the medians count; both are asked through
the same endpoint, by the same client, for the same tokens of prompts that have nothing in common.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random

import click

from molink.bench.served_ring import ServerProcess
from molink.client.api_client import ApiClient
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.real.exactness import GGUF
from tools.real.llama_cpp import llama_cpp_ring, programs
from tools.real.page import write_section
from tools.real.published import cache_folder, fetch, read_manifest
from tools.real.served import import_model

__all__ = ["Figures", "main", "speed_table"]

MODEL = "qwen2.5-coder-0.5b"
STAGES = 3
LINKS = (None, "100:30")
USERS = (1, 4, 8)
PROMPT_TOKENS = 64
ANSWER_TOKENS = 128
LONG_PROMPT_TOKENS = 1_000
CONTEXT_TOKENS = 16_384
"""Of all users together; llama.cpp divides it by their number."""

WORDS = range(100, 100_000)
"""Token ids that prompts are drawn of: whole words and pieces, no special ones."""

Figures = Mapping[str, float]
"""`tokens_per_s_N` by users, and `ttft_s` of a thousand tokens."""


@experiment
@click.option("--rounds", default=3, show_default=True, help="Of which the medians count.")
@click.option("--answer-tokens", default=ANSWER_TOKENS, show_default=True)
@click.option("--page", is_flag=True, help="Write the table into docs/benchmarks/real.md.")
def main(out: Path, rounds: int, answer_tokens: int, page: bool) -> None:
    """Print the tokens per second of MoLink and of llama.cpp's RPC."""
    programs()
    model = next(one for one in read_manifest() if one.name == MODEL)
    gguf = fetch(model, cache_folder())
    folder = cache_folder() / f"{MODEL}-made" / "gguf"
    import_model(gguf, folder, GGUF)
    found: dict[str, list[Figures]] = {}
    for number in range(rounds):
        for link in LINKS:
            for system in _in_turn(number):
                ring = _molink(folder, link) if system == "MoLink" else _llama_cpp(gguf, link)
                figures = asyncio.run(_measured(ring, number, answer_tokens))
                show(f"{system}, {link or 'loopback'}: {_rounded(figures)}")
                found.setdefault(_name(system, link), []).append(figures)
    middle = {name: _medians(runs) for name, runs in found.items()}
    write_report(out, "real_speed", {"rounds": found, "medians": middle}, "real_speed")
    show(speed_table(middle))
    if page:
        write_section("speed", speed_table(middle))


def _in_turn(number: int) -> Sequence[str]:
    systems = ("MoLink", "llama.cpp")
    return systems if number % 2 == 0 else systems[::-1]


def _name(system: str, link: str | None) -> str:
    return f"{system}, {link or 'loopback'}"


def _rounded(figures: Figures) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in figures.items())


def _medians(runs: Sequence[Figures]) -> Figures:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def speed_table(middle: Mapping[str, Figures]) -> str:
    """Both systems' figures by link, and MoLink's in multiples of llama.cpp's."""
    lines = list[list[str]]()
    for link in LINKS:
        ours, theirs = (middle[_name(system, link)] for system in _in_turn(0))
        for system, figures in (("MoLink", ours), ("llama.cpp RPC", theirs)):
            lines.append([link or "loopback", system, *(f"{one:.2f}" for one in figures.values())])
        ratios = (f"{ours[name] / theirs[name]:.2f} x" for name in ours)
        lines.append([link or "loopback", "ratio", *ratios])
    users = (f"tokens/s, {count} user{'s' if count > 1 else ''}" for count in USERS)
    return markdown_table(["link", "system", *users, "TTFT of 1,000 tokens, s"], lines)


@asynccontextmanager
async def _molink(folder: Path, link: str | None) -> AsyncIterator[str]:
    lengths = ("--kv-tokens", str(CONTEXT_TOKENS), "--quiet")
    words = ["--nodes", str(STAGES), "--threads", "1", *lengths]
    server = await ServerProcess.start(str(folder), [*words, *(["--link", link] if link else [])])
    try:
        yield server.url
    finally:
        await server.stop()


def _llama_cpp(gguf: Path, link: str | None) -> AbstractAsyncContextManager[str]:
    return llama_cpp_ring(gguf, STAGES, link, CONTEXT_TOKENS, max(USERS))


async def _measured(
    ring: AbstractAsyncContextManager[str], seed: int, answer_tokens: int
) -> Figures:
    """One system's figures, warmed up with what is measured afterwards."""
    random = Random(seed)
    async with ring as url, ApiClient(url) as client:
        await _asked(client, _prompt(random, LONG_PROMPT_TOKENS), 8)
        figures = dict[str, float]()
        for users in USERS:
            prompts = [_prompt(random, PROMPT_TOKENS) for _ in range(users)]
            began_s = time.perf_counter()
            await asyncio.gather(*(_asked(client, one, answer_tokens) for one in prompts))
            took_s = time.perf_counter() - began_s
            figures[f"tokens_per_s_{users}"] = users * answer_tokens / took_s
        figures["ttft_s"] = await _asked(client, _prompt(random, LONG_PROMPT_TOKENS), 2)
        return figures


def _prompt(random: Random, tokens: int) -> list[int]:
    return random.choices(WORDS, k=tokens)


async def _asked(client: ApiClient, prompt: Sequence[int], tokens: int) -> float:
    """Ask for so many tokens; seconds to the first of them."""
    began_s, first_s = time.perf_counter(), 0.0
    fixed = {"temperature": 0.0, "ignore_eos": True, "stream": True}
    body = {"prompt": list(prompt), "max_tokens": tokens, **fixed}
    async for _ in client.stream("/v1/completions", body):
        first_s = first_s or time.perf_counter() - began_s
    return first_s


if __name__ == "__main__":
    main()
