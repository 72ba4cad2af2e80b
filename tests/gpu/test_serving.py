"""A ring of three processes on one card loses a stage, and goes on with its KV and its cache."""

import asyncio

import psutil

from tests.end_to_end.conftest import (
    eventually,
    get,
    greedy_reference,
    post,
    save_tiny_llama,
    serving,
)
from tests.gpu.device import DEVICE, needs_card

PROMPT = [5 + place % 90 for place in range(100)]
ANSWER_TOKENS = 120
OPTIONS = ("--nodes", "3", "--dtype", "float32", "--kv-tokens", "4096", "--link", "100:20")


@needs_card
async def test_a_stage_on_a_card_is_lost_and_no_token_is_another_one(tmp_path):
    model = save_tiny_llama(tmp_path / "tiny-llama")
    [expected] = greedy_reference(model, [PROMPT], ANSWER_TOKENS)
    body = {"prompt_token_ids": PROMPT, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    body |= {"ignore_eos": True}
    with serving(str(model), *OPTIONS, "--device", str(DEVICE), waits=True) as server:
        asked = asyncio.create_task(post(server.url, "/generate", body))

        async def answers():
            requests = (await get(server.url, "/cluster/requests"))["requests"]
            return requests and requests[0]["tokens"] >= 5

        await eventually(answers, within_s=60.0)
        before = await get(server.url, "/cluster")
        psutil.Process(before["stages"][1]["pid"]).kill()
        status, answer = await asked
        assert (status, answer["token_ids"]) == (200, expected)
        after = await get(server.url, "/cluster")
        kinds = [one["kind"] for one in (await get(server.url, "/cluster/events"))["events"]]
        assert "ring_resumed" in kinds and after["epoch"] > before["epoch"]
        status, again = await post(server.url, "/generate", body)
        assert (status, again["token_ids"]) == (200, expected)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
        assert server.stop() == 0
