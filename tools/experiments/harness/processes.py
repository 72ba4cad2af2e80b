"""Processes of the control plane's benchmarks: told by lines, ended by the end of their input."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from molink.errors import UserError

__all__ = ["line_of", "running"]


@asynccontextmanager
async def running(module: str, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """One of this package's modules."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tools.experiments.swarm.{module}", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def line_of(process: asyncio.subprocess.Process) -> bytes:
    """Its next line. Raises UserError when it has ended."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise UserError("a process of the benchmark has ended: what it said stands above")
    return line
