"""Rings of three stages that an experiment starts, under one of its conditions."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from molink.bench.load import Settings, run_load
from molink.bench.served_ring import PROGRAM, ServedRing, serve_ring
from molink.errors import UserError
from molink.tasks import cancel
from tools.experiments.harness.experiment import (
    PRODUCT_POLICY,
    Condition,
    Figures,
    Measured,
    Setup,
    in_turn,
    write_results,
)
from tools.experiments.harness.policy_ring import MODULE, POLICY_VARIABLE

__all__ = [
    "NODES",
    "ClusterLog",
    "emulator_of",
    "emulator_started_s",
    "link_of",
    "logging_cluster",
    "rings_in_turn",
    "run_whole_load",
    "serving",
    "serving_over",
]

NODES = 3

WARM_UP_TOKENS = (600, 8)
"""Prompt and answer. A second of prefill on a slow link: the estimates stand before anything is
counted."""

EMULATOR = "molink.transport.emulator"

LOG_PERIOD_S = 0.2


@asynccontextmanager
async def serving(
    setup: Setup, condition: Condition, seed: int, link: str | None = None
) -> AsyncIterator[ServedRing]:
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
    program: str = PROGRAM,
) -> AsyncIterator[ServedRing]:
    """The same with other links, as options of `molink serve` or of another program."""
    options = ["--nodes", str(NODES), *links, *setup.serve_options, *condition.options]
    if condition.policy != PRODUCT_POLICY:
        program = MODULE if program == PROGRAM else program
        environment = {**environment, POLICY_VARIABLE: condition.policy}
    own = (environment, program)
    async with serve_ring(setup.model, options, seed, WARM_UP_TOKENS, *own) as ring:
        yield ring


def rings_in_turn(
    name: str,
    setup: Setup,
    conditions: Sequence[Condition],
    figures_of: Callable[[ServedRing, int], Awaitable[Figures]],
    own: Mapping[str, Any] = {},
) -> dict[str, Figures]:
    """Medians of the figures of rings that serve under each condition in turn, also written to
    OUT/NAME.json with the experiment's `own` options; `figures_of` is given the number of the
    round."""

    async def measure(condition: Condition, number: int) -> Measured:
        async with serving(setup, condition, number) as ring:
            return Measured(await figures_of(ring, number))

    return write_results(name, setup, own, in_turn(conditions, setup.rounds, measure))


async def run_whole_load(settings: Settings) -> dict[str, Any]:
    """The report of a load of which every request was answered. Raises UserError otherwise."""
    report = await run_load(settings)
    if report["failed"]:
        raise UserError(f"{report['failed']} requests failed: {report['first_error']}")
    return report


# -- the emulated links ---------------------------------------------------------------------------


def emulator_of(ring: ServedRing) -> psutil.Process:
    """The process of the emulated links."""
    for child in psutil.Process(ring.server.pid).children(recursive=True):
        if EMULATOR in child.cmdline():
            return child
    raise UserError("the server emulates no links: give --link")


def emulator_started_s(ring: ServedRing) -> float:
    """When the emulated links' time began, on the clock of `time.perf_counter`.

    Its process was created then; it reads its clock some 0.1 s later, once it has imported.
    """
    age_s = time.time() - emulator_of(ring).create_time()
    return time.perf_counter() - age_s


# -- what the ring says of itself -----------------------------------------------------------------


def link_of(report: dict[str, Any], source: str, target: str) -> dict[str, Any]:
    """The link between two nodes, in an answer of GET /cluster."""
    found: dict[str, Any] = next(
        link for link in report["links"] if (link["from"], link["to"]) == (source, target)
    )
    return found


@dataclass(slots=True)
class ClusterLog:
    """Answers of GET /cluster, and when they came."""

    reports: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def series(self, source: str, target: str, key: str) -> list[tuple[float, float]]:
        """One number of one link over time."""
        return [(at, link_of(report, source, target)[key]) for at, report in self.reports]


@asynccontextmanager
async def logging_cluster(ring: ServedRing) -> AsyncIterator[ClusterLog]:
    """Ask GET /cluster five times a second, until the block is left."""
    log = ClusterLog()

    async def poll() -> None:
        while True:
            log.reports.append((time.perf_counter(), await ring.cluster()))
            await asyncio.sleep(LOG_PERIOD_S)

    task = asyncio.create_task(poll())
    try:
        yield log
    finally:
        await cancel(task)
