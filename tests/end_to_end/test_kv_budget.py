"""A request says which share of its prompt's KV is kept, and a real ring answers by it."""

import asyncio

import psutil
import pytest
import torch
from transformers import LlamaForCausalLM

from molink.models import DEMO_MODEL_DIR
from tests.end_to_end.forked.asking import fork_of
from tests.engine.cut_reference import Cut, generate_cut
from tests.engine.tiny_models import save_tiny

PROMPT = [3 + 7 * place * place % 1900 for place in range(150)]
TOKENS = 30
OPTIONS = ("--nodes", "3", "--dtype", "float32", "--link", "100:8", "--cache-ram-gb", "0")
GREEDY = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


GENERATE = ("/generate", GREEDY | {"prompt_token_ids": PROMPT})
COMPLETE = ("/v1/completions", GREEDY | {"model": "demo", "prompt": PROMPT})


async def answered(tools, server, budget: float) -> dict:
    path, body = GENERATE
    status, answer = await tools.post(server.url, path, body | {"kv_budget": budget})
    assert status == 200, answer
    return answer


@pytest.fixture(scope="module")
def expected(tools) -> dict[float, list[int]]:
    """By budget: what the library's model answers that does not see what was left out."""
    model = LlamaForCausalLM.from_pretrained(DEMO_MODEL_DIR, dtype=torch.float32).eval()
    cuts = {budget: Cut(len(PROMPT), round(budget * len(PROMPT))) for budget in (0.5, 0.25)}
    answers = {budget: generate_cut(model, PROMPT, TOKENS, cut) for budget, cut in cuts.items()}
    [answers[1]] = tools.greedy_reference(DEMO_MODEL_DIR, [PROMPT], TOKENS)
    assert len({tuple(answer) for answer in answers.values()}) == 3, "each cut shows"
    return answers


async def test_a_ring_keeps_what_was_asked_for_also_after_a_loss(tools, expected):
    """By both APIs; the middle stage is killed in mid-answer, which goes on with the same keys."""
    with tools.serving("demo", *OPTIONS) as server:
        for budget in (1, 0.25, 0.5):
            answer = await answered(tools, server, budget)
            assert answer["token_ids"] == expected[budget], budget
        path, body = COMPLETE
        status, completed = await tools.post(server.url, path, body | {"kv_budget": 0.5})
        assert (status, completed["choices"][0]["text"]) == (200, answer["text"]), completed
        for budget in ("x", 0, 2):
            await is_refused(tools, server, budget)
        asked = asyncio.create_task(answered(tools, server, 0.25))
        await in_mid_answer(tools, server)
        stages = (await tools.get(server.url, "/cluster"))["stages"]
        psutil.Process(fork_of(stages[1]["pid"])).kill()
        assert (await asked)["token_ids"] == expected[0.25]
        assert (await answered(tools, server, 0.5))["token_ids"] == expected[0.5]
        told = (await tools.get(server.url, "/cluster/requests"))["requests"]
        assert [len(one["attempts"]) for one in told].count(2) == 1, "it was answering"


async def is_refused(tools, server, budget) -> None:
    for path, body in (GENERATE, COMPLETE):
        status, answer = await tools.post(server.url, path, body | {"kv_budget": budget})
        assert (status, answer["error"]["param"]) == (400, "kv_budget"), answer
        assert "kv_budget" in answer["error"]["message"]


async def in_mid_answer(tools, server) -> None:
    async def has_some():
        told = (await tools.get(server.url, "/cluster/requests"))["requests"]
        return any(one["finish_reason"] is None and one["tokens"] >= 5 for one in told)

    await tools.eventually(has_some, within_s=60.0)


async def test_latent_rows_are_not_cut(tools, tmp_path):
    """And such a ring answers whoever leaves the budget out."""
    save_tiny("deepseek_v3", tmp_path)
    with tools.serving(str(tmp_path), "--nodes", "2", "--dtype", "float32") as server:
        body = GREEDY | {"prompt_token_ids": [5, 9], "kv_budget": 0.5}
        status, answer = await tools.post(server.url, "/generate", body)
        assert status == 400 and "leave 'kv_budget' out" in answer["error"]["message"], answer
        status, answer = await tools.post(server.url, "/generate", body | {"kv_budget": 1})
        assert (status, len(answer["token_ids"])) == (200, TOKENS), answer
