"""Two rings: turns of a chat go where the ones before were, and targets are kept or refused."""

import asyncio

from tests.end_to_end.clusters import cluster

TURNS = 3


async def test_turns_go_to_the_ring_that_has_their_chat(tools, tiny_llama, tmp_path):
    options = ("--broker", "embedded", "--min-nodes", "2", "--dtype", "float32")
    with cluster(tmp_path, tiny_llama, *options) as made:
        for name in ("anna", "ben"):
            made.join(name, "--threads", "1", known_steps=True)

        async def two_serve():
            return len((await tools.get(made.url, "/cluster"))["rings"]) == 2

        assert await tools.eventually(two_serve, within_s=120)
        chats = [[one] * 48 for one in (5, 6)]
        cached = []
        for _ in range(TURNS):
            bodies = [  # Long enough for one to run while the other comes.
                {"prompt_token_ids": chat, "max_tokens": 96, "temperature": 0, "ignore_eos": True}
                for chat in chats
            ]
            told = await asyncio.gather(
                *(tools.post(made.url, "/generate", body) for body in bodies)
            )
            assert [status for status, _ in told] == [200, 200]
            cached += [one["usage"]["prompt_tokens_details"]["cached_tokens"] for _, one in told]
            chats = [
                [*chat, *one["token_ids"], *[9] * 8]
                for chat, (_, one) in zip(chats, told, strict=True)
            ]
        assert cached[:2] == [0, 0]
        assert min(cached[2:]) >= 48
        requests = (await tools.get(made.url, "/cluster/requests"))["requests"]
        assert {one["attempts"][0]["ring"] for one in requests} == {0, 1}
        assert all(one["forecast_ttft_s"] > 0 and one["ttft_s"] > 0 for one in requests)

        hasty = {"prompt_token_ids": [7] * 64, "max_tokens": 4, "ttft_target_s": 1e-6}
        status, answer = await tools.post(made.url, "/generate", hasty)
        assert status == 429 and "ttft_target_s" in answer["error"]["message"]
