"""Whatever the links do, with raw or lossless activations the tokens are those of `generate`."""

import asyncio

import pytest

from molink_scheduler.link.transmission import POLICIES

PROMPTS = [[3 + i] * (1 + 17 * i) for i in range(6)]
MAX_TOKENS = 10
BODY = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}


async def answers_of(tools, server) -> list[list[int]]:
    posts = [
        tools.post(server.url, "/generate", {"prompt_token_ids": prompt, **BODY})
        for prompt in PROMPTS
    ]
    return [answer["token_ids"] for _, answer in await asyncio.gather(*posts)]


@pytest.fixture(scope="module")
def expected(tools, tiny_llama):
    return tools.greedy_reference(tiny_llama, PROMPTS, MAX_TOKENS)


@pytest.mark.parametrize("count, policy", list(enumerate(POLICIES, 1)))
async def test_every_policy_and_count_of_micro_batches_is_exact(
    tools, tiny_llama, expected, count, policy
):
    options = ("--nodes", "3", "--dtype", "float32", "--link", "50:3", "--policy", policy)
    with tools.serving(str(tiny_llama), *options, "--micro-batches", str(count)) as server:
        assert await answers_of(tools, server) == expected
        cluster = await tools.get(server.url, "/cluster")
    links = {(link["from"], link["to"]): link for link in cluster["links"]}
    between = links["stage 0", "stage 1"]
    assert between["policy"] == policy
    assert between["rate_mbps"] > 0 and between["rtt_ms"] > 0
    assert cluster["stages"][0]["micro_batch_count"] == count
    assert not any(stage["frames_refused"] for stage in cluster["stages"])


async def test_lossless_packing_is_exact_and_says_what_it_saved(tools, tiny_llama, expected):
    options = ("--nodes", "2", "--dtype", "float32", "--wire", "lossless")
    with tools.serving(str(tiny_llama), *options) as server:
        assert await answers_of(tools, server) == expected

        async def reported():
            cluster = await tools.get(server.url, "/cluster")
            links = [link for link in cluster["links"] if "wire" in link]
            return cluster if links and links[0]["wire"] == "lossless" else None

        cluster = await tools.eventually(reported)
    assert cluster["wire"]["codec"] == "lossless"


async def test_auto_checks_the_model_and_says_what_it_found(tools, tiny_llama):
    """Random weights: the check decides either way, but it decides and serves."""
    options = ("--nodes", "2", "--dtype", "float32", "--wire", "auto", "--kv-tokens", "512")
    with tools.serving(str(tiny_llama), *options) as server:
        cluster = await tools.get(server.url, "/cluster")
        answers = await answers_of(tools, server)
    assert cluster["wire"]["codec"] in {"int8", "lossless", "raw"}
    assert cluster["wire"]["check_passed"] is (cluster["wire"]["codec"] == "int8")
    assert "greedy tokens" in cluster["wire"]["reason"] or "logits" in cluster["wire"]["reason"]
    assert all(len(answer) == MAX_TOKENS for answer in answers)


async def test_auto_takes_lossless_on_a_slow_link_where_int8_changes_answers(tools, tiny_llama):
    """Random weights in bfloat16 are full of ties, which int8 breaks."""
    options = ("--nodes", "2", "--dtype", "bfloat16", "--wire", "auto", "--link", "1:1")
    with tools.serving(str(tiny_llama), *options, "--kv-tokens", "2048") as server:
        wire = (await tools.get(server.url, "/cluster"))["wire"]
        assert wire["check_passed"] is (wire["codec"] == "int8")
        assert wire["codec"] == "lossless", wire
        assert "Mbps" in wire["reason"]
        assert all(len(answer) == MAX_TOKENS for answer in await answers_of(tools, server))


async def test_a_long_prompt_and_streams_share_slow_links(tools, tiny_llama):
    """Everything finishes when a prompt of 400 tokens meets four streams at 2 Mbps."""
    options = ("--nodes", "3", "--dtype", "float32", "--link", "2:5")
    with tools.serving(str(tiny_llama), *options) as server:
        streams = [
            tools.post(
                server.url,
                "/generate",
                {"prompt_token_ids": [i], "max_tokens": 60, "ignore_eos": True},
            )
            for i in range(3, 7)
        ]
        long = tools.post(server.url, "/generate", {"prompt_token_ids": [9] * 400, "max_tokens": 4})
        answers = await asyncio.gather(*streams, long)
    assert [status for status, _ in answers] == [200] * 5
    assert [len(answer["token_ids"]) for _, answer in answers[:4]] == [60] * 4
