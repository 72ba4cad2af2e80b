"""What do batches take of a ring's idle room, and what do users notice of them?

    python -m tools.experiments.streams.idle_room --out DIR

`molink serve demo` with three stages behind emulated home links. First a batch alone; then users
who read a streamed answer and think between two; then both. *Idle room used*: tokens of the batch
beside users, over those that it gets alone in the part of that time in which no user's request is
under way.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
import click

from molink.bench.served_ring import ServerProcess
from molink.tasks import cancel, spawn
from tools.experiments.guard.users import percentile
from tools.experiments.harness.experiment import (
    Condition,
    Figures,
    Measured,
    experiment,
    figures_of,
    in_turn,
    markdown_table,
    medians,
    milliseconds,
    rounds_option,
    show,
    write_report,
)

__all__ = ["main"]

LINES, PROMPT_TOKENS, ANSWER_TOKENS = 4000, 64, 48

THINKS_S = 2.0

RAMP_S = 3.0
"""Seconds that a batch begins in, which are not counted."""

COUNTER = "molink_tokens_generated_total"


@dataclass
class Load:
    """Users of a server, and what they saw."""

    session: aiohttp.ClientSession
    random: Random = field(default_factory=lambda: Random(5))
    gaps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    tokens: int = 0
    under_way: int = 0
    busy_s: float = 0.0
    """Time in which a request was under way."""
    _since: float = 0.0

    def clear(self) -> None:
        """Forget what was counted, and count from now on."""
        self.gaps, self.firsts, self.tokens, self.busy_s = [], [], 0, 0.0
        self._since = time.monotonic()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self._since = time.monotonic() if not self.under_way else self._since
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            if not self.under_way:
                self.busy_s += time.monotonic() - self._since

    async def user(self) -> None:
        """Ask, read, think, until cancelled."""
        while True:
            await asyncio.sleep(THINKS_S * (0.5 + self.random.random()))
            with self._asking():
                await self._ask()

    async def _ask(self) -> None:
        body = {"prompt_token_ids": prompt(self.random), "max_tokens": ANSWER_TOKENS}
        before, begun = time.monotonic(), False
        body |= {"stream": True, "ignore_eos": True}
        async with self.session.post("/generate", json=body) as answer:
            async for line in answer.content:
                if not line.startswith(b'data: {"'):
                    continue
                count = len(json.loads(line[6:]).get("token_ids", ()))
                now = time.monotonic()
                if count:
                    (self.gaps if begun else self.firsts).append(now - before)
                    before, begun, self.tokens = now, True, self.tokens + count


def prompt(random: Random) -> list[int]:
    """A prompt that nobody has asked before."""
    return [random.randrange(3, 90) for _ in range(PROMPT_TOKENS)]


@experiment
@click.option("--users", default=2, show_default=True, help="Who ask one after the other.")
@click.option("--seconds", default=16.0, show_default=True, help="Of each part.")
@click.option("--link", default="20:30", show_default=True, help="Mbit/s:ms of every hop.")
@rounds_option(1)
def main(out: Path, users: int, seconds: float, link: str, rounds: int) -> None:
    """Measure a batch alone, users alone, and both."""

    async def measure(condition: Condition, number: int) -> Measured:
        return Measured(await _measure(users, seconds, link))

    runs = in_turn([Condition(link)], rounds, measure)
    middle = medians(runs)
    facts = {"users": users, "seconds": seconds, "rounds": rounds}
    write_report(out, "idle_room", {**facts, "medians": middle, "runs": figures_of(runs)})
    show(table(middle))


async def _measure(users: int, seconds: float, link: str) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        options = ("--nodes", "3", "--link", link)
        server = await ServerProcess.start("demo", options, {"XDG_DATA_HOME": folder})
        try:
            async with aiohttp.ClientSession(server.url) as session:
                return await _parts(session, users, seconds)
        finally:
            await server.stop()


async def _parts(session: aiohttp.ClientSession, users: int, seconds: float) -> Figures:
    load, batch = Load(session), await _begin_batch(session)
    await asyncio.sleep(RAMP_S)
    before = await _generated(session)
    await asyncio.sleep(seconds)
    alone_per_s = (await _generated(session) - before) / seconds
    async with session.post(f"/v1/batches/{batch}/cancel", json={}) as answer:
        answer.raise_for_status()
    readers = [spawn(load.user()) for _ in range(users)]
    await asyncio.sleep(RAMP_S)
    load.clear()
    await asyncio.sleep(seconds)
    figures: Figures = {
        "alone_tokens_per_s": alone_per_s,
        "p99_alone_s": percentile(load.gaps, 0.99),
        "p50_alone_s": percentile(load.gaps, 0.5),
        "ttft_alone_s": percentile(load.firsts, 0.5),
        "gaps_alone": len(load.gaps),
    }
    await _begin_batch(session)
    await asyncio.sleep(RAMP_S)
    load.clear()
    before, began = await _generated(session), time.monotonic()
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - began
    tokens = await _generated(session) - before - load.tokens
    busy_s = load.busy_s + (time.monotonic() - load._since if load.under_way else 0.0)
    await cancel(*readers)
    idle = max(1e-9, 1 - busy_s / took_s)
    return figures | {
        "p99_beside_s": percentile(load.gaps, 0.99),
        "p50_beside_s": percentile(load.gaps, 0.5),
        "ttft_beside_s": percentile(load.firsts, 0.5),
        "gaps_beside": len(load.gaps),
        "idle_share": idle,
        "beside_tokens_per_s": tokens / took_s,
        "idle_room_used": tokens / took_s / (alone_per_s * idle),
    }


async def _begin_batch(session: aiohttp.ClientSession) -> str:
    random = Random(time.time_ns())
    lines = []
    for number in range(LINES):
        body = {"prompt": prompt(random), "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        asked = {"custom_id": str(number), "method": "POST", "url": "/v1/completions"}
        lines.append(json.dumps(asked | {"body": body}))
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", "\n".join(lines).encode(), filename="asked.jsonl")
    async with session.post("/v1/files", data=form) as answer:
        answer.raise_for_status()
        file = await answer.json()
    wish = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "1h"}
    async with session.post("/v1/batches", json=wish) as answer:
        answer.raise_for_status()
        return str((await answer.json())["id"])


async def _generated(session: aiohttp.ClientSession) -> float:
    async with session.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(COUNTER))


def table(middle: dict[str, Figures]) -> str:
    """One row for each kind of link."""
    head = (
        "link",
        "batch alone, tokens/s",
        "beside users",
        "idle share of time",
        "idle room used",
        "gap p50 alone, ms",
        "beside",
        "p99 alone, ms",
        "beside",
        "first token p50 alone, ms",
        "beside",
    )
    return markdown_table(head, [[name, *_cells(row)] for name, row in middle.items()])


def _cells(row: Figures) -> list[str]:
    times = ("p50_alone_s", "p50_beside_s", "p99_alone_s", "p99_beside_s")
    return [
        f"{row['alone_tokens_per_s']:.0f}",
        f"{row['beside_tokens_per_s']:.0f}",
        f"{row['idle_share']:.2f}",
        f"{row['idle_room_used']:.2f}",
        *(milliseconds(row[name]) for name in (*times, "ttft_alone_s", "ttft_beside_s")),
    ]


if __name__ == "__main__":
    main()
