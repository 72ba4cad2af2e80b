"""Rings of three stages that an experiment starts, under one of its conditions."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import psutil

from molink.bench.served_ring import ServedRing, serve_ring
from molink.errors import UserError
from tools.experiments.harness.experiment import Condition, Setup

__all__ = ["NODES", "emulator_of", "emulator_started_s", "serving", "serving_over"]

NODES = 3

WARM_UP_TOKENS = (600, 8)
"""Prompt and answer. A second of prefill on a slow link: the estimates stand before anything is
counted."""

EMULATOR = "molink.transport.emulator"


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
) -> AsyncIterator[ServedRing]:
    """The same with other links, as options of `molink serve`."""
    options = ["--nodes", str(NODES), *links, *setup.serve_options, *condition.options]
    async with serve_ring(setup.model, options, seed, WARM_UP_TOKENS, environment) as ring:
        yield ring


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
