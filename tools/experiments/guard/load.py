"""Floods, silent connections, a full disk, no descriptors: what do users and honest members notice?

    python -m tools.experiments.guard.load --out DIR

Two honest agents with real stages serve four users. Each trial has a cluster of its own, since it
may end it; it is watched for a while before and during the load.
"""

import asyncio
import json
import os
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import click
import psutil

from molink.control.messages.payloads import NodeWish
from molink.control.messages.topics import PRESENCE, PROFILE, WISH
from molink.errors import MolinkError
from molink.transport.sockets import raise_file_limit
from tools.experiments.guard.attacks import MqttByHand, posts, silent_connections, still_open
from tools.experiments.guard.cluster import GuardedCluster, guarded_cluster, verdict
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

BEFORE_S = 15.0
AFTER_S = 5.0
"""Users are watched so long before a load, and after it has ended."""

POSTS, POST_BYTES, POSTING_S = 24, 8 * 2**20 - 100, 20.0
LINE_MBPS = 1000.0
"""Of the line that the posts share: loopback carries several times what reaches a home."""

LOWEST_PRIORITY = 19
CONNECTIONS = 10_000
SILENT_S = 80.0
FLOOD_MBPS, FLOOD_S = 20.0, 40.0
STARVED_S = 25.0
DESCRIPTORS_LEFT = 4
AIM = 1.5
"""Times the p99 gap before."""

Load = Callable[[GuardedCluster], Awaitable[dict[str, Any]]]


async def long_posts(cluster: GuardedCluster) -> dict[str, Any]:
    """24 bodies of 8 MiB at a time, which parse to millions of empty lists, again and again.

    They come over one line, from a process of the lowest priority: who posts is elsewhere, and
    takes none of the processor time that coordinator and stages have.
    """
    elsewhere = ProcessPoolExecutor(1, get_context("spawn"), os.nice, (LOWEST_PRIORITY,))
    with elsewhere:
        url = f"{cluster.run.url}/generate"
        return await asyncio.get_running_loop().run_in_executor(elsewhere, _posted, url)


