"""Tokens through the REST API and three processes are the tokens of `generate`."""

import asyncio
from itertools import pairwise
from random import Random

import pytest

MAX_TOKENS = 12


def prompts_of_mixed_length(count: int = 8) -> list[list[int]]:
    random = Random(3)
    return [[random.randrange(3, 97) for _ in range(1 + 6 * i)] for i in range(count)]


async def test_eight_requests_in_flight_are_each_as_alone(tools, tiny_server, tiny_llama):
    prompts = prompts_of_mixed_length()
    body = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    answers = await asyncio.gather(
        *(
            tools.post(tiny_server.url, "/generate", {"prompt_token_ids": prompt, **body})
            for prompt in prompts
        )
    )
    assert [status for status, _ in answers] == [200] * len(prompts)
    expected = tools.greedy_reference(tiny_llama, prompts, MAX_TOKENS)
    assert [answer["token_ids"] for _, answer in answers] == expected
    assert {answer["finish_reason"] for _, answer in answers} == {"length"}
    assert {answer["text"] for _, answer in answers} == {""}


async def test_a_seed_draws_the_same_alone_and_in_company(tools, tiny_server):
    body = {
        "prompt_token_ids": [5, 6, 7, 8],
        "max_tokens": 20,
        "temperature": 1.3,
        "top_p": 0.9,
        "repetition_penalty": 1.2,
        "seed": 42,
        "ignore_eos": True,
    }
    _, alone = await tools.post(tiny_server.url, "/generate", body)
    company = [{**body, "seed": seed, "prompt_token_ids": [9] * seed} for seed in range(1, 6)]
    together = await asyncio.gather(
        *(tools.post(tiny_server.url, "/generate", b) for b in (*company, body))
    )
    assert together[-1][1]["token_ids"] == alone["token_ids"]
    assert together[0][1]["token_ids"] != alone["token_ids"]


async def test_preempted_requests_lose_no_token(tools, tiny_llama):
    """KV for two of the five sequences: they wait, are preempted, recomputed, and exact."""
    prompts = [[3 + i] * 20 for i in range(5)]
    options = ("--nodes", "2", "--dtype", "float32", "--kv-tokens", "128", "--span-tokens", "16")
    with tools.serving(str(tiny_llama), *options) as server:
        body = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
        answers = await asyncio.gather(
            *(
                tools.post(server.url, "/generate", {"prompt_token_ids": prompt, **body})
                for prompt in prompts
            )
        )
        cluster = await tools.get(server.url, "/cluster")
    expected = tools.greedy_reference(tiny_llama, prompts, 40)
    assert [answer["token_ids"] for _, answer in answers] == expected
    assert cluster["stages"][0]["kv_tokens_capacity"] == 128


async def test_a_sampled_end_token_ends_the_answer(tools, tiny_server, tiny_llama):
    prompt = [5, 6, 7, 8]
    expected = tools.greedy_reference(tiny_llama, [prompt], 10)[0]
    ending = expected[3]
    body = {"prompt_token_ids": prompt, "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    _, answer = await tools.post(tiny_server.url, "/generate", {**body, "stop_token_ids": [ending]})
    assert answer["token_ids"] == expected[: expected.index(ending) + 1]
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize("family", ["gemma4", "gemma4 E2B", "qwen3_5"])
async def test_the_text_model_of_a_checkpoint_that_takes_pictures(tools, tmp_path, family):
    from tests.executor.tiny_models import generate
    from tests.executor.tiny_wrappers import save_wrapper

    whole = save_wrapper(family, tmp_path)
    prompts = prompts_of_mixed_length(4)
    options = ("--nodes", "3", "--layers", "0-1,1-3,3-5", "--dtype", "float32")
    with tools.serving(str(tmp_path), *options) as server:
        body = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
        answers = await asyncio.gather(
            *(
                tools.post(server.url, "/generate", {"prompt_token_ids": prompt, **body})
                for prompt in prompts
            )
        )
    expected = [generate(whole, prompt, MAX_TOKENS) for prompt in prompts]
    assert [answer.get("token_ids") for _, answer in answers] == expected


@pytest.mark.parametrize("name", ["Gemma 4 E2B", "Gemma 4 E4B"])
async def test_layers_that_share_kv_and_read_token_ids(tools, tmp_path, name):
    """Published settings in miniature, three uneven stages; some requests are preempted."""
    from tests.executor.test_tied_layers import cuts_of, small_model
    from tests.executor.tiny_models import generate

    whole = small_model(name)
    whole.save_pretrained(tmp_path)
    prompts = prompts_of_mixed_length()
    layers = ",".join(f"{start}-{end}" for start, end in pairwise(cuts_of(whole)))
    options = ("--nodes", "3", "--layers", layers, "--dtype", "float32")
    with tools.serving(str(tmp_path), *options, "--kv-tokens", "160", "--span-tokens", "16") as one:
        body = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
        answers = await asyncio.gather(
            *(
                tools.post(one.url, "/generate", {"prompt_token_ids": prompt, **body})
                for prompt in prompts
            )
        )
    expected = [generate(whole, prompt, MAX_TOKENS) for prompt in prompts]
    assert [answer.get("token_ids") for _, answer in answers] == expected


async def test_a_hybrid_whose_first_stages_keep_states_only(tools, tmp_path):
    """Qwen3.5 in miniature: KV for two or three requests at a time, the others wait."""
    from tests.executor.recurrent.hybrids import small_model
    from tests.executor.tiny_models import generate

    whole = small_model("Qwen3.5 27B")
    whole.save_pretrained(tmp_path)
    prompts = prompts_of_mixed_length()
    options = ("--nodes", "3", "--layers", "0-1,1-3,3-4", "--dtype", "float32")
    with tools.serving(str(tmp_path), *options, "--kv-tokens", "160", "--span-tokens", "16") as one:
        body = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
        answers = await asyncio.gather(
            *(
                tools.post(one.url, "/generate", {"prompt_token_ids": prompt, **body})
                for prompt in prompts
            )
        )
    expected = [generate(whole, prompt, MAX_TOKENS) for prompt in prompts]
    assert [answer.get("token_ids") for _, answer in answers] == expected
