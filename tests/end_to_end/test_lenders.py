"""A ring whose stages have room for a part of a request, the rest with lenders in the PC's memory:
the tokens of the whole model, also when a lender is killed in the middle of an answer."""

import asyncio
from functools import partial

import pytest

from tests.end_to_end.conftest import eventually, get, greedy_reference, post

HERE, AWAY = 1024, 3072
PROMPT = [3 + (number * number + 7 * number) % 90 for number in range(1800)]


@pytest.fixture(scope="module")
def model(tools, tmp_path_factory):
    return tools.save_tiny_llama(tmp_path_factory.mktemp("long"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def server(tools, model):
    room = ("--kv-tokens", str(HERE), "--kv-host-tokens", str(AWAY), "--cache-ram-gb", "1")
    options = ("--nodes", "2", "--dtype", "float32", *room)
    with tools.serving(str(model), *options, forks=False) as server:
        yield server


def lenders(server):
    """On Linux they are children of a process of the same name, which has forked them."""
    found = [one for one in server.children() if "molink.lender." in " ".join(one.cmdline())]
    forked = [one for one in found if one.ppid() in {other.pid for other in found}]
    return forked or found


async def is_whole(server):
    """Whether both stages have a lender, as the ring counts."""
    (ring,) = (await get(server.url, "/cluster"))["rings"]
    return [stage["kv_tokens_capacity"] for stage in ring["stages"]] == [HERE + AWAY] * 2


def asked(tokens):
    return {"prompt_token_ids": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


async def test_a_request_longer_than_a_stages_own_room_is_answered(server, model):
    await eventually(partial(is_whole, server), 60.0)
    status, answer = await post(server.url, "/generate", asked(40))
    assert status == 200
    assert answer["token_ids"] == greedy_reference(model, [PROMPT], 40)[0]


async def test_a_killed_lender_costs_no_token(server, model):
    await eventually(partial(is_whole, server), 60.0)
    before = lenders(server)
    answering = asyncio.create_task(post(server.url, "/generate", asked(200)))

    async def decodes():
        requests = (await get(server.url, "/cluster/requests"))["requests"]
        return any(one["tokens"] > 5 and one["state"] == "decode" for one in requests)

    await eventually(decodes, 60.0)
    before[0].kill()
    status, answer = await answering
    assert status == 200
    assert answer["token_ids"] == greedy_reference(model, [PROMPT], 200)[0]
    await eventually(partial(is_whole, server), 60.0)
    texts = [one["text"] for one in (await get(server.url, "/cluster/events"))["events"]]
    assert any("has lost what its lender held" in text for text in texts)
