"""What does it cost to hold a lost neighbour's layers in a second stage process?

    python -m tools.experiments.ring.second_process MODEL --out DIR

Two rings of four stages, alive at once and asked in turn. In one the third stage is killed twice
within a minute, so that its neighbour takes the layers beside its own, in its process. The other
stays as it is, and its second and third stage stand for two processes of one node: the link between
them is not emulated. Compared are the rates of one user and of four, a user beside prompts of
others, and the memory of that node's processes. Beside it: what a process takes until it has loaded
such layers, where it must start, and where one waits.

`--pin` gives all threads of that node's stages one core, as two processes of one node share its
device, and everything else the others. Beside the time of a token stands the processor time that
all processes of the ring took, which says more on a machine that is not quiet. Some minutes.
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import psutil

from molink.bench.served_ring import PROGRAM, ServedRing, serve_ring
from molink.errors import UserError
from molink.models import DEMO_MODEL_DIR
from molink.node.stage_handle import StageHandle, start_process
from molink.stage_protocol.messages import LoadStage, StageWork
from molink.workload.figures import percentile
from tools.experiments.harness import near_ring
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.harness.processes import cpu_s
from tools.experiments.ring.stage_kills import RESUMED

__all__ = ["main"]

NODES, TAKES, LOST = 4, 1, 2
WARM_UP_TOKENS = (64, 40)
ONE, TWO = "one process", "two processes"

TOKENS_ALONE, TOKENS_OF_FOUR, TOKENS_BESIDE = 24, 12, 40
PROMPT_TOKENS, PROMPTS = 300, 2
"""Beside one user: prompts that come at once when its answer has begun."""

BEFORE_TOKENS = 10
"""Of the answer that is under way when the stage is killed."""

SETTLED_S = 15.0
"""By then a process waits that has imported torch."""

DRAWS = 4000
"""Of the bootstrap. Its interval is of 95 %."""

Ask = Callable[[ServedRing], Awaitable[list[float]]]
"""Asks a question, and says how long each token took, in seconds."""


@experiment
@click.argument("model")
@click.option("--pairs", default=20, show_default=True, help="Of each question, and kind of links.")
@click.option("--link", default="", help="Emulated, as 100:20; without it all is on loopback.")
@click.option("--dtype", default="float32", show_default=True)
@click.option("--pin", is_flag=True, help="One core for the node that holds two stages' layers.")
def main(out: Path, model: str, pairs: int, link: str, dtype: str, pin: bool) -> None:
    """Compare both ways to hold a lost neighbour's layers."""
    links = ("--link", link) if link else ()
    options = ("--nodes", str(NODES), "--dtype", dtype, *links)
    found = asyncio.run(_compared(model, options, pairs, pin))
    show(_table(link or "loopback", found))
    starts = {} if link or pin else asyncio.run(_starts(model, dtype))
    setup = {"pairs": pairs, "link": link, "pin": pin, "dtype": dtype}
    write_report(out, "second_process", {"setup": setup, "starts_cpu_s": starts, **found})
    show(f"processor seconds until loaded: {starts}")


# -- both rings -----------------------------------------------------------------------------------


async def _compared(model: str, options: Sequence[str], pairs: int, pin: bool) -> dict[str, Any]:
    near = {near_ring.NEAR_VARIABLE: str(TAKES)} if "--link" in options else {}
    program = near_ring.MODULE if near else PROGRAM
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(serve_ring(model, options, 1, WARM_UP_TOKENS, *own))
            for own in (({}, PROGRAM), (near, program))
        ]
        rings = dict(zip((ONE, TWO), started, strict=True))
        taken = await _have_taken(rings[ONE])
        pids = {name: await _pids_of_node(ring, name) for name, ring in rings.items()}
        memory = {name: _memory_mb(found) for name, found in pids.items()}
        if pin:
            _share_cores(list(rings.values()), [pid for found in pids.values() for pid in found])
        chosen = {name: ask for name, ask in QUESTIONS.items() if (name == BESIDE) == pin}
        asked = {name: await _pairs(rings, ask, pairs) for name, ask in chosen.items()}
    return {"taking": taken, "memory_mb": memory, "asked": list(asked), **asked}


