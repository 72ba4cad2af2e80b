"""A coordinator and agents on this machine, started as a person would, ended with the block."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from molink.config.ring_hosts import LOCAL_ADDRESS, RingHosts, StageAddress
from molink.errors import UserError

__all__ = ["AgentsRun", "Command", "agents_run"]

LINE_WITHIN_S = 180.0
STOP_WITHIN_S = 20.0


@dataclass(slots=True)
class Command:
    """A running `molink`; when it printed what, on the clock of `time.perf_counter`."""

    process: "subprocess.Popen[str]"
    started_s: float
    lines: list[tuple[float, str]] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def listen(self) -> None:
        """Read what it prints, in a thread."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append((time.perf_counter(), line.rstrip()))
                self._news.notify_all()

    def line(self, start: str) -> tuple[float, str]:
        """When it first printed a line that begins so. Raises UserError when it never does."""

        def found() -> list[tuple[float, str]]:
            return [one for one in self.lines if one[1].startswith(start)]

        with self._news:
            self._news.wait_for(lambda: bool(found()), LINE_WITHIN_S)
        if not found():
            raise UserError(f"{self.process.args!r} printed no {start!r}: {self.lines[-3:]}")
        return found()[0]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


@dataclass(slots=True)
class AgentsRun:
    """`molink up` and its agents."""

    folder: Path
    up: Command
    url: str
    invite: str
    _stack: ExitStack
    homes: Sequence[StageAddress] = ()
    """Where agents run, in the order in which they join; empty: all on loopback."""
    agents: list[Command] = field(default_factory=list)

    def join(self, name: str, *options: str) -> Command:
        """Start an agent that listens at its home's address."""
        home = self.homes[len(self.agents)] if self.homes else StageAddress()
        place = ("--data-dir", str(self.folder / name), "--listen", home.address, "--no-map-ports")
        arguments = ("agent", "join", self.invite, "--name", name, *place, *options)
        self.agents.append(self._stack.enter_context(_running(arguments, home.command)))
        return self.agents[-1]


@contextmanager
def agents_run(
    model: str, up_options: Sequence[str], hosts: RingHosts | None = None
) -> Iterator[AgentsRun]:
    """A coordinator on free ports, with data that are thrown away; on loopback, or at home."""
    listen = hosts.coordinator_address if hosts is not None else LOCAL_ADDRESS
    with tempfile.TemporaryDirectory(prefix="molink-bench-") as folder, ExitStack() as stack:
        ports = ("--port", "0", "--broker-port", "0", "--relay-port", "0", "--host", listen)
        place = ("--data-dir", f"{folder}/coordinator")
        up = stack.enter_context(_running(("up", model, *ports, *place, *up_options)))
        invite = up.line("molink agent join")[1].split()[-1]
        url = up.line("listening")[1].split()[-1]
        agents = stack.enter_context(ExitStack())
        homes = hosts.stages if hosts is not None else ()
        yield AgentsRun(Path(folder), up, url, invite, agents, homes)


@contextmanager
def _running(arguments: Sequence[str], within: Sequence[str] = ()) -> Iterator[Command]:
    started_s = time.perf_counter()
    process = subprocess.Popen(
        [*within, sys.executable, "-m", "molink.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    command = Command(process, started_s)
    command.listen()
    try:
        yield command
    finally:
        children = psutil.Process(process.pid).children(True) if process.poll() is None else []
        process.terminate()
        process.wait(STOP_WITHIN_S)
        psutil.wait_procs(children, timeout=STOP_WITHIN_S)
