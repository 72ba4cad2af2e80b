"""A coordinator and its agents as real processes, each with a data directory of its own."""

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from molink.node.stage_handle import STAGE_MODULE
from molink_agent.daemon.step_times import FORMATS_KEPT, STEPS_FILE
from tests.end_to_end.command_line import READY_WITHIN_S, command_line, started
from tests.end_to_end.forked import stage
from tests.end_to_end.forked.process import ForkedProcess

STOP_WITHIN_S = 30

STAGE_MODULES = {STAGE_MODULE, stage.__name__}
"""One of them is what a stage's process runs."""


@dataclass
class Program:
    """A running `molink` with what it prints."""

    process: subprocess.Popen | ForkedProcess
    lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self):
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def line(self, start: str) -> str:
        """The first line that begins so; fails when the program ends without."""
        return self._first(start, lambda line: line.startswith(start))

    def line_with(self, *parts: str) -> str:
        """The first line in which one of them stands; fails when the program ends without."""
        return self._first(parts, lambda line: any(part in line for part in parts))

    def _first(self, wanted: object, fits: Callable[[str], bool]) -> str:
        def found():
            return [line for line in self.lines if fits(line)]

        with self._news:
            done = self._news.wait_for(
                lambda: found() or self.process.poll() is not None, READY_WITHIN_S
            )
        assert done and found(), (wanted, self.lines)
        return found()[0]

    def stage_pids(self) -> list[int]:
        """Ids of the stage processes that it parents, the oldest first: those that serve, then the
        one that waits for the loss of one."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        stages = [one for one in family if not STAGE_MODULES.isdisjoint(one.cmdline())]
        return [one.pid for one in sorted(stages, key=lambda one: one.create_time())]

    def ended(self) -> int:
        return self.process.wait(timeout=STOP_WITHIN_S)

    def kill(self):
        """As a power cut: the agent and its stage at once."""
        family = [*psutil.Process(self.process.pid).children(recursive=True)]
        for one in (*family, psutil.Process(self.process.pid)):
            one.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=10)
        self.process.wait()


@dataclass
class Cluster:
    """`molink up` and the agents that joined."""

    folder: Path
    model: Path
    up: Program
    url: str
    invite: str
    stack: ExitStack
    arguments: tuple[str, ...]
    """Of `molink`, with which it was started."""
    agents: dict[str, Program] = field(default_factory=dict)

    def start_again(self):
        """The coordinator is killed and started anew; agents stay as they are."""
        self.up.kill()
        self.up = self.stack.enter_context(running(*self.arguments))

    def data_dir(self, name: str) -> Path:
        return self.folder / name

    def join(
        self,
        name: str,
        *options: str,
        known_steps: bool = False,
        device: str = "cpu",
        environment: Mapping[str, str] = {},
        forks: bool = True,
    ) -> Program:
        """Start an agent; with `known_steps` it need not time a layer first, with `forks` its
        stages start at once."""
        if known_steps:
            self._write_steps(name)
        directory = str(self.data_dir(name))
        fixed = ("--data-dir", directory, "--listen", "127.0.0.1", "--no-map-ports")
        arguments = ("agent", "join", self.invite, "--name", name, *fixed, *options)
        joined = running(*arguments, "--device", device, environment=environment, forks=forks)
        self.agents[name] = self.stack.enter_context(joined)
        return self.agents[name]

    def agent(self, command: str, name: str, *arguments: str):
        """`molink agent COMMAND` for the agent of this name."""
        place = ("--data-dir", str(self.data_dir(name)))
        line = command_line("agent", command, *arguments, *place, forks=True)
        return subprocess.run(line, capture_output=True, text=True, timeout=READY_WITHIN_S)

    def operator(self, *arguments: str):
        """A command of the operator, such as `node list`."""
        place = ("--data-dir", str(self.folder / "coordinator"))
        line = command_line(*arguments, *place, forks=True)
        return subprocess.run(line, capture_output=True, text=True, timeout=READY_WITHIN_S)

    def _write_steps(self, name: str):
        directory = self.data_dir(name)
        directory.mkdir(exist_ok=True)
        times = {"decode_fixed_s": 1e-3, "decode_row_s": 1e-5, "prefill_row_s": 1e-4}
        keys = {f"{self.model.name} on cpu with {n} threads": times for n in range(1, 65)}
        plain = {"plain": {"read_s": 0.05, "row_s": 0.01}}
        keys |= {f"{FORMATS_KEPT} on cpu with {n} threads": plain for n in range(1, 65)}
        (directory / STEPS_FILE).write_text(json.dumps(keys))


@contextmanager
def running(*arguments: str, environment: Mapping[str, str] = {}, forks: bool = True):
    """A `molink` command until the block ends; nothing of it is left behind. One with modules of
    its own is not forked."""
    process = started(
        *arguments,
        waits=arguments[0] != "agent",
        forks=forks and "PYTHONPATH" not in environment,
        stderr=subprocess.STDOUT,
        environment=environment,
    )
    program = Program(process)
    try:
        yield program
    finally:
        alive = process.poll() is None
        family = psutil.Process(process.pid).children(recursive=True) if alive else []
        if alive:
            process.send_signal(signal.SIGTERM)
            program.ended()
        psutil.wait_procs(family, timeout=10)


@contextmanager
def cluster(folder: Path, model: Path, *options: str, environment: Mapping[str, str] = {}):
    """`molink up` on free ports of loopback; agents are ended before it."""
    names = ("--port", "--broker-port", "--relay-port", "--agents-port")
    ports = (*(word for name in names for word in (name, "0")), "--host", "127.0.0.1")
    place = ("--data-dir", str(folder / "coordinator"))
    arguments = ("up", str(model), *ports, *place, *options)
    with running(*arguments, environment=environment) as up, ExitStack() as stack:
        invite = up.line("molink agent join").split()[-1]
        url = up.line("listening").split()[-1]
        yield Cluster(folder, model, up, url, invite, stack, arguments)


def free_ports(count: int) -> list[int]:
    """Of loopback, for what must come back at the same place."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
