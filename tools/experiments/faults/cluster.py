"""A coordinator and agents in homes of their own, with slow lines over real TCP, and their users.

Every agent is a PC: a network namespace, whose upload has a rate, a delay and a queue, and whose
TCP connections all go through it, those to the coordinator too. Root only.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import Any

import psutil

from molink.api.server import free_ports
from molink.client.api_client import ApiClient, ListedModel
from molink.config.link_schedule import LinkShape
from molink.errors import UserError
from tools.experiments.faults.answers import Answer, Request, all_answered, requests
from tools.experiments.harness.agents import AgentsRun, Report, agents_run, get_json
from tools.experiments.harness.processes import MOLINK, Running, running
from tools.experiments.homes.home_lines import HomeLines, home_lines
from tools.experiments.homes.home_network import check_available

__all__ = ["MODEL", "FaultCluster", "Settings", "fault_cluster", "undisturbed"]

MODEL = "demo"

QUEUE_BYTES = 1024 * 1024
"""Of each home's upload: what home routers have."""

MEMORY_GB = "0.0322"
"""Lent by each: the demo model in fp32 has 30 MB, so no PC can hold it alone."""

CONTEXT_TOKENS = 256
SERVES_WITHIN_S = 600.0
"""On a machine that computes for others, too, agents take minutes to measure and to load."""
STANDS_BY_WITHIN_S = 90.0
SETTLED_WITHIN_S = 10.0
STAGE_MODULE = "molink.stage.stage_process"


@dataclass(frozen=True, slots=True)
class Settings:
    """The cluster that trials are made with."""

    link: str = "100:30"
    stages: int = 4
    spare: int = 0
    """Further PCs, which are to stand by."""
    relayed: bool = False
    """Whether nobody may connect to the last PC of the ring, but through a relay."""
    users: int = 16
    tokens: int = 80

    @property
    def names(self) -> list[str]:
        """Of all PCs, in the order in which they join."""
        return [f"pc{number}" for number in range(self.stages + self.spare)]

    @property
    def shape(self) -> LinkShape:
        """Of each home's upload."""
        plain = LinkShape.parse(self.link)
        return LinkShape(plain.rate_mbps, plain.one_way_ms, QUEUE_BYTES)


@dataclass(slots=True)
class RelayRun:
    """A running `molink relay`, which can be killed and started again."""

    words: tuple[str, ...]
    _stack: ExitStack
    process: Running

    def start_again(self) -> None:
        """As whoever runs it has told systemd to."""
        psutil.Process(self.process.pid).kill()
        self.process = self._stack.enter_context(running(MOLINK, *self.words))


@dataclass(slots=True)
class FaultCluster:
    """A cluster that serves."""

    settings: Settings
    run: AgentsRun
    lines: HomeLines
    relay: RelayRun | None
    client: ApiClient
    asked: Sequence[Request]

    async def report(self) -> Report:
        """What the coordinator says of its cluster (GET /cluster)."""
        return await asyncio.to_thread(get_json, f"{self.run.url}/cluster")

    async def wait(self, done: Callable[[Report], bool], within_s: float) -> Report:
        """Ask GET /cluster until `done`. Raises UserError when that takes too long."""
        return await asyncio.to_thread(self.run.wait, done, within_s)

    async def ring(self) -> list[int]:
        """The agents of the first ring's stages, in its order."""
        stages = (await self.report())["rings"][0]["stages"]
        return [self.run.names.index(stage["node"]) for stage in stages]

    async def standby(self) -> int:
        """The agent that stands by. Raises UserError where none does."""
        for node in (await self.report())["nodes"]:
            if node["covers"]:
                return self.run.names.index(node["name"])
        raise UserError("no agent stands by")

    def stage(self, agent: int) -> psutil.Process:
        """The process that computes an agent's layers: the oldest, behind which one waits."""
        found = [one for one in self.run.family(agent) if STAGE_MODULE in str(one.cmdline())]
        if not found:
            raise UserError(f"{self.run.names[agent]} has no stage process")
        return min(found, key=psutil.Process.create_time)

    def address(self, agent: int) -> str:
        """Of an agent's home."""
        return self.run.home(agent).address

    async def events(self, after: int = 0) -> dict[str, Any]:
        """What the coordinator's ledger says since then."""
        return await asyncio.to_thread(get_json, f"{self.run.url}/cluster/events?after={after}")

    async def is_still(self, settings: Settings) -> bool:
        """Whether it is such a cluster, all of it serves, and nobody was killed for good."""
        if settings != self.settings or any(one.process.poll() for one in self.run.agents):
            return False
        try:
            report = await self.wait(_members(settings.stages), SETTLED_WITHIN_S)
        except UserError:
            return False
        paths = {path for node in report["nodes"] for path in node["paths"].values()}
        if "relay" in paths and not settings.relayed:  # What was cut is not used any more.
            return False
        return sum(1 for node in report["nodes"] if _stands_by(node)) >= settings.spare

    async def serves_all(self) -> None:
        """Wait until a ring serves and as many stand by as there are spare PCs."""
        wanted = self.settings.spare
        await self.wait(lambda report: report["unready_reason"] is None, SERVES_WITHIN_S)
        await self.wait(
            lambda report: sum(1 for node in report["nodes"] if _stands_by(node)) >= wanted,
            STANDS_BY_WITHIN_S,
        )