async def _have_taken(ring: ServedRing) -> dict[str, float]:
    """Have the neighbour take the lost layers; how long it took to load them."""
    for _ in range(2):
        await asyncio.sleep(SETTLED_S)
        pid = (await ring.cluster())["stages"][LOST]["pid"]
        body = {"prompt_token_ids": [5, 7], "max_tokens": WARM_UP_TOKENS[1] * 2, "stream": True}
        got = 0
        async for event in ring.client.stream("/generate", body | {"ignore_eos": True}):
            got += len(event.get("token_ids", ()))
            if got >= BEFORE_TOKENS and psutil.pid_exists(pid):
                psutil.Process(pid).kill()
    if len((await ring.cluster())["stages"]) != NODES - 1:
        raise UserError("no neighbour has taken the layers: the PC was too slow for it")
    events = (await ring.client.get("/cluster/events"))["events"]
    texts = [one["text"] for one in events if one["kind"] == "ring_resumed"]
    resumed = [found for text in texts if (found := RESUMED.search(text))]
    return {"joined_s": float(resumed[-1][1]), "loaded_s": float(resumed[-1][2])}


async def _pids_of_node(ring: ServedRing, name: str) -> list[int]:
    """The processes of the node that holds both stages' layers."""
    stages = (await ring.cluster())["stages"]
    return [stages[place]["pid"] for place in ((TAKES,) if name == ONE else (TAKES, LOST))]


def _share_cores(rings: Sequence[ServedRing], of_node: Sequence[int]) -> None:
    """Give the processes of one node the last core, all others what is left."""
    *others, last = sorted(os.sched_getaffinity(0))
    for ring in rings:
        server = psutil.Process(ring.server.pid)
        for process in (server, *server.children(recursive=True)):
            cores = {last} if process.pid in of_node else set(others)
            for thread in process.threads():
                os.sched_setaffinity(thread.id, cores)


# -- what is asked --------------------------------------------------------------------------------


async def _alone(ring: ServedRing) -> list[float]:
    """One user."""
    return _gaps((await ring.ask(16, TOKENS_ALONE)).token_times_s)


async def _four(ring: ServedRing) -> list[float]:
    """Four users together, a token of all of them."""
    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(ring.ask(16, TOKENS_OF_FOUR))
    return [(time.perf_counter() - began_s) / (4 * TOKENS_OF_FOUR)]


async def _interrupted(ring: ServedRing) -> list[float]:
    """One user, while prompts of others are computed."""
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(ring.ask(16, TOKENS_BESIDE))
        prompts = [group.create_task(ring.ask(PROMPT_TOKENS, 1)) for _ in range(PROMPTS)]
    ended_s = max(one.result().token_times_s[0] for one in prompts)
    times_s = [at for at in answer.result().token_times_s if at <= ended_s]
    if len(times_s) < 2:
        raise UserError("the prompts were computed before two tokens came: ask for longer ones")
    return _gaps(times_s)


def _gaps(times_s: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times_s)]


BESIDE = "beside prompts"
"""Asked where one node has one core: else both processes would compute at once."""

QUESTIONS: dict[str, Ask] = {"one user": _alone, "four users": _four, BESIDE: _interrupted}


async def _pairs(rings: dict[str, ServedRing], ask: Ask, pairs: int) -> dict[str, Any]:
    """Both rings asked in turn, and what two processes take of what one takes."""
    gaps_s: dict[str, list[float]] = {ONE: [], TWO: []}
    times_s: dict[str, list[float]] = {ONE: [], TWO: []}
    cpus_s: dict[str, list[float]] = {ONE: [], TWO: []}
    processes = {name: _processes(ring) for name, ring in rings.items()}
    for number in range(pairs):
        for name in (ONE, TWO) if number % 2 else (TWO, ONE):
            before_s = cpu_s(*processes[name])
            found = await ask(rings[name])
            gaps_s[name] += found
            times_s[name].append(statistics.fmean(found))
            cpus_s[name].append(cpu_s(*processes[name]) - before_s)
            click.echo(f"{name}: {times_s[name][-1]:.4f} {cpus_s[name][-1]:.3f}", err=True)
    quickest = {name: 1e3 * percentile(sorted(found), 10) for name, found in gaps_s.items()}
    both = {"time": _of_pairs(times_s), "processor time": _of_pairs(cpus_s)}
    return {**both, "quickest tenth, ms": quickest}


