"""What experiments ask of a ring: streams, and long prompts beside them.

Streams are users who watch tokens come: long answers, each followed by the next as soon as it ends.
Prompts come one every so often whatever becomes of the others, or some are always under way.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise

from molink.bench.runner import RequestRecord, send
from molink.bench.served_ring import ServedRing
from molink.errors import UserError
from molink.tasks import cancel

__all__ = ["Gap", "Streams", "decoding", "first_token_s", "prompts_always", "prompts_every"]

PROMPT_TOKENS = 16
FLOWING_TOKENS = 4
"""So many tokens from every stream, and it counts as flowing."""

FLOWING_S_MAX = 60.0

Gap = tuple[float, float]
"""(when it ended, how long it was), in seconds."""


class Streams:
    """Answers that some users have seen so far."""

    def __init__(self, count: int) -> None:
        self.answers: list[list[RequestRecord]] = [[] for _ in range(count)]

    @property
    def flowing(self) -> bool:
        """Whether every stream has brought some tokens."""
        return all(self._tokens(stream) >= FLOWING_TOKENS for stream in self.answers)

    def gaps(self, start_s: float, end_s: float) -> list[Gap]:
        """Between neighbouring tokens of one answer, those that ended between two times."""
        return [
            (b, b - a)
            for answer in self._all()
            for a, b in pairwise(answer.token_times_s)
            if start_s <= b < end_s
        ]

    def longest_gap_s(self, start_s: float, end_s: float) -> float:
        """The longest silence of any stream, one that did not end counted too."""
        ended = [gap for _, gap in self.gaps(start_s, end_s)]
        open_s = [
            end_s - max(start_s, *stream[-1].token_times_s[-1:], stream[-1].start_s)
            for stream in self.answers
        ]
        return max(*ended, *open_s, 0.0)

    @staticmethod
    def _tokens(stream: list[RequestRecord]) -> int:
        return sum(len(answer.token_times_s) for answer in stream)

    def _all(self) -> Iterable[RequestRecord]:
        return (answer for stream in self.answers for answer in stream)


@asynccontextmanager
async def decoding(ring: ServedRing, count: int, output_tokens: int) -> AsyncIterator[Streams]:
    """Keep so many streams going; yields when all of them flow, ends them on leaving."""
    streams = Streams(count)
    tasks = [asyncio.create_task(_watch(ring, seen, output_tokens)) for seen in streams.answers]
    try:
        await _until_flowing(streams, tasks)
        yield streams
        _raise_ended(tasks)
    finally:
        await cancel(*tasks)


async def _until_flowing(streams: Streams, tasks: Iterable["asyncio.Task[None]"]) -> None:
    give_up_s = time.perf_counter() + FLOWING_S_MAX
    while True:
        _raise_ended(tasks)
        if streams.flowing:
            return
        if time.perf_counter() > give_up_s:
            raise UserError(f"the streams did not flow within {FLOWING_S_MAX:g} s")
        await asyncio.sleep(0.05)


def _raise_ended(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """A stream never ends by itself, unless with an error."""
    for task in tasks:
        if task.done():
            task.result()


async def _watch(ring: ServedRing, seen: list[RequestRecord], output_tokens: int) -> None:
    while True:
        seen.append(RequestRecord(start_s=time.perf_counter()))
        await send(ring.client, ring.request(PROMPT_TOKENS, output_tokens), 0.0, seen[-1])
        if seen[-1].error is not None:
            raise UserError(f"a stream broke off, the run is void: {seen[-1].error}")


# -- prompts --------------------------------------------------------------------------------------


async def prompts_every(
    ring: ServedRing, period_s: float, duration_s: float, input_tokens: int, output_tokens: int
) -> list[RequestRecord]:
    """An open loop; returns when all are answered."""
    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(max(1, int(duration_s / period_s))):
            await asyncio.sleep(began_s + number * period_s - time.perf_counter())
            tasks.append(group.create_task(ring.ask(input_tokens, output_tokens)))
    return [task.result() for task in tasks]


async def prompts_always(
    ring: ServedRing, under_way: int, duration_s: float, input_tokens: int
) -> list[RequestRecord]:
    """So many prompts under way at any time; those that are unfinished at the end are dropped."""
    ended: list[RequestRecord] = []

    async def one_after_another() -> None:
        while True:
            ended.append(await ring.ask(input_tokens, 1))

    tasks = [asyncio.create_task(one_after_another()) for _ in range(under_way)]
    try:
        done, _ = await asyncio.wait(tasks, timeout=duration_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()  # Raises what ended it.
    finally:
        await cancel(*tasks)
    return ended


def first_token_s(record: RequestRecord) -> float:
    """Time to first token."""
    return record.token_times_s[0] - record.start_s
