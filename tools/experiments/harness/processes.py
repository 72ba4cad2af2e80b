"""Processes that an experiment starts: read line by line, given orders by lines, and ended.

`running` is for experiments that wait in threads, `driven` for those that are coroutines.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from molink.errors import UserError

__all__ = ["MOLINK", "Running", "cpu_s", "driven", "line_of", "running", "suspended"]

MOLINK = "molink.cli.main"

LINE_WITHIN_S = 180.0
STOP_WITHIN_S = 60.0


@dataclass(slots=True)
class Running:
    """A process, and what it has printed when, on the clock of `time.perf_counter`."""

    process: "subprocess.Popen[str]"
    started_s: float
    lines: list[tuple[float, str]] = field(default_factory=list)
    _printed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def line(self, start: str = "") -> tuple[float, str]:
        """When it first printed a line that begins with `start`, and that line.

        Raises UserError when it does not within three minutes.
        """

        def found() -> list[tuple[float, str]]:
            return [line for line in self.lines if line[1].startswith(start)]

        with self._printed:
            self._printed.wait_for(lambda: bool(found()), LINE_WITHIN_S)
        if not found():
            raise UserError(f"{self.process.args!r} printed no {start!r}: {self.lines[-3:]}")
        return found()[0]

    def read(self) -> None:
        """Collect what it prints until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._printed:
                self.lines.append((time.perf_counter(), line.rstrip()))
                self._printed.notify_all()


@contextmanager
def running(
    module: str,
    *words: str,
    within: Sequence[str] = (),
    environment: Mapping[str, str] = {},
    quiet: bool = False,
    log: Path | None = None,
) -> Iterator[Running]:
    """Run `python -m MODULE WORDS` until the block is left, then end it and its children.

    `within` is a command that runs it, such as `ip netns exec NAME`; `quiet` drops what it prints
    on standard error, `log` keeps that in a file.
    """
    errors = log.open("a") if log is not None else None
    process = subprocess.Popen(
        [*within, sys.executable, "-m", module, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors or (subprocess.DEVNULL if quiet else None),
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
    )
    if errors is not None:
        errors.close()  # The process has its own.
    started = Running(process, time.perf_counter())
    threading.Thread(target=started.read, daemon=True).start()
    try:
        yield started
    finally:
        children = psutil.Process(process.pid).children(True) if process.poll() is None else []
        process.terminate()
        process.wait(STOP_WITHIN_S)
        psutil.wait_procs(children, timeout=STOP_WITHIN_S)


@contextmanager
def suspended(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Let processes stand still until the block is left; their sockets stay open."""
    for one in processes:
        one.suspend()
    try:
        yield
    finally:
        for one in processes:
            if one.is_running():
                one.resume()


@asynccontextmanager
async def driven(module: str, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `python -m MODULE WORDS`, which ends when its standard input does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def line_of(process: asyncio.subprocess.Process, order: str | None = None) -> bytes:
    """Give an order, if there is one, and read the next line. Raises UserError at its end."""
    assert process.stdin is not None and process.stdout is not None
    if order is not None:
        process.stdin.write(f"{order}\n".encode())
    line = await process.stdout.readline()
    if not line:
        raise UserError("a process of the experiment has ended: what it said stands above")
    return line


def cpu_s(*processes: psutil.Process) -> float:
    """Processor seconds that these processes have used so far."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))