def _posted(url: str) -> dict[str, Any]:
    body = b'{"a":[' + b"[]," * (POST_BYTES // 3 - 10) + b"[]]}"
    answers: Counter[str] = Counter()
    began_s = time.monotonic()
    while time.monotonic() - began_s < POSTING_S:
        answers.update(asyncio.run(posts(url, body, POSTS, LINE_MBPS)))
    return {"answers": dict(answers), "seconds": time.monotonic() - began_s}


async def silence(cluster: GuardedCluster) -> dict[str, Any]:
    """10,000 connections to the API, and as many to the broker, that say nothing."""
    fake = cluster.fake()
    await fake.join()
    found: dict[str, Any] = {}
    places = {
        "api": (str(urlsplit(cluster.run.url).hostname), urlsplit(cluster.run.url).port or 0),
        "agents": (
            str(urlsplit(fake.membership.url).hostname),
            urlsplit(fake.membership.url).port or 0,
        ),
        "broker": (fake.membership.broker.host, fake.membership.broker.port),
    }
    for name, (host, port) in places.items():
        async with silent_connections(host, port, CONNECTIONS // len(places)) as opened:
            await asyncio.sleep(SILENT_S)
            found[f"{name}_open_after_{SILENT_S:.0f}_s"] = still_open(opened)
            found[f"{name}_answers"] = await _answers(cluster)
    return found


async def _answers(cluster: GuardedCluster) -> int:
    """The status that a new client gets meanwhile; 0: it is not let in."""
    timeout = aiohttp.ClientTimeout(total=10.0)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{cluster.run.url}/health") as response,
        ):
            return response.status
    except (aiohttp.ClientError, OSError, TimeoutError):
        return 0


async def presence_repeated(cluster: GuardedCluster) -> dict[str, Any]:
    """A member that says at 20 Mbit/s that it is there."""
    return await _flood(cluster, PRESENCE.path)


async def profile_repeated(cluster: GuardedCluster) -> dict[str, Any]:
    """The same with what it lends."""
    return await _flood(cluster, PROFILE.path)


async def _flood(cluster: GuardedCluster, path: str) -> dict[str, Any]:
    fake = cluster.fake()
    await fake.join()
    said = {
        PRESENCE.path: fake.session.presence(online=True),
        PROFILE.path: fake.profile(steps=None),
    }[path]
    topic = path.format(node=fake.node_id)
    sent, connections, began_s = 0, 0, time.monotonic()
    while (left_s := FLOOD_S - (time.monotonic() - began_s)) > 0:
        try:
            async with MqttByHand.open(fake) as mqtt:
                connections += 1
                packet = mqtt.published(topic, said.model_dump_json().encode())
                sent += await mqtt.repeat(packet, FLOOD_MBPS, left_s) * len(packet)
        except (OSError, EOFError):
            await asyncio.sleep(0.2)
    return {"sent_mb": sent / 1e6, "connections": connections}


async def full_disk(cluster: GuardedCluster) -> dict[str, Any]:
    """Nothing that the coordinator writes may grow any more; then it may again."""
    async with _limited(cluster, resource.RLIMIT_FSIZE, 1):
        await asyncio.sleep(STARVED_S)
        refused = await _joined(cluster)
        during = await _answers(cluster)
    await asyncio.sleep(AFTER_S)
    return {"join": refused, "health": during, "join_afterwards": await _joined(cluster)}


async def no_descriptors(cluster: GuardedCluster) -> dict[str, Any]:
    """No more than four files and connections may be opened; a member pauses and comes back."""
    fake = cluster.fake(memory_bytes=1)
    async with fake.member():
        descriptors = sum(cluster.open_files().values()) + DESCRIPTORS_LEFT
        async with _limited(cluster, resource.RLIMIT_NOFILE, descriptors):
            await fake.say(WISH, NodeWish(wish="pause"))
            await asyncio.sleep(3.0)
            await fake.say(WISH, NodeWish(wish="serve"))
            await asyncio.sleep(STARVED_S)
            during = await _answers(cluster)
    await asyncio.sleep(AFTER_S)
    return {"health": during, "health_afterwards": await _answers(cluster)}


async def _joined(cluster: GuardedCluster) -> str:
    try:
        await cluster.fake().join()
    except (MolinkError, OSError) as error:
        return str(error).replace(str(cluster.run.folder), "DIR")[:200]
    return "joined"


@asynccontextmanager
async def _limited(cluster: GuardedCluster, what: int, soft: int) -> AsyncIterator[None]:
    """Lower a limit of the coordinator, and raise it again."""
    up = psutil.Process(cluster.run.up.pid)
    before = resource.prlimit(up.pid, what)
    resource.prlimit(up.pid, what, (soft, before[1]))
    try:
        yield
    finally:
        if up.is_running():
            resource.prlimit(up.pid, what, before)


LOADS: tuple[Load, ...] = (
    long_posts,
    silence,
    presence_repeated,
    profile_repeated,
    full_disk,
    no_descriptors,
)


@experiment
@click.option("--only", "names", multiple=True, help="Of loads; without it all.")
def main(out: Path, names: tuple[str, ...]) -> None:
    """Put every load on a cluster that serves."""
    raise_file_limit()
    rows = []
    for load in LOADS:
        if not names or load.__name__ in names:
            rows.append(asyncio.run(_row(load)))
            click.echo(json.dumps(rows[-1]), err=True)
            write_report(out, "load", {"rows": rows}, "guard-load-embedded")
    show(table(rows))


async def _row(load: Load) -> dict[str, Any]:
    async with guarded_cluster() as cluster:
        await cluster.window()
        await asyncio.sleep(BEFORE_S)
        before = await cluster.window()
        cluster.start_watch()
        try:
            found = await load(cluster)
        except (MolinkError, OSError, EOFError) as error:
            found = {"ended_with": f"{type(error).__name__}: {error}"[:300]}
        during = await cluster.window()
        await asyncio.sleep(AFTER_S)
        row = {"load": load.__name__, "found": found} | await verdict(cluster, before, during)
        if cluster.alive:
            row["serves_after_s"] = await cluster.recovered()
        return row | {"log": cluster.log()}


def table(rows: list[dict[str, Any]]) -> str:
    """One row for each load."""
    head = (
        "load",
        "p99 gap before, ms",
        "during, ms",
        "ratio",
        "broken off / refused",
        "honest lost",
        "slowest GET /cluster, s",
        "coordinator",
    )
    return markdown_table(head, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["load"].replace("_", " "),
        f"{row['gap_p99_before_ms']:.0f}",
        f"{row['gap_p99_during_ms']:.0f}",
        f"{row['gap_ratio']:.2f}{'' if row['gap_ratio'] <= AIM else ' MISSED'}",
        f"{sum(row['failures'].values())} / {sum(row['refused'].values())}",
        ", ".join(row["honest_lost"]) or "nobody",
        f"{row['slowest_cluster_s']:.1f}",
        "lives" if row["alive"] else "ENDED",
    ]


if __name__ == "__main__":
    main()
