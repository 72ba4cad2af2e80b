"""A ring whose head drafts answers as one that does not, in fewer rounds."""

import asyncio

import pytest

from molink.models import DEMO_MODEL_DIR

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
    assert copying["rounds"] > 10
    assert copying["tokens_per_round"] > 1.5


async def test_a_model_that_drafts_for_itself_is_always_right(tools, demo, without):
    """Greedy and drawn, as each user's own seed draws the drafts."""
    options = (*OPTIONS, "--drafter", str(demo), "--draft-width-max", "4")
    with tools.serving(str(demo), *options) as server:
        for temperature, answers in without.items():
            assert await answers_of(tools, server, temperature=temperature) == answers
        model = (await drafters_of(tools, server))[demo.name]
    assert model["acceptance"] > 0.99
    assert model["width"] <= 4
    assert model["tokens_per_round"] > 1.5


@pytest.fixture(scope="module")
def demo():
    return DEMO_MODEL_DIR


@pytest.fixture(scope="module")
async def without(tools, demo):
    """Answers without drafts, by temperature."""
    with tools.serving(str(demo), *OPTIONS) as server:
        found = {one: await answers_of(tools, server, temperature=one) for one in (0.0, 0.8)}
        (ring,) = (await tools.get(server.url, "/cluster"))["rings"]
        assert ring["drafters"] == []
        return found


async def test_a_drafter_of_other_words_is_named_and_the_ring_serves_without(
    tools, tiny_llama, expected, demo
):
    with tools.serving(str(tiny_llama), *OPTIONS, "--drafter", str(demo)) as server:
        assert await answers_of(tools, server, temperature=0) == expected
