"""Trials: users ask, something happens when all have some tokens, and their answers are judged."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from molink.workload.figures import percentile
from tools.experiments.faults.answers import STREAM, Answer, Verdict, all_answered
from tools.experiments.faults.cluster import (
    FaultCluster,
    Settings,
    fault_cluster,
    undisturbed,
)
from tools.experiments.harness.experiment import (
    Command,
    markdown_table,
    show,
    write_report,
)

__all__ = ["Harm", "Outcome", "Trial", "run_trials", "table", "trial_options"]

BEFORE_TOKENS = 10
"""Of every streamed answer, when it happens."""

POLL_S = 0.01
KINDS_TOLD = (
    "plan",
    "ring_serving",
    "stage_silent",
    "stage_lost",
    "node_lost",
    "ring_ended",
    "ring_resumed",
)

Harm = Callable[[FaultCluster], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Trial:
    """Something that happens, and to which cluster."""

    name: str
    harm: Harm
    spare: int = 0
    """PCs that stand by."""
    relayed: bool = False
    fresh: bool = False
    """Whether what came before would count: a node that loses its stage again is held back."""


@dataclass(slots=True)
class Outcome:
    """What became of the users of one trial."""

    name: str
    asked: int
    verdict: Verdict
    pauses_s: list[float]
    """The longest pause of each stream from then on, in order."""
    took_s: float
    """From what happened to the last answer's end."""
    load: float
    """Load average of the machine over the last minute, at the end."""
    events: list[str] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """All figures of the trial, for its JSON."""
        return asdict(self)

    def cells(self) -> list[str]:
        """Cells of the trial's row in the table."""
        verdict, pauses = self.verdict, self.pauses_s
        figures = [percentile(pauses, 50), percentile(pauses, 95), self.took_s]
        counts = (verdict.exact, sum(verdict.failed.values()), len(verdict.wrong))
        exact = f"{counts[0]} of {self.asked}"
        again = f" ({verdict.read_again} by id)" if verdict.read_again else ""
        cells = [self.name, exact + again, *(str(one) for one in counts[1:])]
        return [*cells, *(f"{one:.1f}" for one in figures), f"{self.load:.1f}"]


def trial_options(function: Command) -> Command:
    """Add the options that trials have in common."""
    options = (
        click.option("--only", default="", help="Trials whose name holds this."),
        click.option(
            "--link", metavar="MBPS:MS", default="100:30", show_default=True, help="Each home's."
        ),
        click.option("--users", default=16, show_default=True, help="Half greedy, half seeded."),
        click.option("--tokens", default=80, show_default=True, help="Of each answer."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def run_trials(
    name: str, out: Path, trials: Sequence[Trial], only: str, settings: Settings
) -> None:
    """Make one trial after the other; write and show outcomes."""
    chosen = [trial for trial in trials if only in trial.name]
    show(table(asyncio.run(_run(name, out, chosen, settings))))


async def _run(name: str, out: Path, trials: Sequence[Trial], settings: Settings) -> list[Outcome]:
    """A trial gets the cluster of the one before where that is as it was. What is expected is found
    once: answers in fp32 depend on nothing but their requests."""
    outcomes: list[Outcome] = []
    expected: list[Answer] = []
    async with AsyncExitStack() as stack:
        cluster: FaultCluster | None = None
        for trial in trials:
            wanted = replace(settings, spare=trial.spare, relayed=trial.relayed)
            if trial.fresh or cluster is None or not await cluster.is_still(wanted):
                await stack.aclose()
                cluster = await stack.enter_async_context(fault_cluster(wanted))
            expected = expected or await undisturbed(cluster)
            outcomes.append(await _outcome(trial.name, cluster, expected, trial.harm))
            click.echo(str(outcomes[-1]), err=True)
            write_report(out, name, {"trials": [one.told() for one in outcomes]})
    return outcomes


async def _outcome(
    name: str, cluster: FaultCluster, expected: Sequence[Answer], harm: Harm
) -> Outcome:
    """Let it happen while all users read, and judge what they got."""
    answers, seen = [Answer() for _ in cluster.asked], (await cluster.events())["next"]
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(all_answered(cluster.client, cluster.asked, answers))
        streams = [
            answer
            for request, answer in zip(cluster.asked, answers, strict=True)
            if request.kind == STREAM
        ]
        while not reading.done() and min(len(one.tokens) for one in streams) < BEFORE_TOKENS:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        happened_s, happened_unix_s = time.perf_counter(), time.time()
        await harm(cluster)
    took_s = time.perf_counter() - happened_s
    verdict = Verdict()
    for request, answer, right in zip(cluster.asked, answers, expected, strict=True):
        verdict.add(request, answer, right)
    pauses_s = sorted(one.pause_s(happened_s) for one in streams)
    events = (await cluster.events(seen))["events"]
    told = [
        f"{one['unix_s'] - happened_unix_s:.1f} s, {one['kind']}: {one['text']}"
        for one in events
        if one["kind"] in KINDS_TOLD
    ]
    load = os.getloadavg()[0]
    return Outcome(name, len(answers), verdict, pauses_s, took_s, load, told)


def table(outcomes: Sequence[Outcome]) -> str:
    """One row for each trial."""
    head = (
        "what happens",
        "token-exact",
        "failed with a sentence",
        "truncated or other",
        "pause p50, s",
        "p95",
        "until all have ended, s",
        "load",
    )
    return markdown_table(head, [one.cells() for one in outcomes])
