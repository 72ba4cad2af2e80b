"""A coordinator, honest agents that serve the demo model on real stage processes, and their users.

A trial looks at the same things each time: are coordinator and honest agents there, was one of them
lost meanwhile, what did users see before and during.
"""

import asyncio
import json
import time
import urllib.error
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from molink.errors import UserError
from molink.tasks import cancel
from tools.experiments.guard.fake_node import FakeNode
from tools.experiments.guard.users import MODULE as USERS
from tools.experiments.guard.users import Seen
from tools.experiments.harness.agents import AgentsRun, Report, agents_run, get_json
from tools.experiments.harness.processes import driven, line_of

__all__ = ["GuardedCluster", "guarded_cluster", "verdict"]

HONEST = {"anna": "0.0129", "carl": "0.0129"}
"""Names, and what each lends of its memory, in GB: half of the demo model."""

MODEL = "demo"
USERS_COUNT = 4
ANSWER_TOKENS = 100
READY_WITHIN_S = 120.0
WATCH_PERIOD_S = 0.5
LINES_KEPT = 24
"""Of the coordinator's log, in a report."""


@dataclass(slots=True)
class GuardedCluster:
    """A cluster that serves, and what has been seen of it."""

    run: AgentsRun
    names: tuple[str, ...]
    """Of all agents that were started."""
    honest: tuple[str, ...]
    """Of those that are to be there still."""
    users: asyncio.subprocess.Process
    lost: set[str] = field(default_factory=set)
    """Honest nodes that the coordinator took for lost since this was last emptied."""
    slowest_s: float = 0.0
    """The slowest GET /cluster since this was last set to 0."""
    unanswered: int = 0
    """Questions for GET /cluster that failed."""
    _fakes: int = 0

    @property
    def alive(self) -> bool:
        """Whether the coordinator is still there, and every honest agent that was not ended."""
        agents = zip(self.run.agents, self.names, strict=True)
        kept = [agent for agent, name in agents if name in self.honest]
        return all(one.process.poll() is None for one in (self.run.up, *kept))

    def lose(self, name: str) -> None:
        """End an honest agent, as when its PC is switched off."""
        self.honest = tuple(one for one in self.honest if one != name)
        self.run.agents[self.names.index(name)].process.kill()

    def fake(self, name: str = "", **traits: Any) -> FakeNode:
        """One more member, not joined yet, in a folder of its own."""
        self._fakes += 1
        folder = self.run.folder / f"fake-{self._fakes}"
        return FakeNode(self.run.invite, folder, name or f"mallory{self._fakes}", **traits)

    async def report(self) -> Report:
        """GET /cluster. Raises OSError."""
        return await asyncio.to_thread(get_json, f"{self.run.url}/cluster")

    async def window(self) -> Seen:
        """What users have seen since this was last asked."""
        return Seen(**json.loads(await line_of(self.users, "window")))

    async def until(self, done: Callable[[Report], bool], within_s: float) -> float:
        """Seconds until that holds of GET /cluster. Raises UserError when it does not."""
        began_s = time.monotonic()
        while True:
            try:
                report = await self.report()
                if done(report):
                    return time.monotonic() - began_s
                reason = report["unready_reason"]
            except OSError as error:
                reason = str(error)
            if time.monotonic() - began_s > within_s:
                raise UserError(f"still after {within_s:g} s: {reason}")
            await asyncio.sleep(WATCH_PERIOD_S / 2)

    async def recovered(self, within_s: float = READY_WITHIN_S) -> float:
        """Seconds until the honest nodes serve again."""

        def serves(report: Report) -> bool:
            states = {node["name"]: node["state"] for node in report["nodes"]}
            return report["unready_reason"] is None and all(
                states.get(name) == "serving" for name in self.honest
            )

        return await self.until(serves, within_s)

    def start_watch(self) -> None:
        """Forget what was seen so far."""
        self.lost.clear()
        self.slowest_s, self.unanswered = 0.0, 0

    def log(self) -> list[str]:
        """The end of what the coordinator has logged."""
        return self.run.log.read_text(errors="replace").splitlines()[-LINES_KEPT:]

    def open_files(self) -> dict[str, int]:
        """Descriptors that the coordinator holds, by kind."""
        links = Path(f"/proc/{self.run.up.pid}/fd").iterdir()
        kinds = (str(link.readlink()).partition(":")[0] for link in links)
        return dict(Counter(kind if "/" not in kind else "file" for kind in kinds))

    def coordinator_mb(self) -> float:
        """Resident memory of the coordinator and of what it has started."""
        up = psutil.Process(self.run.up.pid)
        return sum(one.memory_info().rss for one in (up, *up.children(True))) / 1e6

    async def watch(self) -> None:
        """Look all the time, until cancelled."""
        while True:
            began_s = time.monotonic()
            try:
                report = await self.report()
                lost = {node["name"] for node in report["nodes"] if node["state"] == "lost"}
                self.lost |= lost & set(self.honest)
            except (OSError, ValueError, urllib.error.URLError):
                self.unanswered += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            await asyncio.sleep(WATCH_PERIOD_S)


@asynccontextmanager
async def guarded_cluster(
    honest: Mapping[str, str] = HONEST,
) -> AsyncIterator[GuardedCluster]:
    """Coordinator, agents and users; yields when all answers flow. Raises UserError."""
    with agents_run(MODEL, ("--min-nodes", str(len(honest)))) as run:
        for name, memory_gb in honest.items():
            run.join(name, "--device", "cpu", "--threads", "1", "--memory-gb", memory_gb)
        async with driven(USERS, run.url, str(USERS_COUNT), str(ANSWER_TOKENS)) as users:
            cluster = GuardedCluster(run, tuple(honest), tuple(honest), users)
            await cluster.recovered()
            watching = asyncio.create_task(cluster.watch())
            try:
                yield cluster
            finally:
                await cancel(watching)


async def verdict(cluster: GuardedCluster, before: Seen, during: Seen) -> dict[str, Any]:
    """What every trial tells of the cluster, and what was seen before and meanwhile."""
    return {
        "alive": cluster.alive,
        "honest_lost": sorted(cluster.lost),
        "slowest_cluster_s": cluster.slowest_s,
        "unanswered": cluster.unanswered,
        "gap_p99_before_ms": before.gap_p99_ms,
        "gap_p99_during_ms": during.gap_p99_ms,
        "gap_ratio": during.gap_p99_ms / before.gap_p99_ms if before.gap_p99_ms else 0.0,
        "silence_s": during.silence_s,
        "answers": during.answers,
        "failures": during.failures,
        "refused": during.refused,
        "before": asdict(before),
    }
