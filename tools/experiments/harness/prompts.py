"""Long prompts: one every so often whatever becomes of the others, or always some under way."""

import asyncio
import time

from molink.bench.runner import RequestRecord
from molink.bench.served_ring import ServedRing

__all__ = ["first_token_s", "prompts_always", "prompts_every"]


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
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return ended


def first_token_s(record: RequestRecord) -> float:
    """Time to first token."""
    return record.token_times_s[0] - record.start_s
