"""200 answers at once, and 1,000 more that nobody reads: what does the server add to a token?

    python -m tools.experiments.streams.many_streams --out DIR
    python -m tools.experiments.streams.many_streams --out DIR --ring

The server is the API in a process of its own, in front of stages that do no arithmetic
(`paced_server`), or of a ring's client whose ring computes nothing (`--ring`, `paced_ring`); each
of its tokens says when it was made. Readers are another process. Slow readers open a stream, take
its head and then read nothing, from addresses of their own. Readers are watched once all that is on
the way of the slow ones is full: until then these are a thousand users more.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import psutil

from molink.client.api_client import ApiClient
from molink.transport.sockets import raise_file_limit
from tools.experiments.guard.users import percentile
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.harness.processes import cpu_s, driven, line_of
from tools.experiments.streams import paced_ring, paced_server

__all__ = ["main"]

READERS = 200
SLOW_READERS = 1000
TOKENS_PER_S = 20
"""Of each stream: faster than people read."""

SLOW_PACE = 2, 16
"""Tokens per second and KiB of each, of streams that nobody reads: enough that every buffer on the
way is full after some seconds."""

SLOW_AT_ONCE = 100
"""Streams that are opened together: of a ring that has begun none, only so many may wait."""

WARM_UP_TOKENS = 40
"""Of each answer, while streams still open."""

SLOW_ADDRESSES = 20
"""The server lets one address hold a quarter of its connections."""

SLOW_BUFFER_BYTES = 4096
SLOW_SEGMENT_BYTES = 1448
"""As over Ethernet. Segments of loopback are 64 KiB, for which a system lets 2.5 MB wait in each
connection: at this pace they were not full until the connection was closed."""

SLOW_FILL_S = 15.0
"""From the last one's head on: 64 KiB of a connection, as much of an answer and what the system
holds, at SLOW_PACE, and half as long again."""

OPEN_WITHIN_S = 60.0
AIM_S = 0.005
"""At p99, of 200 streams that are read."""


@experiment
@click.option("--for-s", default=20.0, show_default=True, help="How long each is watched.")
@click.option("--ring", is_flag=True, help="In front of a ring's client.")
def main(out: Path, for_s: float, ring: bool) -> None:
    """Watch the readers without, then with the slow ones."""
    raise_file_limit()
    rows = asyncio.run(_rows(for_s, paced_ring.MODULE if ring else paced_server.MODULE))
    name = "many-streams-ring" if ring else "many-streams"
    write_report(out, "streams", {"for_s": for_s, "rows": rows}, name)
    show(table(rows))


async def _rows(for_s: float, module: str) -> list[dict[str, Any]]:
    rows = []
    for slow in (0, SLOW_READERS):
        async with driven(module) as server:
            url = (await line_of(server)).decode().strip()
            async with _slow_readers(url, slow):
                rows.append(await _watched(url, psutil.Process(server.pid), for_s))
            rows[-1]["slow_readers"] = slow
            click.echo(json.dumps(rows[-1]), err=True)
    return rows


async def _watched(url: str, server: psutil.Process, for_s: float) -> dict[str, Any]:
    tokens = WARM_UP_TOKENS + round(for_s * TOKENS_PER_S)
    began_s, cpu_before_s = time.monotonic(), cpu_s(server)
    async with ApiClient(url) as client:
        late = await asyncio.gather(*(_read(client, tokens) for _ in range(READERS)))
    took_s = time.monotonic() - began_s
    added = [one for stream in late for one in stream]
    return {
        "streams": READERS,
        "tokens_per_s": READERS * tokens / took_s,
        "added_p50_s": percentile(added, 0.5),
        "added_p99_s": percentile(added, 0.99),
        "added_most_s": max(added),
        "cpu_share": (cpu_s(server) - cpu_before_s) / took_s,
        "rss_mb": server.memory_info().rss / 1e6,
    }


async def _read(client: ApiClient, tokens: int) -> list[float]:
    """How long each token was under way, in seconds, from the end of the warm-up on."""
    late = []
    body = {"prompt_token_ids": [TOKENS_PER_S, 0], "max_tokens": tokens}
    async for event in client.stream("/generate", body):
        now = time.monotonic()
        late += [now - float(made) for made in event["text"].split()]
    return late[WARM_UP_TOKENS:]


@asynccontextmanager
async def _slow_readers(url: str, count: int) -> AsyncIterator[None]:
    sources = [f"127.0.1.{number % SLOW_ADDRESSES + 1}" for number in range(count)]
    opened: list[socket.socket] = []
    for first in range(0, count, SLOW_AT_ONCE):
        some = sources[first : first + SLOW_AT_ONCE]
        opened += await asyncio.gather(*(_unread(url, source) for source in some))
    await asyncio.sleep(SLOW_FILL_S if count else 0.0)
    try:
        yield
    finally:
        for connection in opened:
            connection.close()


async def _unread(url: str, source: str) -> socket.socket:
    """A stream that was asked for and began, of which nothing more is read."""
    place, loop = urlsplit(url), asyncio.get_running_loop()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SLOW_SEGMENT_BYTES)
    connection.setblocking(False)
    connection.bind((source, 0))
    await loop.sock_connect(connection, (place.hostname, place.port))
    body = json.dumps({"prompt_token_ids": SLOW_PACE, "max_tokens": 900_000, "stream": True})
    head = (
        f"POST /generate HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )
    await loop.sock_sendall(connection, head.encode())
    async with asyncio.timeout(OPEN_WITHIN_S):
        first = await loop.sock_recv(connection, 64)
    assert b" 200 " in first, first
    return connection


def table(rows: list[dict[str, Any]]) -> str:
    """One row without slow readers, one with them."""
    head = (
        "readers",
        "slow readers",
        "tokens/s",
        "added to a token p50, ms",
        "p99, ms",
        "most, ms",
        "processor",
        "memory, MB",
    )
    return markdown_table(head, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    missed = " MISSED" if row["added_p99_s"] >= AIM_S and not row["slow_readers"] else ""
    return [
        str(row["streams"]),
        str(row["slow_readers"]),
        f"{row['tokens_per_s']:.0f}",
        f"{row['added_p50_s'] * 1e3:.1f}",
        f"{row['added_p99_s'] * 1e3:.1f}{missed}",
        f"{row['added_most_s'] * 1e3:.1f}",
        f"{row['cpu_share']:.0%}",
        f"{row['rss_mb']:.0f}",
    ]


if __name__ == "__main__":
    main()
