"""One ring of three processes: what the REST API gives and tells of it, token for token."""

import asyncio

import aiohttp
import pytest

from tests.end_to_end.conftest import eventually, prompts_of_mixed_length, serving
from tests.engine.recurrent.hybrids import small_model
from tests.sweeps import swept

MAX_TOKENS = 12
CHOSEN = ({"temperature": 0}, {"temperature": 0.9, "seed": 4})
"""How tokens are chosen: the likeliest, and drawn ones."""


@pytest.fixture(scope="module")
def tiny_server(tiny_llama):
    """Three stages with uneven splits, two decode groups, short spans, fp32, little KV."""
    options = ("--nodes", "3", "--layers", "0-1,1-4,4-6", "--dtype", "float32")
    small = ("--span-tokens", "7", "--micro-batches", "2", "--kv-tokens", "416")
    with serving(str(tiny_llama), *options, *small) as server:
        yield server


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


@pytest.mark.parametrize("chosen", CHOSEN)
async def test_a_next_turn_begins_with_what_is_cached(tools, tiny_server, chosen):
    """The same tokens as of a request that shares nothing with those before."""
    body = {"max_tokens": MAX_TOKENS, "ignore_eos": True, **chosen}
    system = [7 + len(chosen)] * 40
    first = {"prompt_token_ids": [*system, 5, 6], **body}
    _, answer = await tools.post(tiny_server.url, "/generate", first)
    turn = {"prompt_token_ids": [*system, 5, 6, *answer["token_ids"], 9, 9, 9], **body}
    answers = [
        await tools.post(tiny_server.url, "/generate", turn | own)
        for own in ({"cache_salt": "mine"}, {}, {})
    ]
    cached = [told["usage"]["prompt_tokens_details"]["cached_tokens"] for _, told in answers]
    assert cached == [0, 48, 48]
    shown = (await tools.get(tiny_server.url, "/cluster"))["prefix_cache"]
    assert shown["requests"] >= 4 and shown["recent_hit_rate"] > 0
    assert shown["tiers"]["file_tokens"] == 0, "idle memory has room by default, a disk has none"
    status, _ = await tools.post(tiny_server.url, "/cluster/cache/clear", {})
    assert status == 401
    told = await asyncio.to_thread(tools.run_molink, "cache", "clear", "--url", tiny_server.url)
    assert told.stdout == "The prefix cache of 1 ring is cleared.\n", told.stderr
    answers.append(await tools.post(tiny_server.url, "/generate", turn))
    assert answers[-1][1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert len({str(told["token_ids"]) for _, told in answers}) == 1


@pytest.mark.parametrize(
    ("nodes", "room"), [("1", ("0.01", "0")), ("2", ("0", "0.01")), ("3", ("0.0001", "0.01"))]
)
async def test_a_chat_returns_after_others_took_its_place(tools, tiny_llama, nodes, room):
    """KV for one prompt; what was put away, to memory or to disk, comes back, and is exact. Links
    are so slow that it is worth it on any machine."""
    options = ("--nodes", nodes, "--dtype", "float32", "--span-tokens", "7", "--kv-tokens", "416")
    options += ("--link", "1:2") if nodes != "1" else ()
    ram, disk = room
    cache = ("--cache-ram-gb", ram, "--cache-disk-gb", disk)
    with serving(str(tiny_llama), *options, *cache) as server:
        for chosen in CHOSEN:
            body = {"max_tokens": MAX_TOKENS, "ignore_eos": True, **chosen}
            chat = [(5 * at + len(chosen)) % 90 + 3 for at in range(300)]
            _, answer = await tools.post(
                server.url, "/generate", {"prompt_token_ids": chat, **body}
            )
            turn = {"prompt_token_ids": [*chat, *answer["token_ids"], 9, 9, 9], **body}
            other = {"prompt_token_ids": [(7 * at) % 90 + 3 for at in range(330)], **body}
            told = []
            for salt in ("mine", ""):
                await tools.post(server.url, "/generate", other | {"cache_salt": f"x{salt}"})
                told.append(await tools.post(server.url, "/generate", turn | {"cache_salt": salt}))
            cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for _, one in told]
            assert cached == [0, 304]
            assert told[0][1]["token_ids"] == told[1][1]["token_ids"]

        async def fetched():
            tiers = (await tools.get(server.url, "/cluster"))["prefix_cache"]["tiers"]
            assert tiers["lost_tokens"] == 0 and (tiers["file_tokens"] == 0) == (disk == "0")
            return tiers["fetched_tokens"] > 0 and tiers["host_tokens"] + tiers["file_tokens"] > 0

        assert await eventually(fetched)


