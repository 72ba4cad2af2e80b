"""A ring whose head drafts answers as one that does not, in fewer rounds."""

import asyncio

import pytest

PROMPTS = [[3 + i, 5, 9 + i] * (5 + 2 * i) for i in range(4)]
MAX_TOKENS = 80
OPTIONS = ("--nodes", "3", "--dtype", "float32", "--link", "100:15", "--kv-tokens", "1024")


async def answers_of(tools, server, **more) -> list[list[int]]:
    body = {"max_tokens": MAX_TOKENS, "ignore_eos": True} | more
    posts = [
        tools.post(server.url, "/generate", {"prompt_token_ids": prompt, "seed": 5, **body})
        for prompt in PROMPTS
    ]
    return [answer["token_ids"] for _, answer in await asyncio.gather(*posts)]


@pytest.fixture(scope="module")
def expected(tools, tiny_llama):
    return tools.greedy_reference(tiny_llama, PROMPTS, MAX_TOKENS)


async def drafters_of(tools, server) -> dict:
    """Drafters of the ring by name, once its head has told of some."""

    async def told():
        (ring,) = (await tools.get(server.url, "/cluster"))["rings"]
        return {one["name"]: one for one in ring["drafters"]}

    return await tools.eventually(told)


async def test_a_ring_that_copies_answers_as_one_that_does_not(tools, tiny_llama, expected):
    """A random model's greedy text runs in circles, which is what a copy is."""
    with tools.serving(str(tiny_llama), *OPTIONS, "--drafter", "copy") as server:
        assert await answers_of(tools, server, temperature=0) == expected
        copying = (await drafters_of(tools, server))["copy"]
    assert copying["rounds"] > 0
    assert copying["tokens_per_round"] > 1
