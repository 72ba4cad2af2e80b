"""A coordinator and agents on this machine, started as a person would, ended with the block."""

import json
import os
import signal
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from molink.api.server import free_ports
from molink.errors import UserError
from tools.experiments.harness.hosts import LOCAL_ADDRESS, RingHosts, StageAddress
from tools.experiments.harness.processes import MOLINK, Running, running

__all__ = ["PORTS", "AgentsRun", "agents_run", "get_json", "is_timed"]

POLL_S = 0.1
KILLED_WITHIN_S, STOPPED_WITHIN_S = 10.0, 120.0
PORTS = ("--port", "--broker-port", "--relay-port", "--agents-port")

Report = dict[str, Any]
"""The answer of GET /cluster."""


@dataclass(slots=True)
class AgentsRun:
    """A running `molink up` and its agents."""

    folder: Path
    up: Running
    url: str
    invite: str
    _stack: ExitStack
    _start: Callable[[], Running]
    """Starts the coordinator."""
    log: Path
    """Standard error of the coordinator."""
    homes: Sequence[StageAddress] = ()
    """Where agents run, in the order in which they join; empty: all on loopback."""
    agents: list[Running] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Of the agents."""

    def join(self, name: str, *options: str, program: Sequence[str] = (MOLINK,)) -> Running:
        """Start an agent that listens at its home's address; `program`: by which module, and the
        module's own words."""
        home = self.home(len(self.agents))
        place = ("--data-dir", str(self.folder / name), "--listen", home.address, "--no-map-ports")
        words = ("agent", "join", self.invite, "--name", name, *place, *options)
        agent = running(*program, *words, within=home.command, log=self.folder / f"{name}.log")
        self.names.append(name)
        self.agents.append(self._stack.enter_context(agent))
        return self.agents[-1]

    def home(self, agent: int) -> StageAddress:
        """Where an agent runs."""
        return self.homes[agent] if self.homes else StageAddress()

    def family(self, agent: int) -> list[psutil.Process]:
        """An agent's process, behind those that it has started."""
        own = psutil.Process(self.agents[agent].pid)
        return [*own.children(recursive=True), own]

    def stop(self, agent: int) -> None:
        """As Ctrl-C in its terminal; returns when it has ended."""
        process = self.agents[agent].process
        process.send_signal(signal.SIGINT)
        process.wait(STOPPED_WITHIN_S)

    def kill(self, agent: int) -> None:
        """As when a PC is switched off, but for its connections, which its kernel closes."""
        _kill(self.family(agent))

    def run_again(self, agent: int) -> None:
        """Start an agent that has ended, as its PC does when it is switched on."""
        place = ("--data-dir", str(self.folder / self.names[agent]))
        within, log = self.home(agent).command, self.folder / f"{self.names[agent]}.log"
        again = running(MOLINK, "agent", "run", *place, within=within, log=log)
        self.agents[agent] = self._stack.enter_context(again)

    def start_again(self) -> None:
        """Kill the coordinator, and start it anew at the same ports; agents stay as they are."""
        _kill([*psutil.Process(self.up.pid).children(recursive=True), psutil.Process(self.up.pid)])
        self.up = self._start()

    def wait(self, done: Callable[[Report], bool], within_s: float) -> Report:
        """Ask GET /cluster until `done`. Raises UserError when that takes too long."""
        deadline_s = time.perf_counter() + within_s
        while not done(report := get_json(f"{self.url}/cluster")):
            if time.perf_counter() > deadline_s:
                raise UserError(f"still after {within_s:g} s: {report['unready_reason']}")
            time.sleep(POLL_S)
        return report


@contextmanager
def agents_run(
    model: str,
    up_options: Sequence[str],
    hosts: RingHosts | None = None,
    program: Sequence[str] = (MOLINK,),
    *,
    data_dir: Path | None = None,
    keys: bool = False,
) -> Iterator[AgentsRun]:
    """Run a coordinator on free ports, with data that are thrown away; on loopback, or at home.
    `program`: by which module, and the module's own words. `data_dir`: where its data are, `keys`:
    whether the API asks for them once there are some."""
    listen = hosts.coordinator_address if hosts is not None else LOCAL_ADDRESS
    with (
        tempfile.TemporaryDirectory(prefix="molink-bench-") as folder,
        ExitStack() as stack,
    ):
        numbers = zip(PORTS, free_ports(listen, len(PORTS)), strict=True)
        ports = (*(word for name, port in numbers for word in (name, str(port))), "--host", listen)
        kept = data_dir or Path(folder, "coordinator")
        place = ("--data-dir", str(kept), *(("--no-keys",) * (not keys)))
        log = Path(folder, "up.log")
        words = ("up", model, *ports, *place, *up_options)

        def start() -> Running:
            return stack.enter_context(running(*program, *words, log=log))

        up_running = start()
        invite = up_running.line("molink agent join")[1].split()[-1]
        url = up_running.line("listening")[1].split()[-1]
        agents = stack.enter_context(ExitStack())
        homes = hosts.stages if hosts is not None else ()
        yield AgentsRun(Path(folder), up_running, url, invite, agents, start, log, homes)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(processes, timeout=KILLED_WITHIN_S)


def get_json(url: str) -> dict[str, Any]:
    """The JSON object at a URL, asked with the key of the environment, if there is one."""
    key = os.environ.get("MOLINK_API_KEY")
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(asked) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def is_timed(node: dict[str, Any]) -> bool:
    """Whether a node of GET /cluster has timed a layer of the model."""
    return bool(node["profile"] and node["profile"]["steps"])
