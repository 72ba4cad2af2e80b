"""The real half of `molink sim compare`: a scenario's requests, asked of real processes.

    python -m molink.bench.validation --scenario FILE --model MODEL --json OUT --round 0

`molink serve` is started with the scenario's options, warmed up with one prompt, and asked every
request at its time over HTTP. OUT gets what each request's user saw, in seconds since the load
began, what GET /cluster said before and after, and how much of the PC others took meanwhile.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from molink.bench.runner import PlannedRequest, RequestRecord, random_request
from molink.bench.served_ring import ServedRing, serve_ring
from molink.errors import MolinkError
from molink.tasks import gathered
from molink.workload.loads import (
    WARM_UP_OUTPUT_TOKENS,
    ScenarioRequest,
    requests_of,
    warm_up_tokens,
)
from molink.workload.scenario_file import ValidationScenario, read_scenario
from molink.workload.trace import TraceRequest

EXIT_USER_ERROR = 2

_Plan = Sequence[tuple[ScenarioRequest, PlannedRequest]]
"""Requests, and the scenario's request that each stands for."""

IDLE = ("idle", "iowait", "guest", "guest_nice")
"""States that are not busy, or counted elsewhere: guests are in the user's time too."""


@click.command()
@click.option("--scenario", type=click.Path(path_type=Path), required=True, help="A TOML file.")
@click.option("--model", required=True, help="A directory or hub id.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), required=True, help="Output.")
@click.option("--round", "number", default=0, show_default=True, help="Seeds the prompts' tokens.")
def main(scenario: Path, model: str, json_path: Path, number: int) -> None:
    """Ask a scenario's requests of a real ring."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # The server is ended as well.
    try:
        found = asyncio.run(run_live(read_scenario(scenario), model, number))
    except MolinkError as error:
        print(f"molink: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    json_path.write_text(json.dumps(found) + "\n")


async def run_live(scenario: ValidationScenario, model: str, number: int) -> dict[str, Any]:
    """Run one round on a fresh ring; its `number` seeds the prompts' tokens.

    Raises UserError when the server does not start or a request fails.
    """
    longest = max(request.input_tokens for request in requests_of(scenario.loads))
    warm_up = warm_up_tokens(longest), WARM_UP_OUTPUT_TOKENS
    async with serve_ring(model, scenario.serve_options, number, warm_up) as ring:
        plan = _plan(ring, scenario)
        before = await ring.settled_cluster()
        asked = await _asked(ring, plan)
        after = await ring.settled_cluster()
    return asked | {"busy_s": _stages_busy_s(before, after), "before": before, "after": after}


async def _asked(ring: ServedRing, plan: _Plan) -> dict[str, Any]:
    """Send every request at its time; what their users saw, and what others computed meanwhile."""
    watch = OthersWatch.start(ring.server.pid)
    began_s = time.perf_counter()
    records = await gathered(_ask(ring, request, began_s) for _, request in plan)
    wall_s = time.perf_counter() - began_s
    others_cores = watch.cores()
    requests = [
        _seen(planned, record, began_s) for (planned, _), record in zip(plan, records, strict=True)
    ]
    return {"requests": requests, "wall_s": wall_s, "others_cores": others_cores}


def _stages_busy_s(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[float]:
    """How long each stage computed between two answers of GET /cluster."""
    return [
        late["busy_s"] - early["busy_s"]
        for early, late in zip(before["stages"], after["stages"], strict=True)
    ]


def _plan(ring: ServedRing, scenario: ValidationScenario) -> _Plan:
    """All prompts are made before the clock starts."""

    def prompt(request: ScenarioRequest) -> PlannedRequest:
        lengths = TraceRequest(request.start_s, request.input_tokens, request.output_tokens)
        return random_request(ring.random, ring.model.vocabulary_size, lengths)

    return [(request, prompt(request)) for request in requests_of(scenario.loads)]


async def _ask(ring: ServedRing, planned: PlannedRequest, began_s: float) -> RequestRecord:
    await ring.sleep_until(began_s + planned.start_s)
    return await ring.send(planned)


def _seen(planned: ScenarioRequest, record: RequestRecord, began_s: float) -> dict[str, Any]:
    return asdict(planned) | {
        "asked_s": record.start_s - began_s,
        "token_times_s": [at - began_s for at in record.token_times_s],
    }


# -- what others computed -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OthersWatch:
    """Counter of what others took of this PC while a ring was measured, from its start on.

    A round in which another program computed tells nothing of the simulator, and the round's own
    figures do not show it. So it is counted: what the system says was busy, less our own processes.
    """

    server: int
    """Process id; its children count as ours."""
    started_s: float
    others_s: float
    """Seconds of cores that others had taken until then."""

    @classmethod
    def start(cls, server: int) -> "OthersWatch":
        """Start counting now; the processes of `server` are all there."""
        return cls(server, time.perf_counter(), _system_busy_s() - _ours_s(server))

    def cores(self) -> float:
        """The mean number of cores that others took since the start."""
        others_s = _system_busy_s() - _ours_s(self.server) - self.others_s
        return max(0.0, others_s / (time.perf_counter() - self.started_s))


def _system_busy_s() -> float:
    times = psutil.cpu_times()._asdict()
    return float(sum(times.values()) - sum(times.get(name, 0.0) for name in IDLE))


def _ours_s(server: int) -> float:
    root = psutil.Process(server)
    processes = [psutil.Process(), root, *root.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


if __name__ == "__main__":
    main()