def _stands_by(node: dict[str, Any]) -> bool:
    return bool(node["covers"]) and node["state"] == "standby"


@asynccontextmanager
async def fault_cluster(settings: Settings) -> AsyncIterator[FaultCluster]:
    """Homes, coordinator, agents; yields when they serve. Raises UserError."""
    check_available()
    count = len(settings.names)
    async with home_lines(settings.shape, count, "cubic") as lines:
        address = lines.hosts.coordinator_address
        with (
            relay_run(address, settings.relayed) as (relay, words),
            agents_run(MODEL, (*_up_words(settings), *words), lines.hosts) as run,
        ):
            _join(run, settings)
            await asyncio.to_thread(run.wait, _members(settings.stages), SERVES_WITHIN_S)
            async with ApiClient(run.url) as client:
                model = await ListedModel.ask(client)
                asked = requests(settings.users, settings.tokens, model.vocabulary_size)
                cluster = FaultCluster(settings, run, lines, relay, client, asked)
                await cluster.serves_all()
                yield cluster


@contextmanager
def relay_run(address: str, wanted: bool) -> Iterator[tuple[RelayRun | None, tuple[str, ...]]]:
    """A relay beside the coordinator, if wanted, and the options that name it."""
    if not wanted:
        yield None, ()
        return
    with NamedTemporaryFile("w") as secret, ExitStack() as stack:
        secret.write(secrets.token_hex(32))
        secret.flush()
        port, *_ = free_ports(address, 1)
        place = ("--host", address, "--port", str(port), "--secret-file", secret.name)
        process = stack.enter_context(running(MOLINK, "relay", *place))
        relay = RelayRun(("relay", *place), stack, process)
        yield relay, ("--relay", f"{address}:{port}", "--relay-secret-file", secret.name)


def _up_words(settings: Settings) -> tuple[str, ...]:
    ring = ("--split", "even", "--dtype", "float32", "--context-tokens", str(CONTEXT_TOKENS))
    return (*ring, "--min-nodes", str(len(settings.names)), "--standby", str(settings.spare))


def _join(run: AgentsRun, settings: Settings) -> None:
    for name in settings.names:
        closed = settings.relayed and name == settings.names[settings.stages - 1]
        path = ("--relay-only",) if closed else ()
        run.join(name, "--device", "cpu", "--threads", "1", "--memory-gb", MEMORY_GB, *path)


def _members(count: int) -> Callable[[Report], bool]:
    def serve(report: Report) -> bool:
        rings = report["rings"]
        is_whole = bool(rings) and len(rings[0]["stages"]) == count
        return is_whole and report["unready_reason"] is None

    return serve


async def undisturbed(cluster: FaultCluster) -> list[Answer]:
    """What all users get when nothing happens. Raises UserError when one gets no answer."""
    answers = [Answer() for _ in cluster.asked]
    await all_answered(cluster.client, cluster.asked, answers)
    for answer in answers:
        if answer.error is not None:
            raise UserError(f"an undisturbed answer failed: {answer.error}")
    return answers
