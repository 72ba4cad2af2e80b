"""Carry a plan out over HTTP and record when each token came.

Each slot is a task that takes the next planned request, waits for its start time, streams it and
goes on. A request that fails is a record with its error: a load goes on through failures, because
how many there are is one of its results. Recording is a clock reading and a list append for each
event, so that the generator does not measure itself.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from molink.bench.plan import PlannedRequest, RequestPlan
from molink.client.api_client import ApiClient
from molink.errors import UserError

__all__ = ["RequestRecord", "run_plan", "send"]


@dataclass(slots=True)
class RequestRecord:
    """What happened to one request, in seconds of one clock."""

    start_s: float
    end_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    """One for each token; tokens that came in one event share a time."""
    error: str | None = None


async def run_plan(
    client: ApiClient,
    plan: RequestPlan,
    *,
    temperature: float,
    done: Callable[[RequestRecord], None] = lambda record: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[RequestRecord]:
    """Send every request of `plan`; `done` hears of each one's end. Records are in the order of
    ends."""
    records: list[RequestRecord] = []
    waiting = iter(plan.requests)
    began_s = time.perf_counter()

    def finished(record: RequestRecord) -> None:
        records.append(record)
        done(record)

    async def hold_back(planned: PlannedRequest) -> None:
        early_s = began_s + planned.start_s - time.perf_counter()
        if early_s > 0:
            await sleep(early_s)

    async with asyncio.TaskGroup() as slots:
        for _ in range(min(plan.slots, len(plan.requests))):
            slots.create_task(_slot(client, hold_back, waiting, temperature, finished))
    return records


async def _slot(
    client: ApiClient,
    hold_back: Callable[[PlannedRequest], Awaitable[None]],
    waiting: Iterator[PlannedRequest],
    temperature: float,
    finished: Callable[[RequestRecord], None],
) -> None:
    for planned in waiting:
        await hold_back(planned)
        record = RequestRecord(start_s=time.perf_counter())
        await send(client, planned, temperature, record)
        finished(record)


async def send(
    client: ApiClient, planned: PlannedRequest, temperature: float, record: RequestRecord
) -> None:
    """Send one request and write into `record` what happens; it can be read meanwhile."""
    body = {
        "prompt_token_ids": planned.prompt_token_ids,
        "max_tokens": planned.output_tokens,
        "temperature": temperature,
        "seed": planned.seed,
        "ignore_eos": True,
    }
    try:
        async with aclosing(client.stream("/generate", body)) as events:
            async for event in events:
                now_s = time.perf_counter()
                record.token_times_s.extend([now_s] * len(event["token_ids"]))
    except UserError as error:
        record.error = str(error)
    record.end_s = time.perf_counter()
