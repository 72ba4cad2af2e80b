"""An agent of the protocol before among three: how much later do the others serve?"""

import asyncio
import statistics
import subprocess
import sys
import time
from typing import Any

from tools.experiments.guard.cluster import GuardedCluster
from tools.experiments.guard.trial_rows.cluster import (
    READY_WITHIN_S,
    Member,
    events_of,
    names_serving,
    started,
    watching,
)
from tools.experiments.guard.trial_rows.trial import Outcome, Trial
from tools.experiments.harness.processes import MOLINK

__all__ = ["OLDER"]

OLD = "olga"
OLDER_AGENT = ("tools.experiments.guard.trial_rows.older_agent",)
ROUNDS = 3
LATER_MAX = 1.05
SAYS = "update MoLink"


async def older() -> Outcome:
    """By turns with the old one and without it."""
    with_s, without_s, told = list[float](), list[float](), list[dict[str, bool]]()
    rested: dict[str, str] = {}
    for _ in range(ROUNDS):
        for members in ((), (Member(OLD, program=OLDER_AGENT),)):
            took_s, found = await _served(members, rested)
            (with_s if members else without_s).append(took_s)
            told += [found] if members else []
    ratio = statistics.median(with_s) / statistics.median(without_s)
    places = [name for name in told[0] if all(one[name] for one in told)]
    text = (
        f"first answer {_times(with_s)} s with it and {_times(without_s)} without ({ratio:.2f} x)"
    )
    text += f"; rested: {', '.join(rested) or 'nobody'}; “update” told to {', '.join(places)}"
    is_reached = ratio <= LATER_MAX and not rested and len(places) == len(told[0])
    return Outcome(text, is_reached, {"with_s": with_s, "without_s": without_s, "told": told})


def _times(times_s: list[float]) -> str:
    return ", ".join(f"{one:.1f}" for one in times_s)


async def _served(
    before: tuple[Member, ...], rested: dict[str, str]
) -> tuple[float, dict[str, bool]]:
    """Seconds from when all are there to the first answer, and who was told of an update."""
    members = (*before, Member("anna"), Member("ben"))
    async with started(members, "--min-nodes", "2") as cluster, watching(cluster) as watched:
        began_s = time.monotonic()
        await cluster.until(lambda report: bool(names_serving(report)), READY_WITHIN_S)
        while not (await cluster.window()).tokens:  # noqa: ASYNC110 The users are a process.
            await asyncio.sleep(0.1)
        took_s = time.monotonic() - began_s
        found = await asyncio.to_thread(_who_reads_update, cluster) if before else {}
        rested |= watched.rested
    return took_s, found


def _who_reads_update(cluster: GuardedCluster) -> dict[str, bool]:
    """Whether the operator, the owner and whoever watches the cluster read of it."""
    report = cluster.run
    listed = _output_of("node", "list", "--data-dir", str(report.folder / "coordinator"))
    status = _output_of("agent", "status", "--data-dir", str(report.folder / OLD))
    events = " ".join(one["text"] for one in events_of(cluster))
    texts = {"operator": listed, "owner": status, "events": events}
    return {name: SAYS in text for name, text in texts.items()}


def _output_of(*words: str) -> str:
    command = [sys.executable, "-m", MOLINK, *words]
    done: Any = subprocess.run(command, capture_output=True, check=False, text=True)
    return str(done.stdout)


OLDER = Trial(
    "older",
    "an agent of the previous protocol among three",
    "73 s and innocents resting",
    "serves without it in the time of the same cluster without it + 5 %; nobody rests; “update” in"
    " all three places",
    older,
)
