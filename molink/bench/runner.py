"""Runner of a load: its requests, planned and carried out over HTTP.

A plan has two levers. `slots` bounds how many requests are in flight at once; `start_s` keeps a
request back until then. A closed loop (so many users, each sending the next request when the last
one is answered) is slots and zero start times; a trace is start times and as many slots as
requests.

Each slot is a task that takes the next planned request, waits for its start time, streams it and
goes on. A request that fails is a record with its error: a load goes on through failures, because
how many there are is one of its results. Recording is a clock reading and a list append for each
event, so that the generator does not measure itself.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random

from molink.client.api_client import ApiClient, RefusedError
from molink.errors import UserError
from molink.workload.trace import TraceRequest

WARM_UP_INPUT_TOKENS_MAX = 32
WARM_UP_OUTPUT_TOKENS_MAX = 4
"""Warm-up requests touch every stage and open the connections; longer ones would only take time."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """Request of a load: prompt, length of the answer, and when to send it."""

    prompt_token_ids: tuple[int, ...]
    output_tokens: int
    seed: int
    start_s: float = 0.0
    """Time after the run's start before which it is not sent."""


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Requests of a load in the order in which they are sent."""

    requests: Sequence[PlannedRequest]
    slots: int
    """Requests in flight at most."""

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError("a plan needs at least one slot")
        starts = [request.start_s for request in self.requests]
        if starts != sorted(starts):
            raise ValueError("a plan's requests are in the order of their start times")


def closed_loop(
    random: Random, vocabulary_size: int, lengths: TraceRequest, *, slots: int, requests: int
) -> RequestPlan:
    """Random prompts of one length, `slots` of them in flight until all are answered."""
    planned = [random_request(random, vocabulary_size, lengths) for _ in range(requests)]
    return RequestPlan(planned, slots)


def open_loop(
    random: Random, vocabulary_size: int, requests: Sequence[TraceRequest]
) -> RequestPlan:
    """Random prompts of a trace's lengths, each sent when the trace says."""
    planned = [random_request(random, vocabulary_size, request) for request in requests]
    return RequestPlan(planned, slots=max(1, len(planned)))


def random_request(random: Random, vocabulary_size: int, lengths: TraceRequest) -> PlannedRequest:
    """A request with a random prompt of these lengths."""
    return PlannedRequest(
        prompt_token_ids=tuple(random.choices(range(vocabulary_size), k=lengths.input_tokens)),
        output_tokens=lengths.output_tokens,
        seed=random.getrandbits(63),
        start_s=lengths.start_s,
    )


def warm_up(
    random: Random, vocabulary_size: int, lengths: TraceRequest, *, slots: int, rounds: int
) -> RequestPlan:
    """Plan of `rounds` requests for each slot, no longer than these lengths and short in any
    case."""
    short = TraceRequest(
        0.0,
        min(lengths.input_tokens, WARM_UP_INPUT_TOKENS_MAX),
        min(lengths.output_tokens, WARM_UP_OUTPUT_TOKENS_MAX),
    )
    return closed_loop(random, vocabulary_size, short, slots=slots, requests=rounds * slots)


# -- carrying out ----------------------------------------------------------------------------------


@dataclass(slots=True)
class RequestRecord:
    """Record of one request: when it started, got each token, and ended, by one clock."""

    start_s: float
    end_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    """Times of the tokens, one each; tokens that came in one event share a time."""
    error: str | None = None
    token_ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    """Tokens of its prompt that were cached, as the server says."""
    status: int | None = None
    """HTTP status with which the server refused it; None: it did not."""

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token; None: none has come."""
        return self.token_times_s[0] - self.start_s if self.token_times_s else None


async def run_plan(
    client: ApiClient,
    plan: RequestPlan,
    *,
    temperature: float,
    done: Callable[[RequestRecord], None] = lambda record: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[RequestRecord]:
    """Send every request of `plan`, and call `done` with each one's record when it ends.

    Records are in the order of ends.
    """
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
                record.token_ids += event["token_ids"]
                record.cached_tokens = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    except UserError as error:
        record.error = str(error)
        record.status = error.status if isinstance(error, RefusedError) else None
    record.end_s = time.perf_counter()
