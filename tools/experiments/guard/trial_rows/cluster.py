"""A cluster for one trial: agents, of which some may misbehave, and users; and what becomes of it.

A member that misbehaves is an agent of this code that is started by a module beside this one, which
changes one of its functions, or one of its stage's (`stages`). The product has no switch for it.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from molink.tasks import cancel
from molink_agent.daemon.step_times import FORMATS_KEPT, STEPS_FILE
from tools.experiments.guard.cluster import MODEL, USERS_COUNT, GuardedCluster
from tools.experiments.guard.users import MODULE as USERS
from tools.experiments.harness.agents import Report, agents_run, get_json
from tools.experiments.harness.processes import MOLINK, driven

__all__ = [
    "HALF",
    "READY_WITHIN_S",
    "WHOLE",
    "Member",
    "Watched",
    "events_of",
    "ledger",
    "names_serving",
    "started",
    "watching",
]

HALF, WHOLE = "0.0129", "0.0537"
"""Memory, in GB, that holds half of the demo model, or all of it."""

WAY = "tools.experiments.guard.trial_rows.agent"
POLL_S, HERE_WITHIN_S, READY_WITHIN_S = 0.5, 180.0, 300.0
KNOWN_S, CLAIMED_S = 1e-3, 1e-5
"""Of a step of a layer: what an agent's file says, so that no trial waits until it is measured, and
what that of one says which claims to be fast."""


@dataclass(frozen=True, slots=True)
class Member:
    """An agent of a trial."""

    name: str
    memory_gb: str = HALF
    stage: str = ""
    """Module of `stages` that its stage's process runs; empty: the product's own."""
    program: tuple[str, ...] = ()
    """By which it is started, where it misbehaves itself."""
    claims: bool = False
    """Whether its file says that it is faster than any PC."""

    @property
    def command(self) -> tuple[str, ...]:
        """Module by which it is started, with that module's words."""
        if self.stage:
            return (WAY, self.stage)
        return self.program or (MOLINK,)

    @property
    def is_honest(self) -> bool:
        """Whether it runs the product as it is."""
        return self.command == (MOLINK,)


@asynccontextmanager
async def started(
    members: Sequence[Member],
    *up_options: str,
    model: str = MODEL,
    users: int = USERS_COUNT,
    tokens: int = 100,
    coordinator: Sequence[str] = (MOLINK,),
) -> AsyncIterator[GuardedCluster]:
    """Coordinator, agents in this order, and users who ask already."""
    options = ("--min-nodes", str(len(members)), *up_options)
    with agents_run(model, options, program=coordinator) as run:
        for one in members:
            (run.folder / one.name).mkdir()
            step_s = CLAIMED_S if one.claims else KNOWN_S
            (run.folder / one.name / STEPS_FILE).write_text(_step_times(model, step_s))
            own = ("--device", "cpu", "--threads", "1", "--memory-gb", one.memory_gb)
            run.join(one.name, *own, program=one.command)
            await asyncio.to_thread(run.wait, partial(_knows, one.name), HERE_WITHIN_S)
        async with driven(USERS, run.url, str(users), str(tokens)) as process:
            names = tuple(one.name for one in members)
            honest = tuple(one.name for one in members if one.is_honest)
            yield GuardedCluster(run, names, honest, process)


def _knows(name: str, report: Report) -> bool:
    return any(node["name"] == name and node["state"] != "lost" for node in report["nodes"])


def _step_times(model: str, step_s: float) -> str:
    layer = {"decode_fixed_s": step_s, "decode_row_s": step_s / 100, "prefill_row_s": step_s / 10}
    formats = {"plain": {"read_s": 0.05, "row_s": 0.01}}
    times = {f"{Path(model).name} on cpu with 1 threads": layer}
    return json.dumps(times | {f"{FORMATS_KEPT} on cpu with 1 threads": formats})


def names_serving(report: Report) -> list[str]:
    """Names of the nodes in rings that take requests, in the order of their stages."""
    if report["unready_reason"] is not None:
        return []
    return [stage["node"] for ring in report["rings"] for stage in ring["stages"]]


def events_of(cluster: GuardedCluster) -> list[dict[str, Any]]:
    """Events in the coordinator's ledger, the oldest first."""
    found: list[dict[str, Any]] = get_json(f"{cluster.run.url}/cluster/events?after=0")["events"]
    return found


def ledger(cluster: GuardedCluster) -> list[str]:
    """The same as lines, without the folder that is thrown away."""
    events = events_of(cluster)
    lines = (f"{one['unix_s']:.1f} {one['kind']}: {one['text']}" for one in events)
    return [line.replace(f"{cluster.run.folder}/", "") for line in lines]


@dataclass(slots=True)
class Watched:
    """What was seen of a cluster while it was watched."""

    rested: dict[str, str] = field(default_factory=dict)
    """Who rested, with the first reason given for each."""
    rings: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)
    """Who served since when, in seconds from the beginning; nobody in between is an entry, too."""
    quarantined: dict[str, float] = field(default_factory=dict)
    """Who was quarantined, and when."""

    def take(self, report: Report, now_s: float) -> None:
        """Note what is new in an answer of GET /cluster."""
        for node in report["nodes"]:
            if (node["reason"] or "").startswith("It rests"):
                self.rested.setdefault(node["name"], node["reason"])
            if node["quarantined"]:
                self.quarantined.setdefault(node["name"], now_s)
        serving = tuple(names_serving(report))
        if not self.rings or self.rings[-1][1] != serving:
            self.rings.append((now_s, serving))


@asynccontextmanager
async def watching(cluster: GuardedCluster) -> AsyncIterator[Watched]:
    """Look twice a second until the block is left."""
    watched, began_s = Watched(), time.monotonic()

    async def look() -> None:
        while True:
            with suppress(OSError):
                watched.take(await cluster.report(), time.monotonic() - began_s)
            await asyncio.sleep(POLL_S)

    task = asyncio.create_task(look())
    try:
        yield watched
    finally:
        await cancel(task)
