"""What does a thousand agents' coordinator cost, and how soon does it notice that one is lost?

    python -m tools.experiments.control.coordinator_scale MODEL --out DIR

A real `molink up`, all of it: registry, broker, relay, hub, node book, manager, planner, API.
Made-up agents join it with its invite, forty at a time, from one process; they say who they are,
answer its probe orders with made-up times and ways, say once a second how they are, and download
what they are assigned for ever. All the while somebody asks GET /health ten times a second: how
long the slowest answer took is how long the coordinator's event loop was held up. When everybody is
planned for, CPU is measured, one agent after the other is killed or frozen, and GET /cluster is
asked until it says lost. No token is computed; about two minutes for each broker.
"""

import asyncio
import json
import os
import platform
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import click
import psutil

from molink.errors import UserError
from molink.transport.sockets import raise_file_limit
from tools.experiments.harness.agents import AgentsRun, agents_run
from tools.experiments.harness.processes import line_of, running
from tools.experiments.harness.results import markdown_table, milliseconds

__all__ = ["main"]

LOOK_S = 0.1
"""Between two questions at the event loop's health."""

LOST_LOOK_S = 0.25
"""Between two looks at GET /cluster, which is a megabyte at a thousand nodes."""

BETWEEN_LOSSES_S = 0.7
NOTICED_WITHIN_S = 30.0
MEASURED_WITHIN_S = 300.0
PLANNED_WITHIN_S = 600.0
SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a coordinator is asked to bear."""

    model: str
    agents: int
    at_once: int
    steady_s: float
    lost: int


@click.command()
@click.argument("model")
@click.option(
    "--agents", default=1000, show_default=True, type=click.IntRange(10, 1000), help="In all."
)
@click.option(
    "--broker", "brokers", multiple=True, default=("mosquitto", "embedded"), show_default=True
)
@click.option("--at-once", default=40, show_default=True, help="Agents that join together.")
@click.option("--steady-s", default=15.0, show_default=True, help="How long CPU is measured.")
@click.option("--lost", default=4, show_default=True, help="Agents killed, and as many frozen.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the JSON.")
def main(
    model: str,
    agents: int,
    brokers: tuple[str, ...],
    at_once: int,
    steady_s: float,
    lost: int,
    out: Path,
) -> None:
    """Measure what agents cost the coordinator of MODEL."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # What was started is ended as well.
    raise_file_limit()
    out.mkdir(parents=True, exist_ok=True)
    machine = {"cores": os.cpu_count(), "system": platform.platform()}
    found = []
    for kind in brokers:
        load = Load(model, agents, at_once, steady_s, lost)
        one = asyncio.run(_measured(kind, load))
        found.append(one)
        report = {
            "experiment": "coordinator_scale",
            "machine": machine,
            "load": asdict(load) | {"model": Path(model).name},
            "figures": one,
        }
        path = out / f"coordinator-{kind}-{agents}.json"
        path.write_text(json.dumps(report, indent=2) + "\n")
        click.echo(json.dumps(one), err=True)
    click.echo(f"\n{table(found)}\n")


async def _measured(kind: str, load: Load) -> dict[str, Any]:
    options = ("--broker", kind, "--min-nodes", str(load.agents))
    with agents_run(load.model, options) as run:
        async with aiohttp.ClientSession() as session:
            watch = Watch(run, session)
            looking = asyncio.create_task(watch.look())
            try:
                return {"broker": kind, "agents": load.agents} | await _with_swarm(load, watch)
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)


@dataclass(slots=True)
class Watch:
    """Somebody who asks the coordinator how it is."""

    run: AgentsRun
    session: aiohttp.ClientSession
    slowest_s: float = 0.0
    """Answer since this was last set to 0."""
    reason: str = ""
    """Why nothing serves, as GET /health has it."""
    stalls_s: list[float] = field(default_factory=list)

    async def look(self) -> None:
        """Until cancelled."""
        while True:
            began_s = time.monotonic()
            answer = await self.ask("/health")
            self.reason = str(answer.get("reason", ""))
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            await asyncio.sleep(LOOK_S)

    async def ask(self, path: str) -> dict[str, Any]:
        """The JSON of an answer."""
        async with self.session.get(f"{self.run.url}{path}") as response:
            found: dict[str, Any] = await response.json()
        return found

    def take_slowest_s(self) -> float:
        """Since the last call."""
        slowest_s, self.slowest_s = self.slowest_s, 0.0
        return slowest_s

    async def until(self, done: Callable[[str], bool], within_s: float) -> float:
        """How long it took until that held of the reason. Raises UserError when it never does."""
        began_s = time.monotonic()
        while not done(self.reason):
            if time.monotonic() - began_s > within_s:
                raise UserError(f"still after {within_s:g} s: {self.reason}")
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began_s


async def _with_swarm(load: Load, watch: Watch) -> dict[str, Any]:
    words = (str(load.agents), str(load.at_once), watch.run.invite)
    meter = Meter.of(watch.run.up.pid)
    idle_mb = meter.memory_mb()["coordinator"]
    async with running("members", *words) as swarm:
        joined = json.loads(await line_of(swarm))
        joining = meter.shares()
        figures = {
            "joined": joined["joined"],
            "first_error": joined["first_error"],
            "joins_per_s": joined["joined"] / joined["took_s"],
            "cpu_while_joining": joining,
            "stall_while_joining_s": watch.take_slowest_s(),
        }
        if joined["joined"] < load.agents:
            raise UserError(f"{joined['joined']} joined; the first other: {joined['first_error']}")
        figures |= await _planned(watch)
        figures |= await _steady(load, watch, meter)
        figures["memory_idle_mb"] = idle_mb
        figures |= await _lost(swarm, load, watch)
        assert swarm.stdin is not None
        swarm.stdin.write(b"count\n")
        return figures | {"told": json.loads(await line_of(swarm))}


