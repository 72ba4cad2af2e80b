"""Where the weights of a PC's nodes lie."""

import asyncio

from molink.control.messages.payloads import AssignedWork, Assignment, WeightsSource
from molink_agent.daemon import process
from tests.agent.daemon.agents import agent_with_two_nodes


async def test_nodes_fetch_one_after_the_other_and_keep_each_other_s_weights(tmp_path, monkeypatch):
    calls, inside = [], []

    async def ensure_weights(source, layers, directory, limits, progress):
        assert not inside
        inside.append(layers)
        await asyncio.sleep(0)
        inside.clear()
        calls.append((layers, source.token, limits.keep))
        return directory / str(layers.start)

    monkeypatch.setattr(process, "ensure_weights", ensure_weights)
    pc = agent_with_two_nodes(tmp_path).pc
    cache = process.WeightsCache(pc)

    def work(start):
        source = WeightsSource(model="m", url="http://c/weights")
        return AssignedWork(
            layers=(start, start + 1), device="cpu", dtype="float32", weights=source
        )

    async def get(number, start):
        return await cache.get(number, f"token of {number}", work(start), lambda fraction: None)

    found = await asyncio.gather(get(0, 0), get(1, 1))
    assert found == [str(tmp_path / "weights" / name) for name in ("0", "1")]
    assert calls[1] == (range(1, 2), "token of 1", frozenset())
    for number, stage in enumerate(pc.stages):
        stage.manager.assignment = Assignment(revision=1, work=work(number))
    await get(1, 2)
    assert calls[2][2] == {tmp_path / "weights" / "0"}
