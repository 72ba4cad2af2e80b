"""Whatever the links do, with raw or lossless activations the tokens are those of `generate`."""

import asyncio

import pytest

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


@pytest.mark.parametrize("count, wire", [(1, "raw"), (5, "lossless")])
async def test_counts_of_micro_batches_are_exact(tools, tiny_llama, expected, count, wire):
    """Lossless packing says that it packs."""
    options = ("--nodes", "2", "--dtype", "float32", "--link", "50:3")
    more = ("--micro-batches", str(count), "--wire", wire)
    with tools.serving(str(tiny_llama), *options, *more) as server:
        assert await answers_of(tools, server) == expected

        async def reported():
            cluster = await tools.get(server.url, "/cluster")
            links = [link for link in cluster["links"] if "wire" in link]
            return cluster if links and links[0]["wire"] == wire else None

        cluster = await tools.eventually(reported)
    assert cluster["wire"]["codec"] == wire
    links = {(link["from"], link["to"]): link for link in cluster["links"]}
    between = links["stage 0", "stage 1"]
    assert between["rate_mbps"] > 0 and between["rtt_ms"] > 0
    assert cluster["stages"][0]["micro_batch_count"] == count
    assert not any(stage["frames_refused"] for stage in cluster["stages"])


async def test_auto_takes_lossless_on_a_slow_link_where_int8_changes_answers(tools, tiny_llama):
    """Random weights in bfloat16 are full of ties, which int8 breaks. Everything finishes when a
    prompt of 400 tokens meets four streams there."""
    options = ("--nodes", "2", "--dtype", "bfloat16", "--wire", "auto", "--link", "1:1")
    with tools.serving(str(tiny_llama), *options, "--kv-tokens", "2048") as server:
        wire = (await tools.get(server.url, "/cluster"))["wire"]
        assert wire["check_passed"] is (wire["codec"] == "int8")
        assert wire["codec"] == "lossless", wire
        assert "Mbps" in wire["reason"]
        assert all(len(answer) == MAX_TOKENS for answer in await answers_of(tools, server))
        stream = {"max_tokens": 60, "ignore_eos": True}
        bodies = [{"prompt_token_ids": [i], **stream} for i in range(3, 7)]
        bodies.append({"prompt_token_ids": [9] * 400, "max_tokens": 4})
        posts = [tools.post(server.url, "/generate", body) for body in bodies]
        answers = await asyncio.gather(*posts)
    assert [status for status, _ in answers] == [200] * 5
    assert [len(answer["token_ids"]) for _, answer in answers[:4]] == [60] * 4