async def _planned(watch: Watch) -> dict[str, Any]:
    """Until all are measured and placed, and how long a plan takes beside."""
    measured_s = await watch.until(lambda reason: "measure" not in reason, MEASURED_WITHIN_S)
    stall_measuring_s = watch.take_slowest_s()
    placed_s = await watch.until(lambda reason: "loading" in reason, PLANNED_WITHIN_S)
    stall_placing_s = watch.take_slowest_s()
    began_s = time.monotonic()
    plan = await watch.ask("/plan")
    return {
        "measured_s": measured_s,
        "stall_while_measuring_s": stall_measuring_s,
        "placed_s": placed_s,
        "stall_while_placing_s": stall_placing_s,
        "plan_s": time.monotonic() - began_s,
        "stall_while_planning_s": watch.take_slowest_s(),
        "rings": len(plan["plan"]["rings"]),
        "users": sum(ring["users"] for ring in plan["plan"]["rings"]),
    }


async def _steady(load: Load, watch: Watch, meter: "Meter") -> dict[str, Any]:
    await asyncio.sleep(SETTLE_S)
    meter.shares()
    watch.take_slowest_s()
    await asyncio.sleep(load.steady_s)
    shares = meter.shares()
    stall_s = watch.take_slowest_s()
    began_s = time.monotonic()
    report = await watch.ask("/cluster")
    return {
        "cpu": shares,
        "memory_mb": meter.memory_mb(),
        "stall_s": stall_s,
        "cluster_s": time.monotonic() - began_s,
        "states": _states(report),
    }


def _states(report: dict[str, Any]) -> dict[str, int]:
    states = [node["state"] for node in report["nodes"]]
    return {state: states.count(state) for state in sorted(set(states))}


async def _lost(
    swarm: asyncio.subprocess.Process, load: Load, watch: Watch
) -> dict[str, list[float | None]]:
    """Seconds until GET /cluster said of each lost agent that it is."""
    lost: dict[str, tuple[str, float]] = {}
    noticed: dict[str, float] = {}
    assert swarm.stdin is not None
    looking = asyncio.create_task(_look_for_lost(watch, 2 * load.lost, lost, noticed))
    for number in range(2 * load.lost):
        order, name = ("freeze", "kill")[number % 2], f"pc{number * 7:04d}"
        swarm.stdin.write(f"{order} {name}\n".encode())
        lost[name] = (order, float(await line_of(swarm)))
        await asyncio.sleep(BETWEEN_LOSSES_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(NOTICED_WITHIN_S):
            await looking
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    told: dict[str, list[float | None]] = {"kill_s": [], "freeze_s": []}
    for name, (order, at_s) in lost.items():
        told[f"{order}_s"].append(noticed[name] - at_s if name in noticed else None)
    return told


async def _look_for_lost(
    watch: Watch, wanted: int, lost: dict[str, tuple[str, float]], noticed: dict[str, float]
) -> None:
    while len(noticed) < wanted:
        report = await watch.ask("/cluster")
        now_s = time.monotonic()
        for node in report["nodes"]:
            if node["state"] == "lost" and node["name"] in lost:
                noticed.setdefault(node["name"], now_s)
        await asyncio.sleep(LOST_LOOK_S)


@dataclass(slots=True)
class Meter:
    """CPU and memory of the coordinator and of the broker beside it, if there is one."""

    processes: dict[str, psutil.Process]
    _used_s: dict[str, float] = field(default_factory=dict)
    _at_s: float = 0.0

    @classmethod
    def of(cls, pid: int) -> "Meter":
        """The processes of a running `molink up`."""
        up = psutil.Process(pid)
        beside = {child.name(): child for child in up.children(True)}
        meter = cls({"coordinator": up} | beside)
        meter.shares()
        return meter

    def shares(self) -> dict[str, float]:
        """Of one core, since the last call."""
        now_s = time.monotonic()
        used = {name: sum(one.cpu_times()[:2]) for name, one in self.processes.items()}
        elapsed_s = now_s - self._at_s
        shares = {name: (used[name] - self._used_s.get(name, 0.0)) / elapsed_s for name in used}
        self._used_s, self._at_s = used, now_s
        return shares

    def memory_mb(self) -> dict[str, float]:
        """Resident."""
        return {name: one.memory_info().rss / 1e6 for name, one in self.processes.items()}


def table(found: list[dict[str, Any]]) -> str:
    """One row for each broker."""
    head = (
        "broker",
        "agents",
        "joins/s",
        "all measured after, s",
        "placed after, s",
        "a plan takes, s",
        "CPU of a core",
        "memory, MB",
        "longest stall, ms",
        "killed, s",
        "frozen, s",
    )
    return markdown_table(head, [_row(one) for one in found])


def _row(one: dict[str, Any]) -> list[str]:
    stalls = [value for key, value in one.items() if key.startswith("stall_")]
    return [
        one["broker"],
        f"{one['agents']:,}",
        f"{one['joins_per_s']:.0f}",
        f"{one['measured_s']:.1f}",
        f"{one['placed_s']:.1f}",
        f"{one['plan_s']:.1f}",
        f"{one['cpu']['coordinator']:.0%}",
        f"{one['memory_mb']['coordinator']:.0f}",
        milliseconds(max(stalls)),
        _longest(one["kill_s"]),
        _longest(one["freeze_s"]),
    ]


def _longest(times_s: list[float | None]) -> str:
    known = [one for one in times_s if one is not None]
    return f"{max(known):.1f}" if len(known) == len(times_s) else "never"


if __name__ == "__main__":
    main()
