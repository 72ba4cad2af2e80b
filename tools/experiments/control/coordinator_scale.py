"""What does a thousand agents' coordinator cost, and how soon does it notice that one is lost?

    python -m tools.experiments.control.coordinator_scale MODEL --out DIR

A real `molink up`, all of it: registry, broker, relay, hub, node book, manager, planner, API.
Made-up agents join it with its invite, forty at a time, from one process; they
publish who they are, answer its probe orders with made-up times and routes, publish their health
once a second, and download for ever what they are assigned. All the while GET /health is asked ten
times a second: how long the slowest answer took is how long the coordinator's event loop was held
up. When all are planned for, CPU is measured, one agent after the other is killed or frozen, and
GET /cluster is asked until it reports each as lost. No token is computed; about two minutes.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import click
import psutil

from molink.errors import UserError
from molink.tasks import cancel
from molink.transport.sockets import raise_file_limit
from tools.experiments.harness.agents import AgentsRun, agents_run
from tools.experiments.harness.experiment import (
    experiment,
    markdown_table,
    milliseconds,
    show,
    slowest,
    write_report,
)
from tools.experiments.harness.processes import cpu_s, driven, line_of
from tools.experiments.swarm.members import MODULE as MEMBERS

__all__ = ["main"]

PERIOD_S = 0.1
"""Between two questions for the event loop's health."""

LOST_PERIOD_S = 0.25
"""Between two questions to GET /cluster, which is a megabyte at a thousand nodes."""

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


@experiment
@click.argument("model")
@click.option(
    "--agents", default=1000, show_default=True, type=click.IntRange(10, 1000), help="In all."
)
@click.option("--at-once", default=40, show_default=True, help="Agents that join together.")
@click.option("--steady-s", default=15.0, show_default=True, help="How long CPU is measured.")
@click.option("--lost", default=4, show_default=True, help="Agents killed, and as many frozen.")
def main(out: Path, **load: Any) -> None:
    """Measure what agents cost the coordinator of MODEL."""
    raise_file_limit()
    asked = Load(**load)
    figures = asyncio.run(_measured(asked))
    report = {"load": load | {"model": Path(asked.model).name}, "figures": figures}
    write_report(out, "coordinator_scale", report, f"coordinator-embedded-{asked.agents}")
    click.echo(json.dumps(figures), err=True)
    show(table(figures))


async def _measured(load: Load) -> dict[str, Any]:
    options = ("--min-nodes", str(load.agents))
    with agents_run(load.model, options) as run:
        async with aiohttp.ClientSession() as session:
            watch = HealthWatch(run, session)
            polling = asyncio.create_task(watch.poll())
            try:
                return {"agents": load.agents} | await _with_swarm(load, watch)
            finally:
                await cancel(polling)


@dataclass(slots=True)
class HealthWatch:
    """Client that asks the coordinator for its health all the time."""

    run: AgentsRun
    session: aiohttp.ClientSession
    slowest_s: float = 0.0
    """The slowest answer since this was last set to 0."""
    reason: str = ""
    """Why nothing serves, as GET /health has it."""

    async def poll(self) -> None:
        """Ask until cancelled."""
        while True:
            began_s = time.monotonic()
            answer = await self.ask("/health")
            self.reason = str(answer.get("reason", ""))
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            await asyncio.sleep(PERIOD_S)

    async def ask(self, path: str) -> dict[str, Any]:
        """The JSON of an answer."""
        async with self.session.get(f"{self.run.url}{path}") as response:
            found: dict[str, Any] = await response.json()
        return found

    def take_slowest_s(self) -> float:
        """The slowest answer since the last call."""
        slowest_s, self.slowest_s = self.slowest_s, 0.0
        return slowest_s

    async def until(self, done: Callable[[str], bool], within_s: float) -> float:
        """How long it took until that held of the reason. Raises UserError when it never does."""
        began_s = time.monotonic()
        while not done(self.reason):
            if time.monotonic() - began_s > within_s:
                raise UserError(f"still after {within_s:g} s: {self.reason}")
            await asyncio.sleep(PERIOD_S)
        return time.monotonic() - began_s


async def _with_swarm(load: Load, watch: HealthWatch) -> dict[str, Any]:
    words = (str(load.agents), str(load.at_once), "invite", watch.run.invite)
    meter = Meter.of(watch.run.up.pid)
    idle_mb = meter.memory_mb()["coordinator"]
    async with driven(MEMBERS, *words) as swarm:
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
        return figures | {"told": json.loads(await line_of(swarm, "count"))}


async def _planned(watch: HealthWatch) -> dict[str, Any]:
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


async def _steady(load: Load, watch: HealthWatch, meter: "Meter") -> dict[str, Any]:
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
    swarm: asyncio.subprocess.Process, load: Load, watch: HealthWatch
) -> dict[str, list[float | None]]:
    """Seconds until GET /cluster said of each lost agent that it is."""
    lost: dict[str, tuple[str, float]] = {}
    noticed: dict[str, float] = {}
    apart = load.agents // (2 * load.lost)
    polling = asyncio.create_task(_poll_for_lost(watch, 2 * load.lost, lost, noticed))
    for number in range(2 * load.lost):
        order, name = ("freeze", "kill")[number % 2], f"pc{number * apart:04d}"
        lost[name] = (order, json.loads(await line_of(swarm, f"{order} {name}"))["at_s"])
        await asyncio.sleep(BETWEEN_LOSSES_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(NOTICED_WITHIN_S):
            await polling
    await cancel(polling)
    notices: dict[str, list[float | None]] = {"kill_s": [], "freeze_s": []}
    for name, (order, at_s) in lost.items():
        notices[f"{order}_s"].append(noticed[name] - at_s if name in noticed else None)
    return notices


async def _poll_for_lost(
    watch: HealthWatch, wanted: int, lost: dict[str, tuple[str, float]], noticed: dict[str, float]
) -> None:
    while len(noticed) < wanted:
        report = await watch.ask("/cluster")
        now_s = time.monotonic()
        for node in report["nodes"]:
            if node["state"] == "lost" and node["name"] in lost:
                noticed.setdefault(node["name"], now_s)
        await asyncio.sleep(LOST_PERIOD_S)


@dataclass(slots=True)
class Meter:
    """Meter of CPU and memory: the coordinator's, and those of its children."""

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
        """Shares of a core that each process used since the last call."""
        now_s = time.monotonic()
        used = {name: cpu_s(process) for name, process in self.processes.items()}
        elapsed_s = now_s - self._at_s
        shares = {name: (used[name] - self._used_s.get(name, 0.0)) / elapsed_s for name in used}
        self._used_s, self._at_s = used, now_s
        return shares

    def memory_mb(self) -> dict[str, float]:
        """Resident memory of each process."""
        return {name: process.memory_info().rss / 1e6 for name, process in self.processes.items()}


def table(figures: dict[str, Any]) -> str:
    """One row."""
    head = (
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
    return markdown_table(head, [_row(figures)])


def _row(figures: dict[str, Any]) -> list[str]:
    stalls = [value for key, value in figures.items() if key.startswith("stall_")]
    return [
        f"{figures['agents']:,}",
        f"{figures['joins_per_s']:.0f}",
        f"{figures['measured_s']:.1f}",
        f"{figures['placed_s']:.1f}",
        f"{figures['plan_s']:.1f}",
        f"{figures['cpu']['coordinator']:.0%}",
        f"{figures['memory_mb']['coordinator']:.0f}",
        milliseconds(max(stalls)),
        slowest(figures["kill_s"], 1),
        slowest(figures["freeze_s"], 1),
    ]


if __name__ == "__main__":
    main()
