"""Another model, one ring after the other: two coordinators of one cluster, no word on any PC, and
somebody answers for the old model until its last ring goes; who stayed comes when the first ends.
"""

import asyncio
import json
import signal
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.clusters import cluster, running
from tests.end_to_end.conftest import eventually

PORTS = ("--port", "--broker-port", "--relay-port", "--agents-port")
BODY = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
PROMPT = list(range(5, 25))


@pytest.fixture(scope="module")
def models(tools, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    old = tools.save_tiny_llama(folder / "old")
    return old, tools.save_tiny_llama(folder / "new", num_hidden_layers=4)


async def answer(tools, url, model):
    return await tools.post(url, "/generate", {"prompt_token_ids": PROMPT, "model": model, **BODY})


async def asks_on(tools, url, model):
    """Ask one request after the other until cancelled; the statuses, and the longest time."""
    statuses, longest_s = [], 0.0
    with suppress(asyncio.CancelledError):
        while True:
            began = asyncio.get_running_loop().time()
            status, _ = await answer(tools, url, model)
            statuses.append(status)
            longest_s = max(longest_s, asyncio.get_running_loop().time() - began)
            await asyncio.sleep(0.05)
    return statuses, longest_s


async def rings_of(tools, url, count):
    async def serve():
        rings = (await tools.get(url, "/cluster"))["rings"]
        return len(rings) == count

    await eventually(serve, within_s=90)


async def listed(tools, url):
    return [one["id"] for one in (await tools.get(url, "/v1/models"))["data"]]


async def test_rings_go_over_one_by_one_while_the_rest_answer(tools, models, tmp_path):
    old, new = models
    before = tools.greedy_reference(old, [PROMPT], BODY["max_tokens"])[0]
    after = tools.greedy_reference(new, [PROMPT], BODY["max_tokens"])[0]
    free = (*(word for name in PORTS for word in (name, "0")), "--host", "127.0.0.1")
    place = ("--data-dir", str(tmp_path / "next"), "--replaces", str(tmp_path / "coordinator"))
    with cluster(tmp_path, old, "--min-nodes", "2", "--dtype", "float32", "--wait") as made:
        for name in ("anna", "ben"):
            made.join(name, "--memory-gb", "1", "--threads", "1", known_steps=True)
        made.up.line("ready")
        await rings_of(tools, made.url, 2)
        told = made.operator("node", "move", "anna")
        assert told.returncode == 2 and "No other coordinator" in told.stderr

        with running("up", str(new), *free, *place, "--dtype", "float32") as beside:
            own = beside.line("listening").split()[-1]
            refused, _ = await answer(tools, own, "new")
            assert refused == 503, "nobody serves it yet"

            asker = asyncio.create_task(asks_on(tools, made.url, "old"))
            told = made.operator("node", "move", "ben")
            assert told.returncode == 0 and "ben goes over" in told.stdout
            await rings_of(tools, own, 1)
            asker.cancel()
            statuses, longest_s = await asker
            print(f"{len(statuses)} answers of the old model, the longest took {longest_s:.2f} s")
            assert set(statuses) == {200}, "nobody is refused while a ring goes over"
            for model, expected in (("old", before), ("new", after)):
                status, said = await answer(tools, made.url, model)
                assert (status, said["token_ids"]) == (200, expected), "at one address"
            assert await listed(tools, made.url) == ["old", "new"]
            told = json.loads(made.operator("node", "move", "--json").stdout)
            assert {one["name"]: one["where"] for one in told} == {"anna": "here", "ben": "over"}

            made.up.process.send_signal(signal.SIGTERM)
            made.up.ended()
            front = f"http://127.0.0.1:{urlsplit(made.url).port}"
            await asyncio.to_thread(beside.line, f"listening {front}")
            status, said = await answer(tools, front, "new")
            assert (status, said["token_ids"]) == (200, after)
            status, said = await answer(tools, front, "old")
            assert status == 404
            assert "'old' is not served here: use 'new'" in said["error"]["message"]
            await rings_of(tools, own, 2)
            told = made.operator("node", "move", "ben", "--back")
            assert told.returncode == 2 and "has ended" in told.stderr
