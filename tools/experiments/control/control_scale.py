"""How many agents does the broker carry, and how soon is a lost one noticed?

    python -m tools.experiments.control.control_scale --out DIR

Three processes beside each other: a broker that has its process for itself, a swarm of made-up
agents that join forty at a time and then publish their health once a
second, and the coordinator's client, which reads all of it. Then one agent after the other is
killed (its connection closes) or frozen (nothing closes), and the coordinator waits for its last
will and for its silence. About half a minute for each number of agents.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from molink.control.addresses import BrokerAddress
from molink.control.client import ControlClient
from molink.control.heartbeats import Heartbeats
from molink.control.messages.payloads import NodeHealth, Presence
from molink.control.messages.topics import ROOT
from molink.errors import UserError
from molink.tasks import cancel
from molink.transport.sockets import raise_file_limit
from molink.workload.figures import percentile
from tools.experiments.harness.experiment import (
    experiment,
    markdown_table,
    milliseconds,
    show,
    slowest,
    write_report,
)
from tools.experiments.harness.processes import cpu_s, driven, line_of
from tools.experiments.swarm.broker_host import HOST, Hosted
from tools.experiments.swarm.members import MODULE as MEMBERS

__all__ = ["main"]

BROKER_HOST = "tools.experiments.swarm.broker_host"

SEEN_TIMEOUT_S = 60.0
NOTICED_TIMEOUT_S = 15.0

BETWEEN_LOSSES_S = 0.7
"""The broker checks for silent clients four times a second: so the losses fall anywhere between."""

SETTLE_S = 2.0
"""After the joins, before anything counts."""

SILENCE_CHECK_S = 0.1
"""How often the coordinator checks who has fallen silent."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a broker."""

    agents: int
    at_once: int
    steady_s: float
    lost: int


@experiment
@click.option(
    "--agents", multiple=True, type=click.IntRange(10), default=(1000,), show_default=True
)
@click.option("--at-once", default=40, show_default=True, help="Agents that join together.")
@click.option("--steady-s", default=10.0, show_default=True, help="How long the load is measured.")
@click.option("--lost", default=4, show_default=True, help="Agents killed, and as many frozen.")
def main(
    out: Path,
    agents: tuple[int, ...],
    at_once: int,
    steady_s: float,
    lost: int,
) -> None:
    """Measure what the broker takes, and what it costs."""
    raise_file_limit()
    found = []
    for count in agents:
        figures = asyncio.run(_measure(Load(count, at_once, steady_s, lost)))
        found.append(figures)
        write_report(out, "control_scale", {"figures": figures}, f"control-embedded-{count}")
    show(table(found))


async def _measure(load: Load) -> dict[str, Any]:
    async with driven(BROKER_HOST) as host:
        hosted = Hosted(**json.loads(await line_of(host)))
        async with watching_swarm(hosted) as watch:
            return await _with_swarm(hosted, load, watch)


async def _with_swarm(hosted: Hosted, load: Load, watch: "SwarmWatch") -> dict[str, Any]:
    ports = (hosted.admission_port, hosted.port)
    words = (str(load.agents), str(load.at_once), "ports", *map(str, ports))
    async with driven(MEMBERS, *words) as swarm:
        joined = json.loads(await line_of(swarm))
        await watch.until(lambda: len(watch.present) == joined["joined"], SEEN_TIMEOUT_S)
        await asyncio.sleep(SETTLE_S)
        steady = await _steady(hosted, swarm, load, watch)
        steady["lost_in_steady_state"] = len(watch.willed_s)
        checking = asyncio.create_task(watch.check_silence())
        notices = await _lose(swarm, load, watch)
        await cancel(checking)
    return {
        "agents": load.agents,
        "joined": joined["joined"],
        "first_error": joined["first_error"],
        "joins_per_s": joined["joined"] / joined["took_s"],
        "seen": len(watch.present),
        **steady,
        **notices,
        "dropped": watch.client.inbox.dropped_count,
        "broken": watch.client.connection_count - 1,
    }


async def _steady(
    hosted: Hosted, swarm: asyncio.subprocess.Process, load: Load, watch: "SwarmWatch"
) -> dict[str, Any]:
    """CPU and memory of the broker, CPU of the agents and the client, delays of messages."""
    processes = {
        "broker": psutil.Process(hosted.process_id),
        "agents": psutil.Process(swarm.pid),
        "coordinator": psutil.Process(),
    }
    before = {name: cpu_s(process) for name, process in processes.items()}
    watch.measuring = True
    await asyncio.sleep(load.steady_s)
    watch.measuring = False
    used = {name: cpu_s(process) - before[name] for name, process in processes.items()}
    delays = sorted(watch.delays_s)
    if not delays:
        raise UserError("no health message came: the broker does not carry so many agents")
    return {
        **{f"{name}_cpu": used_s / load.steady_s for name, used_s in used.items()},
        "broker_memory_mb": processes["broker"].memory_info().rss / 1e6,
        "messages_per_s": len(delays) / load.steady_s,
        "delay_p50_s": percentile(delays, 50),
        "delay_p99_s": percentile(delays, 99),
        "delay_max_s": delays[-1],
    }


