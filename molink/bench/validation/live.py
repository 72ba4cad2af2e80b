"""Ask a scenario's requests of a ring of real processes behind emulated links, as its users do.

    python -m molink.bench.validation --scenario FILE --model MODEL --json OUT --round 0

`molink serve` is started with the scenario's options, warmed up with one prompt, and asked every
request at its time over HTTP. OUT gets what each request's user saw, in seconds since the load
began, what GET /cluster said before and after, and how much of the PC others took meanwhile.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from random import Random
from typing import Any

from molink.bench.plan import PlannedRequest, random_request
from molink.bench.runner import RequestRecord, send
from molink.bench.validation.others import OthersWatch
from molink.bench.validation.ring import Ring
from molink.bench.validation.server_process import ServerProcess
from molink.client.api_client import ApiClient
from molink.client.served_model import ServedModel
from molink.errors import UserError
from molink.workload.loads import ScenarioRequest, requests_of
from molink.workload.scenario_file import ValidationScenario
from molink.workload.trace import TraceRequest
from molink.workload.warm_up import WARM_UP_OUTPUT_TOKENS, warm_up_tokens

__all__ = ["run_live"]

_Plan = Sequence[tuple[ScenarioRequest, PlannedRequest]]
"""What is asked, and as whose request."""


async def run_live(scenario: ValidationScenario, model: str, number: int) -> dict[str, Any]:
    """One round on a fresh ring; its `number` seeds the prompts' tokens.

    Raises UserError when the server does not start or a request fails.
    """
    async with _serving(scenario, model, number) as ring:
        plan = _plan(ring, scenario)
        before = await ring.settled_cluster()
        asked = await _asked(ring, plan)
        after = await ring.settled_cluster()
    return asked | {"busy_s": _busy_s(before, after), "before": before, "after": after}


async def _asked(ring: Ring, plan: _Plan) -> dict[str, Any]:
    """Every request at its time: what their users saw, and what else went on meanwhile."""
    watch = OthersWatch.start(ring.server.pid)
    began_s = time.perf_counter()
    records = await asyncio.gather(*(_ask(ring, one, began_s) for _, one in plan))
    wall_s = time.perf_counter() - began_s
    others_cores = watch.cores()
    requests = [
        _seen(planned, record, began_s) for (planned, _), record in zip(plan, records, strict=True)
    ]
    return {"requests": requests, "wall_s": wall_s, "others_cores": others_cores}


def _busy_s(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[float]:
    """Of each stage, between two answers of GET /cluster."""
    return [
        late["busy_s"] - early["busy_s"]
        for early, late in zip(before["stages"], after["stages"], strict=True)
    ]


@asynccontextmanager
async def _serving(scenario: ValidationScenario, model: str, seed: int) -> AsyncIterator[Ring]:
    server = await ServerProcess.start(model, scenario.serve_options)
    try:
        async with ApiClient(server.url) as client:
            ring = Ring(client, await ServedModel.ask(client), server, Random(seed))
            longest = max(one.input_tokens for one in requests_of(scenario.loads))
            await ring.ask(warm_up_tokens(longest), WARM_UP_OUTPUT_TOKENS)
            yield ring
    finally:
        await server.stop()


def _plan(ring: Ring, scenario: ValidationScenario) -> _Plan:
    """All prompts are made before the clock starts."""

    def prompt(one: ScenarioRequest) -> PlannedRequest:
        lengths = TraceRequest(one.start_s, one.input_tokens, one.output_tokens)
        return random_request(ring.random, ring.model.vocabulary_size, lengths)

    return [(one, prompt(one)) for one in requests_of(scenario.loads)]


async def _ask(ring: Ring, planned: PlannedRequest, began_s: float) -> RequestRecord:
    await ring.sleep_until(began_s + planned.start_s)
    record = RequestRecord(start_s=time.perf_counter())
    await send(ring.client, planned, 0.0, record)
    if record.error is not None:
        raise UserError(f"a request failed, the run is void: {record.error}")
    return record


def _seen(planned: ScenarioRequest, record: RequestRecord, began_s: float) -> dict[str, Any]:
    return asdict(planned) | {
        "asked_s": record.start_s - began_s,
        "token_times_s": [at - began_s for at in record.token_times_s],
    }
