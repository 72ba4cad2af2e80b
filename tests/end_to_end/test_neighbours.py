"""A hole that nobody fills: a neighbour takes the lost layers beside its own."""

import asyncio

import psutil

from molink_sim.replay import replay
from tests.end_to_end.test_lifecycle import kinds_of_events

TOKENS = 400
GREEDY = {"prompt_token_ids": [5], "temperature": 0}
SEEDED = {"prompt_token_ids": [7, 9], "temperature": 0.8, "seed": 87}
"""No draw lies within 8e-5 of another word: sums in another order give the same tokens."""

LOADS_ONCE = """
from molink.coordinator.local.local_node import _Launcher
from molink.errors import StageError
start, started = _Launcher.start, set()
async def start_once(launcher, *words):
    if launcher.index in started:
        raise StageError("It is started once.")
    started.add(launcher.index)
    return await start(launcher, *words)
_Launcher.start = start_once
"""
"""No node can load its stage again."""


async def both_read_on(tools, server) -> dict:
    """The cluster once each of two answers has had some tokens more."""

    async def counted() -> list[int]:
        requests = (await tools.get(server.url, "/cluster/requests"))["requests"]
        return [one["tokens"] for one in requests if one["finish_reason"] is None]

    before = await counted()

    async def have_more():
        now = await counted()
        is_more = len(now) == 2 and min(now) >= min(before, default=0) + 5
        return (await tools.get(server.url, "/cluster")) if is_more else None

    return await tools.eventually(have_more, within_s=60.0)


async def killed(tools, server, before: dict, place: int, resumed: int) -> dict:
    """The cluster once its ring has gone on after the loss of the stage in this place."""
    psutil.Process(before["stages"][place]["pid"]).kill()

    async def goes_on():
        kinds = await kinds_of_events(tools, server, ring=0)
        return kinds.count("ring_resumed") == resumed or None

    await tools.eventually(goes_on, within_s=60.0)
    return await tools.get(server.url, "/cluster")


async def test_neighbours_take_the_layers_of_stages_that_nobody_loads_again(
    tools, tiny_llama, tmp_path, monkeypatch
):
    """The stage before the lost one, in its process; then the one behind a lost head, which is a
    ring of its own. Greedy and seeded answers go on exactly, and the log of it all replays to the
    same instructions."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with tools.serving(str(tiny_llama), "--dtype", "float32", changes=LOADS_ONCE) as server:
        bodies = [one | {"max_tokens": TOKENS, "ignore_eos": True} for one in (GREEDY, SEEDED)]
        expected = await tools.post(server.url, "/generate", bodies[1])
        asked = [asyncio.create_task(tools.post(server.url, "/generate", one)) for one in bodies]
        before = await both_read_on(tools, server)
        pids = [one["pid"] for one in before["stages"]]
        after = await killed(tools, server, before, 1, resumed=1)
        assert [tuple(one["layers"]) for one in after["stages"]] == [(0, 4), (4, 6)]
        assert [one["pid"] for one in after["stages"]] == [pids[0], pids[2]]
        last = await killed(tools, server, await both_read_on(tools, server), 0, resumed=2)
        assert [tuple(one["layers"]) for one in last["stages"]] == [(0, 6)]
        assert [one["pid"] for one in last["stages"]] == [pids[2]]
        answers = await asyncio.gather(*asked)
        [greedy] = tools.greedy_reference(tiny_llama, [[5]], TOKENS)
        assert [status for status, _ in answers] == [200, 200]
        assert answers[0][1]["token_ids"] == greedy
        assert answers[1][1]["token_ids"] == expected[1]["token_ids"]
        kinds = await kinds_of_events(tools, server, ring=0)
        assert not {"ring_ended", "request_moved"} & set(kinds)
        assert server.stop() == 0
        said = "".join(server.stderr)
        assert said.count("with the KV of 2 requests") == 2 and "Traceback" not in said, said
    (recovery,) = (tmp_path / "molink" / "recoveries").iterdir()
    found = replay(recovery.read_text().splitlines())
    assert found.difference is None and found.calls_count > 15
