"""Families with published settings in miniature answer what `generate` does: `make families`.

Eight mixed requests over three uneven stages in fp32. In one process all that a scheduler may do
is forced: spans of 1 to 100 tokens, requests dropped and computed again, decode steps inside of
prompts' steps. Through REST three processes do it by themselves: their KV holds the prompts of four
requests, and not their answers.

Where a model has experts, an answer may part from `generate`'s at a near-tie: one rounding more or
less sends a row to another expert. It is accepted where the whole model's two best logits are
within NEAR_TIE there, and counted.
"""

import asyncio
from itertools import pairwise

import pytest

from tests.engine.recurrent.hybrids import HYBRIDS, WITH_EXPERTS
from tests.engine.recurrent.mixed_answers import (
    PROMPT_TOKENS,
    Compared,
    compared,
    mixed_answers,
    prompts_for,
    saved_miniature,
)

pytestmark = pytest.mark.families

FAMILIES = (
    *HYBRIDS,
    "Jamba Mini",
    "Gemma 4 12B",
    "Gemma 4 26B-A4B",
    "Gemma 4 31B",
    "Gemma 4 E2B",
    "Gemma 4 E4B",
    "Hunyuan-A13B",
    "GLM-4.7-Flash",
    "DeepSeek-V2-Lite",
    "DeepSeek-V3 and Kimi K2",
)

NEW_TOKENS = 40
KV_TOKENS = 240
"""The first four requests fit in with their prompts, and not with their answers."""


@pytest.mark.parametrize("name", FAMILIES)
def test_in_one_process(name, tmp_path, cell):
    cell(name, "in one process")
    found = mixed_answers(name, tmp_path)
    check(name, found, found.restarts, found.inside, cell)


@pytest.mark.parametrize("name", FAMILIES)
async def test_through_rest(name, tools, tmp_path, cell):
    cell(name, "through REST")
    whole, cuts = saved_miniature(name, tmp_path / "model")
    prompts, log = prompts_for(whole), tmp_path / "events"
    layers = ",".join(f"{start}-{end}" for start, end in pairwise(cuts))
    options = ("--nodes", "3", "--layers", layers, "--dtype", "float32")
    options += ("--kv-tokens", str(KV_TOKENS), "--span-tokens", "16", "--event-log", str(log))
    body = {"max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    with tools.serving(str(tmp_path / "model"), *options) as server:
        answers = await asyncio.gather(
            *(
                tools.post(server.url, "/generate", {"prompt_token_ids": prompt, **body})
                for prompt in prompts
            )
        )
    assert [status for status, _ in answers] == [200] * len(prompts)
    found = compared(whole, prompts, [answer["token_ids"] for _, answer in answers])
    logs = [log.with_suffix(f".{stage}").read_text() for stage in (1, 2)]
    restarts, inside = preempted(logs[0]), sum(map(steps_inside, logs))
    assert restarts
    check(name, found, restarts, inside, cell)


def preempted(log: str) -> int:
    """Times that a stage was told to drop a request, but for their ends."""
    return log.count('"ReleaseArrived"') - len(PROMPT_TOKENS)


def steps_inside(log: str) -> int:
    """Steps that a stage began between two layers of another's."""
    between = (line for line in log.splitlines() if line.startswith('["between_layers"'))
    return sum('"RunBatch"' in line for line in between)


def check(name: str, found: Compared, restarts: int, inside: int, cell) -> None:
    ties = f", {found.near_ties} part at a near-tie" if found.near_ties else ""
    told = f"{restarts} computed again, {inside} steps inside others"
    cell.found = f"{found.equal} of {len(PROMPT_TOKENS)} equal{ties}; {told}"
    assert found.equal == len(PROMPT_TOKENS) or name in WITH_EXPERTS
    assert found.equal + found.near_ties == len(PROMPT_TOKENS)
