"""A ring of three whose stages have their KV apart from their weights (`--attention-device host`):
what computes is killed in the middle of an answer."""

import asyncio
import sys
from functools import partial

import psutil
import pytest

from tests.end_to_end.conftest import eventually, get, greedy_reference, post
from tests.end_to_end.forked.asking import fork_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="weights are forked on Linux alone")

PROMPT = [3 + (number * number + 7 * number) % 90 for number in range(120)]
ANSWER = 180


@pytest.fixture
def server(tools, tiny_llama):
    apart = ("--device", "cpu", "--attention-device", "host", "--kv-tokens", "512")
    options = ("--nodes", "3", "--dtype", "float32", "--cache-ram-gb", "0", *apart)
    with tools.serving(str(tiny_llama), *options) as server:
        yield server


def computing(pid):
    """The process that computes for a stage, a fork of the one with its weights; None: none does
    now."""
    for loaded in alive_below(fork_of(pid)):
        if "molink.compute." in " ".join(loaded.cmdline()):
            return next(iter(alive_below(loaded.pid)), None)
    return None


def alive_below(pid):
    children = psutil.Process(pid).children()
    return [one for one in children if one.status() != psutil.STATUS_ZOMBIE]


async def ring_of(server):
    (ring,) = (await get(server.url, "/cluster"))["rings"]
    return ring


async def has_tokens(server, tokens):
    requests = (await get(server.url, "/cluster/requests"))["requests"]
    return any(one["tokens"] >= tokens and one["state"] == "decode" for one in requests)


async def has_one_that_computes(pid):
    return computing(pid)


async def test_killed_processes_cost_no_token_no_row_and_no_epoch(server, tiny_llama):
    before = await ring_of(server)
    body = {"prompt_token_ids": PROMPT, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
    answering = asyncio.create_task(post(server.url, "/generate", body))
    killed = []
    for tokens, stage in ((5, 1), (20, 0), (30, 2), (45, 1)):
        await eventually(partial(has_tokens, server, tokens), 60.0)
        pid = before["stages"][stage]["pid"]
        victim = await eventually(partial(has_one_that_computes, pid))
        victim.kill()
        killed.append(victim.pid)
    status, answer = await answering
    assert status == 200
    assert answer["token_ids"] == greedy_reference(tiny_llama, [PROMPT], ANSWER)[0]

    async def have_told():
        ring = await ring_of(server)
        return ring if len({one["steps"] for one in ring["stages"]}) == 1 else None

    ring = await eventually(have_told)
    assert ring["epoch"] == before["epoch"], "the ring has not heard of it"
    pids = [[one["pid"] for one in each["stages"]] for each in (before, ring)]
    assert pids[0] == pids[1], "stages' own processes are the same"
    replaced = [line for line in server.stderr if "Another one has its weights" in line]
    assert len(replaced) == len(killed)
    assert all("a step of 1 rows again; no KV is lost" in line for line in replaced)
