"""A PC dies or comes back every 20 s while users ask without a pause: is every answer exact?

    python -m tools.experiments.faults.churn --out DIR

A cluster of agents in homes of their own over slow lines. Two of the PCs stay; of the others one
dies, its agent and its stage at once, or is switched on again. What coordinator and those who stay
have of memory, descriptors and threads is printed all the time. Root only.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import click
import psutil

from molink.tasks import cancel
from tools.experiments.faults.answers import Answer, Verdict, ask_until_taken
from tools.experiments.faults.cluster import FaultCluster, Settings, fault_cluster, undisturbed
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

STAY = (0, 1)
"""Agents that are never killed."""

LOOK_PERIOD_S = 10.0


@dataclass(frozen=True, slots=True)
class Held:
    """What a process and those that it has started hold."""

    memory_mb: float
    descriptors: int
    threads: int
    processes: int

    @classmethod
    def of(cls, pid: int) -> "Held":
        """What a process and its children hold at this moment."""
        memory, descriptors, threads, count = 0.0, 0, 0, 0
        own = psutil.Process(pid)
        for one in (own, *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                memory += one.memory_info().rss / 1e6
                descriptors += one.num_fds()
                threads += one.num_threads()
                count += 1
        return cls(memory, descriptors, threads, count)

    def cell(self) -> str:
        """As the text of a cell."""
        return f"{self.memory_mb:.0f} / {self.descriptors} / {self.threads} / {self.processes}"


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one moment."""

    at_s: float
    alive: int
    """Agents."""
    exact: int
    failed: int
    refused: int
    held: dict[str, Held]
    """Of the coordinator and of each agent that stays."""


@dataclass(slots=True)
class Churn:
    """What happens to a cluster, and what users and processes make of it."""

    cluster: FaultCluster
    expected: Sequence[Answer]
    period_s: float
    verdict: Verdict = field(default_factory=Verdict)
    refused: Counter[str] = field(default_factory=Counter)
    """Sentences of requests that were not taken; they were sent again."""
    longest_pause_s: float = 0.0
    looks: list[Look] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    _away: list[int] = field(default_factory=list)
    _random: Random = field(default_factory=lambda: Random(0))
    _began_s: float = field(default_factory=time.perf_counter)
    _ending: bool = False

    @property
    def now_s(self) -> float:
        """Seconds since the churn began."""
        return time.perf_counter() - self._began_s

    async def run(self, for_s: float) -> None:
        """Let PCs come and go; users' last answers are awaited."""
        looking = asyncio.create_task(self._look_on())
        async with asyncio.TaskGroup() as group:
            for user in range(len(self.cluster.asked)):
                group.create_task(self._ask_on(user))
            while self.now_s < for_s:
                await asyncio.sleep(self.period_s)
                await asyncio.to_thread(self._change)
            self._ending = True
        self._look()
        await cancel(looking)

    async def _ask_on(self, user: int) -> None:
        request, expected = self.cluster.asked[user], self.expected[user]
        while not self._ending:
            answer = await ask_until_taken(self.cluster.client, request, self.refused)
            self.verdict.add(request, answer, expected)
            self.longest_pause_s = max(self.longest_pause_s, answer.pause_s(0.0))

    def _change(self) -> None:
        """One that is away comes back in every second turn, else one goes."""
        run = self.cluster.run
        if self._away:
            agent = self._away.pop()
            run.run_again(agent)
        else:
            agent = self._random.choice([n for n in range(len(run.agents)) if n not in STAY])
            run.kill(agent)
            self._away.append(agent)
        what = "dies" if agent in self._away else "comes back"
        self.changes.append(f"{self.now_s:.0f} s: {run.names[agent]} {what}")

    async def _look_on(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_PERIOD_S)

    def _look(self) -> None:
        run = self.cluster.run
        pids = {"coordinator": run.up.pid} | {run.names[one]: run.agents[one].pid for one in STAY}
        counts = (self.verdict.exact, sum(self.verdict.failed.values()), self.refused.total())
        held = {name: Held.of(pid) for name, pid in pids.items()}
        look = Look(self.now_s, len(run.agents) - len(self._away), *counts, held)
        self.looks.append(look)
        click.echo(" | ".join(_cells(look)), err=True)


def _cells(look: Look) -> list[str]:
    counts = (look.alive, look.exact, look.failed, look.refused)
    held = [one.cell() for one in look.held.values()]
    return [f"{look.at_s:.0f}", *(str(one) for one in counts), *held]


def _table(looks: Sequence[Look], every: int) -> str:
    head = ("s", "agents", "exact answers", "failed", "refused", *looks[0].held)
    rows = [*looks[:-1:every], looks[-1]]
    return markdown_table(head, [_cells(look) for look in rows])


@experiment
@click.option("--for-s", default=600.0, show_default=True, help="Of churn.")
@click.option("--period-s", default=20.0, show_default=True, help="Between two changes.")
@click.option("--link", metavar="MBPS:MS", default="100:30", show_default=True, help="Each home's.")
@click.option("--stages", default=5, show_default=True, help="Of the first ring.")
@click.option("--spare", default=0, show_default=True, help="PCs that are to stand by at first.")
@click.option("--users", default=16, show_default=True, help="Half greedy, half seeded.")
@click.option("--tokens", default=80, show_default=True, help="Of each answer.")
def main(
    out: Path,
    for_s: float,
    period_s: float,
    link: str,
    stages: int,
    spare: int,
    users: int,
    tokens: int,
) -> None:
    """Let PCs come and go under load."""
    settings = Settings(link, stages, spare, users=users, tokens=tokens)
    asyncio.run(_run(settings, out, for_s, period_s))


async def _run(settings: Settings, out: Path, for_s: float, period_s: float) -> None:
    async with fault_cluster(settings) as cluster:
        churn = Churn(cluster, await undisturbed(cluster), period_s)
        await churn.run(for_s)
        events = (await cluster.events())["events"]
    _write(churn, out, events)
    show(_table(churn.looks, max(1, round(period_s * 3 / LOOK_PERIOD_S))))


def _write(churn: Churn, out: Path, events: Sequence[dict[str, object]]) -> None:
    report = {
        "verdict": asdict(churn.verdict),
        "refused": churn.refused,
        "longest_pause_s": churn.longest_pause_s,
        "load": os.getloadavg(),
        "changes": churn.changes,
        "looks": [asdict(look) for look in churn.looks],
        "events": [f"{one['kind']}: {one['text']}" for one in events],
    }
    write_report(out, "churn", report)
    click.echo(f"{churn.verdict}, refused {churn.refused}", err=True)


if __name__ == "__main__":
    main()
