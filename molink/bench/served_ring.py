"""A `molink serve` in a process of its own, warmed up, for a measurement to put questions to."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from molink.bench.runner import PlannedRequest, RequestRecord, random_request, send
from molink.client.api_client import ApiClient, ListedModel
from molink.errors import UserError
from molink.json_object import JsonObject
from molink.workload.trace import TraceRequest

PROGRAM = "molink.cli.main"
"""Module of the command; an experiment may have one of its own."""

PROGRAM = "molink.cli.main"
"""Module of the command; an experiment may have one of its own."""

HEALTH_SETTLED_S = 1.2
"""Stages report twice a second; after this GET /cluster knows all that has happened."""


@dataclass(slots=True)
class ServerProcess:
    """Server process on a free port of this machine."""

    process: asyncio.subprocess.Process
    url: str

    @classmethod
    async def start(
        cls,
        model: str,
        options: Sequence[str],
        environment: Mapping[str, str] = {},
        program: str = PROGRAM,
    ) -> "ServerProcess":
        """Start it, with more of an environment than ours, and wait until it is ready.

        Raises UserError when it does not get there.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", program, "serve", model, "--port", "0", *options),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
        )
        server = cls(process, "")
        try:
            server.url = await server._ready_url()
        except BaseException:
            await server.stop()
            raise
        return server

    async def _ready_url(self) -> str:
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode()
        if not line.startswith("ready "):
            raise UserError("The server did not start: what it said stands above.")
        return line.split()[1]

    @property
    def pid(self) -> int:
        """The server's process id; its stages are its children."""
        return self.process.pid

    async def stop(self) -> None:
        """End the server and its stages."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await self.process.wait()


@dataclass(frozen=True, slots=True)
class ServedRing:
    """Ring of a running server, asked through its REST API."""

    client: ApiClient
    model: ListedModel
    server: ServerProcess
    random: Random

    def request(self, input_tokens: int, output_tokens: int) -> PlannedRequest:
        """A request with a random prompt."""
        lengths = TraceRequest(0.0, input_tokens, output_tokens)
        return random_request(self.random, self.model.vocabulary_size, lengths)

    async def ask(self, input_tokens: int, output_tokens: int) -> RequestRecord:
        """Send a random prompt and wait for the answer's end. Raises UserError when it fails."""
        return await self.send(self.request(input_tokens, output_tokens))

    async def send(self, planned: PlannedRequest) -> RequestRecord:
        """Send a request and wait for the answer's end. Raises UserError when it fails."""
        record = RequestRecord(start_s=time.perf_counter())
        await send(self.client, planned, 0.0, record)
        if record.error is not None:
            raise UserError(f"a request failed, the run is void: {record.error}")
        return record

    async def cluster(self) -> JsonObject:
        """The answer of GET /cluster."""
        report: JsonObject = await self.client.get("/cluster")
        return report

    async def settled_cluster(self) -> JsonObject:
        """The answer of GET /cluster once every stage has reported what happened until now."""
        await asyncio.sleep(HEALTH_SETTLED_S)
        return await self.cluster()

    async def sleep_until(self, at_s: float) -> None:
        """Sleep until a time on the clock of `time.perf_counter`."""
        await asyncio.sleep(max(0.0, at_s - time.perf_counter()))


@asynccontextmanager
async def serve_ring(
    model: str,
    options: Sequence[str],
    seed: int,
    warm_up: tuple[int, int],
    environment: Mapping[str, str] = {},
    program: str = PROGRAM,
) -> AsyncIterator[ServedRing]:
    """Start `molink serve` with these options, ask one prompt of it, and end it with the block.

    `warm_up` is how many tokens that prompt and its answer have; `seed` is that of all prompts.
    """
    server = await ServerProcess.start(model, options, environment, program)
    try:
        async with ApiClient(server.url) as client:
            ring = ServedRing(client, await ListedModel.ask(client), server, Random(seed))
            await ring.ask(*warm_up)
            yield ring
    finally:
        await server.stop()