def _processes(ring: ServedRing) -> list[psutil.Process]:
    server = psutil.Process(ring.server.pid)
    return [server, *server.children(recursive=True)]


def _of_pairs(found: dict[str, list[float]]) -> dict[str, Any]:
    both = list(zip(found[ONE], found[TWO], strict=True))
    return {
        "median_ms": {name: 1e3 * statistics.median(one) for name, one in found.items()},
        "ratio": _middle([two / one for one, two in both]),
        "more_ms": _middle([1e3 * (two - one) for one, two in both]),
        "runs_s": found,
    }


def _middle(found: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the interval in which a bootstrap finds it."""
    chosen = random.Random(1)
    drawn = sorted(statistics.median(chosen.choices(found, k=len(found))) for _ in range(DRAWS))
    return statistics.median(found), drawn[DRAWS // 40], drawn[-DRAWS // 40]


# -- memory and starts ----------------------------------------------------------------------------


def _memory_mb(pids: Sequence[int]) -> dict[str, float]:
    """Memory of processes that share pages with each other alone: each file's pages once.

    What the system calls PSS would share a library's pages with other rings on this machine.
    """
    anonymous, of_file = 0, dict[str, int]()
    for pid in pids:
        held = dict[str, int]()
        for one in psutil.Process(pid).memory_maps(grouped=False):
            own = one.anonymous
            anonymous += own
            held[one.path] = held.get(one.path, 0) + one.rss - own
        for path, size in held.items():
            of_file[path] = max(size, of_file.get(path, 0))
    rss = sum(psutil.Process(pid).memory_info().rss for pid in pids)
    shared = sum(of_file.values())
    return {"own": anonymous / 1e6, "files": shared / 1e6, "rss": rss / 1e6}


async def _starts(model: str, dtype: str) -> dict[str, float]:
    """Processor seconds until two layers are loaded: by a process that starts, and by one that
    waits, counted from when it is told."""
    path = str(DEMO_MODEL_DIR) if model == "demo" else model
    load = LoadStage(path, StageWork((5, 7), "cpu", dtype, kv_tokens=4096), "127.0.0.1")
    started = await _loaded_cpu_s(await StageHandle.start("the stage", load), 0.0)
    waiting = await start_process(1)
    await asyncio.sleep(SETTLED_S)
    before_s = cpu_s(psutil.Process(waiting.pid))
    loads = await _loaded_cpu_s(StageHandle.of("the stage", load, waiting), before_s)
    return {"started": started, "waiting": loads}


async def _loaded_cpu_s(stage: StageHandle, before_s: float) -> float:
    """Processor seconds of a stage's process until it has loaded, less those before."""
    try:
        await stage.wait_loaded(lambda fraction: None)
        return cpu_s(psutil.Process(stage.pid)) - before_s
    finally:
        await stage.child.stop()


def _table(links: str, found: dict[str, Any]) -> str:
    head = (links, f"{ONE}, ms", f"{TWO}, ms", "ratio", "95 %", "ms more", "95 %")
    rows = [
        [
            f"{question}, {what}",
            *(f"{row['median_ms'][one]:.2f}" for one in (ONE, TWO)),
            *_interval(row["ratio"], 3),
            *_interval(row["more_ms"], 2),
        ]
        for question in found["asked"]
        for what, row in found[question].items()
        if "ratio" in row
    ]
    quickest = {question: found[question]["quickest tenth, ms"] for question in found["asked"]}
    memory = "; ".join(f"{name} {size}" for name, size in found["memory_mb"].items())
    more = f"quickest tenth of tokens, ms: {quickest}; MB: {memory}; taking: {found['taking']}"
    return f"{markdown_table(head, rows)}\n\n{more}"


def _interval(found: tuple[float, float, float], digits: int) -> tuple[str, str]:
    middle, low, high = found
    return f"{middle:.{digits}f}", f"{low:.{digits}f}, {high:.{digits}f}"


if __name__ == "__main__":
    main()
