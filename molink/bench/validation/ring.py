"""A server under test: a ring of three stages behind the REST API."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import psutil

from molink.bench.plan import PlannedRequest, random_request
from molink.bench.runner import RequestRecord, send
from molink.bench.validation.experiment import Condition, Setup
from molink.bench.validation.server_process import ServerProcess
from molink.client.api_client import ApiClient
from molink.client.served_model import ServedModel
from molink.errors import UserError
from molink.workload.trace import TraceRequest

__all__ = ["NODES", "Ring", "serving", "serving_over"]

NODES = 3
WARM_UP_PROMPT_TOKENS = 600
"""A second of prefill on a slow link: the estimates stand before anything is counted."""

HEALTH_SETTLED_S = 1.2
"""Stages report twice a second; after this GET /cluster knows all that has happened."""

EMULATOR = "molink.transport.emulator"


@dataclass(frozen=True, slots=True)
class Ring:
    """A running server, its client and its model."""

    client: ApiClient
    model: ServedModel
    server: ServerProcess
    random: Random

    def request(self, input_tokens: int, output_tokens: int) -> PlannedRequest:
        """A random prompt."""
        lengths = TraceRequest(0.0, input_tokens, output_tokens)
        return random_request(self.random, self.model.vocabulary_size, lengths)

    async def ask(self, input_tokens: int, output_tokens: int) -> RequestRecord:
        """Send a random prompt and wait for the end of the answer; UserError when it fails."""
        record = RequestRecord(start_s=time.perf_counter())
        await send(self.client, self.request(input_tokens, output_tokens), 0.0, record)
        if record.error is not None:
            raise UserError(f"a request failed, the run is void: {record.error}")
        return record

    async def cluster(self) -> dict[str, Any]:
        """What the ring says of itself now."""
        report: dict[str, Any] = await self.client.get("/cluster")
        return report

    async def settled_cluster(self) -> dict[str, Any]:
        """The same, once every stage has reported what happened until now."""
        await asyncio.sleep(HEALTH_SETTLED_S)
        return await self.cluster()

    async def sleep_until(self, at_s: float) -> None:
        """Sleep until a time on the clock of `time.perf_counter`."""
        await asyncio.sleep(max(0.0, at_s - time.perf_counter()))

    def emulator_started_s(self) -> float:
        """When the emulated links' time began, on the clock of `time.perf_counter`.

        Its process was created then; it reads its clock some 0.1 s later, once it has imported.
        """
        age_s = time.time() - self.emulator().create_time()
        return time.perf_counter() - age_s

    def emulator(self) -> psutil.Process:
        """The process of the emulated links."""
        for child in psutil.Process(self.server.pid).children(recursive=True):
            if EMULATOR in child.cmdline():
                return child
        raise UserError("the server emulates no links: give --link")


@asynccontextmanager
async def serving(
    setup: Setup, condition: Condition, seed: int, link: str | None = None
) -> AsyncIterator[Ring]:
    """Start a ring with emulated links under a condition, warm it up, and end it."""
    async with serving_over(("--link", link or setup.link), setup, condition, seed) as ring:
        yield ring


@asynccontextmanager
async def serving_over(
    links: Sequence[str],
    setup: Setup,
    condition: Condition,
    seed: int,
    environment: Mapping[str, str] = {},
) -> AsyncIterator[Ring]:
    """The same with other links, as options of `molink serve`."""
    options: Sequence[str] = ("--nodes", str(NODES), *links, *setup.serve_options)
    arguments = [*options, *condition.options]
    server = await ServerProcess.start(setup.model, arguments, environment)
    try:
        async with ApiClient(server.url) as client:
            ring = Ring(client, await ServedModel.ask(client), server, Random(seed))
            await ring.ask(WARM_UP_PROMPT_TOKENS, 8)
            yield ring
    finally:
        await server.stop()