async def _lose(
    swarm: asyncio.subprocess.Process, load: Load, watch: "SwarmWatch"
) -> dict[str, list[float | None]]:
    """Seconds until each lost agent was missed, by its last will and by its silence."""
    lost: list[tuple[str, str, float]] = []
    for number in range(2 * load.lost):
        order = ("freeze", "kill")[number % 2]
        done = json.loads(await line_of(swarm, f"{order} pc{number:04d}"))
        lost.append((order, done["node_id"], done["at_s"]))
        await asyncio.sleep(BETWEEN_LOSSES_S)
    await watch.until(
        lambda: all(watch.has_missed(node_id) for _, node_id, _ in lost), NOTICED_TIMEOUT_S
    )
    notices: dict[str, list[float | None]] = {}
    for order, node_id, lost_s in lost:
        for how, seen_s in (("will", watch.willed_s), ("silence", watch.silent_s)):
            took_s = seen_s[node_id] - lost_s if node_id in seen_s else None
            notices.setdefault(f"{order}_{how}_s", []).append(took_s)
    return notices


# -- the coordinator's end ------------------------------------------------------------------------


@dataclass(slots=True)
class SwarmWatch:
    """What the coordinator's client sees of the swarm, how late, and whom it misses."""

    client: ControlClient
    present: set[str] = field(default_factory=set)
    delays_s: list[float] = field(default_factory=list)
    measuring: bool = False
    willed_s: dict[str, float] = field(default_factory=dict)
    """When a node's last will came."""
    silent_s: dict[str, float] = field(default_factory=dict)
    """When a node was found silent."""
    beats: Heartbeats = field(default_factory=Heartbeats)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        """Take every message until cancelled."""
        async for received in self.client.messages():
            now_s = time.monotonic()
            self._changed.set()
            match received.message:
                case Presence(online=True):
                    self.present.add(received.node_id)
                case Presence():
                    self.willed_s[received.node_id] = now_s
                case NodeHealth(uptime_s=sent_s):
                    self.beats.beat(received.node_id, now_s)
                    if self.measuring:
                        self.delays_s.append(now_s - sent_s)
                case _:
                    pass

    async def check_silence(self) -> None:
        """Note who has fallen silent until cancelled."""
        while True:
            now_s = time.monotonic()
            for node_id in self.beats.fallen_silent(now_s):
                self.silent_s[node_id] = now_s
                self._changed.set()
            await asyncio.sleep(SILENCE_CHECK_S)

    def has_missed(self, node_id: str) -> bool:
        """Whether both its last will and its silence were noticed."""
        return node_id in self.willed_s and node_id in self.silent_s

    async def until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Whether that became true in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not done():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def watching_swarm(hosted: Hosted) -> AsyncIterator[SwarmWatch]:
    """Watch a hosted broker as its coordinator, until the block is left."""
    address, entry = BrokerAddress(HOST, hosted.port), (hosted.username, hosted.password)
    subscriptions = [f"{ROOT}/node/+/said/#"]
    async with ControlClient.open(address, *entry, subscriptions=subscriptions) as client:
        watch = SwarmWatch(client)
        listening = asyncio.create_task(watch.listen())
        try:
            yield watch
        finally:
            await cancel(listening)


# -- the table ------------------------------------------------------------------------------------


def table(found: Sequence[dict[str, Any]]) -> str:
    """One row for each number of agents."""
    head = (
        "agents",
        "joined",
        "joins/s",
        "messages/s",
        "CPU of a core",
        "coordinator's client",
        "memory, MB",
        "delay p50, ms",
        "p99, ms",
        "killed: will, s",
        "frozen: will, s",
        "frozen: silence, s",
    )
    return markdown_table(head, [_row(figures) for figures in found])


def _row(figures: dict[str, Any]) -> list[str]:
    return [
        f"{figures['agents']:,}",
        f"{figures['joined']:,}",
        f"{figures['joins_per_s']:,.0f}",
        f"{figures['messages_per_s']:,.0f}",
        f"{figures['broker_cpu']:.1%}",
        f"{figures['coordinator_cpu']:.1%}",
        f"{figures['broker_memory_mb']:.0f}",
        milliseconds(figures["delay_p50_s"]),
        milliseconds(figures["delay_p99_s"]),
        slowest(figures["kill_will_s"], 2),
        slowest(figures["freeze_will_s"], 2),
        slowest(figures["freeze_silence_s"], 2),
    ]


if __name__ == "__main__":
    main()