@pytest.mark.parametrize("chosen", swept(CHOSEN, CHOSEN[1]))
async def test_tokens_are_the_same_whatever_is_cached(tools, tiny_server, chosen):
    """Two families in turn, each of which fills the KV by itself: what one has cached is dropped
    for the other, requests are preempted, and a user goes away."""
    body = {"max_tokens": 90, "ignore_eos": True, **chosen}
    families = [
        [[20 * family + len(chosen)] * 48 + [5 + number] for number in range(4)]
        for family in (1, 2)
    ]

    async def ask(prompt, **own):
        asked = {"prompt_token_ids": prompt, **body, **own}
        _, answer = await tools.post(tiny_server.url, "/generate", asked)
        return answer["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    alone = []
    for family in families:
        told = await asyncio.gather(*(ask(one, cache_salt=f"{one}") for one in family))
        assert [cached for _, cached in told] == [0] * 4
        alone.append([tokens for tokens, _ in told])
    cached = 0
    for turn in range(3):
        together = families[turn % 2]
        gone = asyncio.create_task(ask([*together[0][:48], 4]))
        answers = await asyncio.gather(*map(ask, together))
        gone.cancel()
        assert [tokens for tokens, _ in answers] == alone[turn % 2]
        cached += sum(tokens for _, tokens in answers)
    assert cached >= 3 * 3 * 48


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


async def test_preempted_requests_lose_no_token(tools, tiny_server, tiny_llama):
    """KV for two or three of the five sequences: they are preempted, recomputed, and exact."""
    prompts = [[3 + i] * 20 for i in range(5)]
    body = {"max_tokens": 130, "temperature": 0, "ignore_eos": True}
    answers = await asyncio.gather(
        *(
            tools.post(tiny_server.url, "/generate", {"prompt_token_ids": prompt, **body})
            for prompt in prompts
        )
    )
    cluster = await tools.get(tiny_server.url, "/cluster")
    expected = tools.greedy_reference(tiny_llama, prompts, 130)
    assert [answer["token_ids"] for _, answer in answers] == expected
    assert cluster["stages"][0]["kv_tokens_capacity"] == 416


async def test_a_sampled_end_token_ends_the_answer(tools, tiny_server, tiny_llama):
    prompt = [5, 6, 7, 8]
    expected = tools.greedy_reference(tiny_llama, [prompt], 10)[0]
    ending = expected[3]
    body = {"prompt_token_ids": prompt, "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    _, answer = await tools.post(tiny_server.url, "/generate", {**body, "stop_token_ids": [ending]})
    assert answer["token_ids"] == expected[: expected.index(ending) + 1]
    assert answer["finish_reason"] == "stop"


async def test_cluster_lists_stages_links_and_requests(tools, tiny_server):
    await tools.post(
        tiny_server.url, "/generate", {"prompt_token_ids": [5], "max_tokens": 3, "temperature": 0}
    )

    async def all_reported():
        cluster = await tools.get(tiny_server.url, "/cluster")
        return cluster if len(cluster["links"]) == 5 else None

    cluster = await tools.eventually(all_reported)
    assert [stage["layers"] for stage in cluster["stages"]] == [[0, 1], [1, 4], [4, 6]]
    assert {stage["pid"] for stage in cluster["stages"]} <= {
        child.pid for child in tiny_server.children()
    }
    assert cluster["epoch"] >= 1
    assert cluster["model"].endswith("tiny-llama")
    assert [(link["from"], link["to"]) for link in cluster["links"]] == [
        ("coordinator", "stage 0"),
        ("stage 0", "stage 1"),
        ("stage 1", "stage 2"),
        ("stage 2", "stage 0"),
        ("stage 2", "coordinator"),
    ]
    assert set(cluster["requests"]) == {"running", "waiting", "without_room"}
    assert [(node["name"], node["state"], node["layers"]) for node in cluster["nodes"]] == [
        ("stage 0", "serving", [0, 1]),
        ("stage 1", "serving", [1, 4]),
        ("stage 2", "serving", [4, 6]),
    ]


async def test_a_client_that_goes_away_frees_its_place(tools, tiny_server):
    body = {"prompt_token_ids": [5], "max_tokens": 400, "ignore_eos": True, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(tiny_server.url + "/generate", json=body) as answer,
    ):
        await answer.content.readline()

    async def nothing_held():
        cluster = await tools.get(tiny_server.url, "/cluster")
        held = [stage["kv_tokens_used"] for stage in cluster["stages"]]
        return not any(held) and not any(cluster["requests"].values())

    assert await tools.eventually(nothing_held)
    status, _ = await tools.post(
        tiny_server.url, "/generate", {"prompt_token_ids": [5], "max_tokens": 2}
    )
    assert status == 200


@pytest.mark.parametrize("model", ["LFM2 1.2B"])
async def test_a_model_that_keeps_states_goes_on_from_a_snapshot(tools, tmp_path, model):
    """The answer passes a multiple of 64: the next turn begins there, and the same tokens come."""
    small_model(model).save_pretrained(tmp_path)
    options = ("--nodes", "2", "--dtype", "float32", "--kv-tokens", "2048")
    with serving(str(tmp_path), *options) as server:
        for chosen in CHOSEN:
            body = {"max_tokens": 40, "ignore_eos": True, **chosen}
            chat = [(5 * at + len(chosen)) % 90 + 3 for at in range(100)]
            first = {"prompt_token_ids": chat, **body}
            _, answer = await tools.post(server.url, "/generate", first)
            turn = {"prompt_token_ids": [*chat, *answer["token_ids"], 9, 9, 9], **body}
            told = [
                await tools.post(server.url, "/generate", turn | {"cache_salt": salt})
                for salt in ("mine", "", "")
            ]
            cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for _, one in told]
            assert cached == [0, 128, 128]
            assert len({str(one["token_ids"]) for _, one in told}) == 1
