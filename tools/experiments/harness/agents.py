"""A coordinator and agents on this machine, started as a person would, ended with the block."""

import json
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from molink.config.ring_hosts import LOCAL_ADDRESS, RingHosts, StageAddress
from molink.errors import UserError
from tools.experiments.harness.processes import MOLINK, Running, running

__all__ = ["AgentsRun", "agents_run", "get_json", "is_timed"]

POLL_S = 0.1

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
    log: Path
    """Standard error of the coordinator."""
    homes: Sequence[StageAddress] = ()
    """Where agents run, in the order in which they join; empty: all on loopback."""
    agents: list[Running] = field(default_factory=list)

    def join(self, name: str, *options: str) -> Running:
        """Start an agent that listens at its home's address."""
        home = self.homes[len(self.agents)] if self.homes else StageAddress()
        place = ("--data-dir", str(self.folder / name), "--listen", home.address, "--no-map-ports")
        words = ("agent", "join", self.invite, "--name", name, *place, *options)
        agent = running(MOLINK, *words, within=home.command, quiet=True)
        self.agents.append(self._stack.enter_context(agent))
        return self.agents[-1]

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
    model: str, up_options: Sequence[str], hosts: RingHosts | None = None
) -> Iterator[AgentsRun]:
    """Run a coordinator on free ports, with data that are thrown away; on loopback, or at home."""
    listen = hosts.coordinator_address if hosts is not None else LOCAL_ADDRESS
    with tempfile.TemporaryDirectory(prefix="molink-bench-") as folder, ExitStack() as stack:
        names = ("--port", "--broker-port", "--relay-port", "--agents-port")
        ports = (*(word for name in names for word in (name, "0")), "--host", listen)
        place = ("--data-dir", f"{folder}/coordinator", "--no-keys")
        log = Path(folder, "up.log")
        up = running(MOLINK, "up", model, *ports, *place, *up_options, log=log)
        up_running = stack.enter_context(up)
        invite = up_running.line("molink agent join")[1].split()[-1]
        url = up_running.line("listening")[1].split()[-1]
        agents = stack.enter_context(ExitStack())
        homes = hosts.stages if hosts is not None else ()
        yield AgentsRun(Path(folder), up_running, url, invite, agents, log, homes)


def get_json(url: str) -> dict[str, Any]:
    """The JSON object at a URL."""
    with urllib.request.urlopen(url) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def is_timed(node: dict[str, Any]) -> bool:
    """Whether a node of GET /cluster has timed a layer of the model."""
    return bool(node["profile"] and node["profile"]["steps"])
