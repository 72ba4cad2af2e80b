"""Where the weights of a PC's nodes lie, and what is refused before it is loaded."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace

import pytest

from molink.control.messages.payloads import AssignedDrafter, AssignedWork, WeightsSource
from molink.errors import StageError, WeightsError
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.draft_model import DraftModel
from molink_agent.daemon import stage_launcher
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.limits.lent import FREE_MEMORY, Lent
from molink_agent.weights.source import Downloaded
from molink_scheduler.units import GB
from tests.agent.daemon.agents import agent_with_two_nodes, membership
from tests.agent.limits.test_assignment_check import write_stage
from tests.control.assignments import loading


async def test_nodes_fetch_one_after_the_other_and_keep_each_other_s_weights(tmp_path, monkeypatch):
    calls, inside = [], []

    async def ensure_weights(source, layers, directory, limits, progress, drafts):
        assert not inside
        inside.append(layers)
        await asyncio.sleep(0)
        inside.clear()
        calls.append((layers, source.url, source.token, limits.keep))
        return directory / str(layers.start)

    monkeypatch.setattr(stage_launcher, "ensure_weights", ensure_weights)
    pc = agent_with_two_nodes(tmp_path).pc
    cache = stage_launcher.WeightsCache(pc)

    def work(start):
        source = WeightsSource.model_validate({"model": "m", "url": "http://elsewhere/weights"})
        return AssignedWork(
            layers=(start, start + 1), device="cpu", dtype="float32", weights=source
        )

    async def get(number, start):
        return await cache.get(number, membership(), work(start), lambda fraction: None)

    found = await asyncio.gather(get(0, 0), get(1, 1))
    assert found == [str(tmp_path / "weights" / name) for name in ("0", "1")]
    own = "https://127.0.0.1:9/weights", "t" * 32
    assert calls[1] == (range(1, 2), *own, frozenset()), "whatever an assignment names"
    for number, stage in enumerate(pc.stages):
        stage.manager.assignment = loading(work(number))
    await get(1, 2)
    assert calls[2][3] == {tmp_path / "weights" / "0"}


async def test_what_passes_a_limit_is_refused_before_anything_is_fetched(tmp_path, monkeypatch):
    launcher = agent_with_two_nodes(tmp_path).nodes[0].stage.launcher
    launcher.cache.pc.stages[0].device = "cuda:1"
    monkeypatch.setattr(stage_launcher, "ensure_weights", None)
    monkeypatch.setattr(stage_launcher.WarmStage, "begin", None)
    for device, threads, says in (("cuda:0", 1, "lent is cuda:1"), ("cuda:1", 9, "9 threads")):
        with pytest.raises(StageError, match=says):
            await launcher.prepare(asked(device=device, threads=threads), lambda fraction: None)
    launcher.owner.pause()
    await launcher.owner.evaluate(frozenset())
    with pytest.raises(StageError, match="Paused by its owner"):
        await launcher.prepare(asked(device="cuda:1"), lambda fraction: None)


async def test_what_the_files_show_to_be_too_large_is_refused_before_it_is_loaded(
    tmp_path, monkeypatch
):
    async def ensure_weights(*arguments, drafts):
        write_stage(tmp_path, a=("F16", 200, (100,)))
        return tmp_path

    async def nothing(*arguments):
        pass

    launcher = agent_with_two_nodes(tmp_path / "agent").nodes[0].stage.launcher
    launcher.cache.pc.stages[0].device = "cuda:1"
    monkeypatch.setattr(stage_launcher, "ensure_weights", ensure_weights)
    monkeypatch.setattr(stage_launcher.WarmStage, "begin", nothing)
    fits = asked(device="cuda:1", kv_tokens=16)
    assert await launcher.prepare(fits, lambda fraction: None) == str(tmp_path)
    assert launcher._memory_bytes > 0
    with pytest.raises(StageError, match="lent are"):
        too_large = asked(device="cuda:1", kv_tokens=2**31)
        await launcher.prepare(too_large, lambda fraction: None)


@pytest.mark.parametrize(
    ("bound_by", "limit", "says"),
    [(FREE_MEMORY, None, ""), (FREE_MEMORY, "1", "lent are"), ("memory_gb", None, "lent are")],
)
async def test_what_was_free_before_a_download_counts_after_it_too(
    tmp_path, monkeypatch, bound_by, limit, says
):
    """The process that waits takes some of it, and the coordinator is told so meanwhile."""
    free = [GB]

    async def ensure_weights(*arguments, drafts):
        write_stage(tmp_path, a=("F16", 200, (100,)))
        free[0] = launcher.cache.pc.stages[0].offered_bytes = 1
        if limit is not None:
            launcher.cache.pc.limits.set("memory_gb", limit)
        return tmp_path

    async def nothing(*arguments):
        pass

    launcher = agent_with_two_nodes(tmp_path / "agent").nodes[0].stage.launcher
    launcher.cache.pc.stages[0].device = "cpu"
    lent = lambda self: (Lent("cpu", "Ryzen", 32 * GB, free[0], bound_by),)  # noqa: E731
    monkeypatch.setattr(ThisPc, "lent", lent)
    monkeypatch.setattr(stage_launcher, "ensure_weights", ensure_weights)
    monkeypatch.setattr(stage_launcher.WarmStage, "begin", nothing)
    with pytest.raises(StageError, match=says) if says else nullcontext():
        await launcher.prepare(asked(device="cpu"), lambda fraction: None)
        assert launcher._memory_bytes == GB


@pytest.mark.parametrize(
    ("spare", "lent_bytes", "waits"),
    [(True, None, True), (False, None, False), (True, 64 * GB, False)],
)
async def test_a_process_waits_where_its_owner_does_not_miss_the_memory(
    tmp_path, monkeypatch, spare, lent_bytes, waits
):
    """Who lends a certain amount of memory lends no more for a process that waits."""
    begun = []

    async def begin(self, threads):
        begun.append(threads)

    launcher = agent_with_two_nodes(tmp_path).nodes[0].stage.launcher
    monkeypatch.setattr(stage_launcher.WarmStage, "begin", begin)
    needed = stage_launcher.WARM_BYTES_SPARE
    monkeypatch.setattr(stage_launcher, "unused_memory_bytes", lambda machine: needed - (not spare))
    limits = launcher.cache.pc.limits
    monkeypatch.setattr(limits, "limits", replace(limits.limits, memory_bytes=lent_bytes))
    await launcher.stand_ready(asked(device="cpu", threads=3))
    assert begun == [3] * waits


async def test_of_a_stage_that_takes_more_only_what_it_takes_is_fetched(tmp_path, monkeypatch):
    fetched = []

    async def ensure_weights(source, layers, directory, limits, progress, drafts):
        fetched.append(layers)
        return tmp_path

    launcher = agent_with_two_nodes(tmp_path / "agent").nodes[0].stage.launcher
    launcher.cache.pc.stages[0].device = "cpu"
    lent = lambda self: (Lent("cpu", "Ryzen", 32 * GB, GB, FREE_MEMORY),)  # noqa: E731
    monkeypatch.setattr(ThisPc, "lent", lent)
    monkeypatch.setattr(stage_launcher, "ensure_weights", ensure_weights)
    monkeypatch.setattr(stage_launcher.WarmStage, "begin", None)
    load = await launcher.more(
        asked(device="cpu", layers=(2, 4)), ("k" * 40,), lambda fraction: None
    )
    assert fetched == [range(2, 4)] and load.work.layers == (2, 4)
    assert (load.memory_bytes, load.keys.allowed) == (GB, ("k" * 40,))


@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_stage_takes_what_is_lent_for_cached_kv_only_where_its_ring_caches(
    tmp_path, monkeypatch, is_cached
):
    async def ensure_weights(*arguments, drafts):
        return tmp_path

    pc = (launcher := agent_with_two_nodes(tmp_path).nodes[0].stage.launcher).cache.pc
    pc.stages[0].device = "cpu"
    pc.limits.set("cache_disk_gb", "2")
    lent = lambda self: (Lent("cpu", "Ryzen", 32 * GB, GB, FREE_MEMORY),)  # noqa: E731
    monkeypatch.setattr(ThisPc, "lent", lent)
    monkeypatch.setattr(stage_launcher, "ensure_weights", ensure_weights)
    load = await launcher.more(asked(device="cpu", prefix_cache=is_cached), (), lambda share: None)
    room = CacheRoom(None, GB, str(pc.data_dir / "kv-cache"), stages=2)
    assert load.cache_room == (room if is_cached else None)


@pytest.mark.parametrize(
    ("layers", "changes", "urls", "refused"),
    [
        ((0, 2), {}, ["", "/drafter"], ""),
        ((1, 2), {}, [""], None),
        ((0, 2), {"refused": "no room"}, [""], "no room"),
        ((1, 4), {"reads_from": 2}, ["", "/drafter"], ""),
        ((0, 2), {"reads_from": 2}, [""], None),
        ((0, 2), {"layers": 3}, ["", "/drafter"], "the disk cap is too small"),
    ],
)
async def test_a_head_fetches_what_drafts_and_loads_without_where_it_cannot(
    tmp_path, monkeypatch, layers, changes, urls, refused
):
    fetched, kept, done = [], [], []

    async def ensure_weights(source, layers, directory, limits, progress, drafts):
        fetched.append(source.url.removeprefix("https://127.0.0.1:9/weights"))
        kept.append(limits.keep)
        if layers == range(3):
            raise WeightsError("the disk cap is too small")
        progress(Downloaded(1.0))
        return tmp_path / str(len(fetched))

    launcher = agent_with_two_nodes(tmp_path / "agent").nodes[0].stage.launcher
    launcher.cache.pc.stages[0].device = "cpu"
    lent = lambda self: (Lent("cpu", "Ryzen", 32 * GB, GB, FREE_MEMORY),)  # noqa: E731
    monkeypatch.setattr(ThisPc, "lent", lent)
    monkeypatch.setattr(stage_launcher, "ensure_weights", ensure_weights)
    drafter = AssignedDrafter(weights=WeightsSource(model="small"), layers=2, kv_tokens=32)
    work = asked(device="cpu", layers=layers, drafter=drafter.model_copy(update=changes))
    load = await launcher.more(work, (), done.append)
    assert fetched == urls and load.model == str(tmp_path / "1")
    assert done == sorted(done), "progress never goes back"
    if refused is None:
        assert load.drafter is None
        return
    model = "" if refused else str(tmp_path / "2")
    told = refused, work.drafter.reads_from
    assert load.drafter == DraftModel(model, work.drafter.layers, "small", 32, *told)
    if len(urls) == 2:
        assert kept[1] == {tmp_path / "1"}, "layers that were just fetched stay"


def asked(**changes):
    source = WeightsSource(model="m")
    return AssignedWork(
        **({"layers": (0, 1), "dtype": "auto", "kv_tokens": 16, "weights": source} | changes)
    )
