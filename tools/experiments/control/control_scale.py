"""How many agents does each broker carry, and how soon is a lost one noticed?

    python -m tools.experiments.control.control_scale --out DIR

Three processes beside each other: the broker (for the embedded one a process that does nothing
else), a swarm of made-up agents that join forty at a time and then say how they are once a second,
and the coordinator's client, which reads all of it. Then one agent after the other is killed (its
connection closes) or frozen (nothing closes), and the coordinator waits for its last will and for
its silence. About half a minute for each broker and number of agents.
"""

import asyncio
import json
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from molink.control.broker.broker import BrokerAddress
from molink.control.client import ControlClient
from molink.control.messages.topics import ROOT
from molink.errors import UserError
from molink.transport.sockets import raise_file_limit
from molink.workload.figures import percentile
from tools.experiments.harness.processes import line_of, running
from tools.experiments.swarm.agents import agent_name
from tools.experiments.swarm.broker_host import HOST, Hosted
from tools.experiments.swarm.table import table
from tools.experiments.swarm.watch import Watch

__all__ = ["main"]

_SEEN_TIMEOUT_S = 60.0
_NOTICED_TIMEOUT_S = 15.0
_BETWEEN_LOSSES_S = 0.7
"""Mosquitto looks for silent clients every five seconds: so the losses fall anywhere in them."""
_SETTLE_S = 2.0
"""After the joins, before anything counts."""


@click.command()
@click.option(
    "--agents", multiple=True, type=click.IntRange(10), default=(1000,), show_default=True
)
@click.option(
    "--broker", "brokers", multiple=True, default=("mosquitto", "embedded"), show_default=True
)
@click.option("--at-once", default=40, show_default=True, help="Agents that join together.")
@click.option("--steady-s", default=10.0, show_default=True, help="How long the load is measured.")
@click.option("--lost", default=4, show_default=True, help="Agents killed, and as many frozen.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the JSON.")
def main(
    agents: tuple[int, ...],
    brokers: tuple[str, ...],
    at_once: int,
    steady_s: float,
    lost: int,
    out: Path,
) -> None:
    """Measure what a broker takes, and what it costs."""
    raise_file_limit()
    out.mkdir(parents=True, exist_ok=True)
    machine = {"cores": os.cpu_count(), "system": platform.platform()}
    figures = []
    for count in agents:
        for kind in brokers:
            one = asyncio.run(_measure(kind, Load(count, at_once, steady_s, lost)))
            figures.append(one)
            report = {"experiment": "control_scale", "machine": machine, "figures": one}
            path = out / f"control-{kind}-{count}.json"
            path.write_text(json.dumps(report, indent=2) + "\n")
    click.echo(f"\n{table(figures)}\n")


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a broker."""

    agents: int
    at_once: int
    steady_s: float
    lost: int


async def _measure(kind: str, load: Load) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="molink-control-") as directory:
        os.chmod(directory, 0o755)  # noqa: PTH101
        async with running("broker_host", kind, directory) as host:
            hosted = Hosted(**json.loads(await line_of(host)))
            address = BrokerAddress(HOST, hosted.port)
            subscriptions = [f"{ROOT}/node/+/said/#"]
            async with ControlClient.open(
                address, hosted.username, hosted.password, subscriptions=subscriptions
            ) as client:
                watch = Watch()
                tasks = [asyncio.create_task(watch.listen(client))]
                try:
                    figures = await _with_swarm(hosted, load, watch)
                finally:
                    for task in tasks:
                        task.cancel()
                dropped = {"dropped": client.dropped_count, "broken": client.connection_count - 1}
    return {"broker": kind, **figures, **dropped}


async def _with_swarm(hosted: Hosted, load: Load, watch: Watch) -> dict[str, Any]:
    numbers = (load.agents, load.at_once, hosted.door, hosted.port)
    async with running("agents", *(str(number) for number in numbers)) as swarm:
        joined = json.loads(await line_of(swarm))
        await watch.until(lambda: len(watch.present) == joined["joined"], _SEEN_TIMEOUT_S)
        await asyncio.sleep(_SETTLE_S)
        steady = await _steady(hosted, swarm, load, watch)
        steady["lost_in_steady_state"] = len(watch.willed_s)
        looking = asyncio.create_task(watch.look())
        notices = await _lose(swarm, load, watch)
        looking.cancel()
    return {
        "agents": load.agents,
        "joined": joined["joined"],
        "first_error": joined["first_error"],
        "joins_per_s": joined["joined"] / joined["took_s"],
        "seen": len(watch.present),
        **steady,
        **notices,
    }


async def _steady(
    hosted: Hosted, swarm: asyncio.subprocess.Process, load: Load, watch: Watch
) -> dict[str, Any]:
    """CPU and memory of the broker and CPU of those who load it, and how late messages are."""
    processes = {
        "broker": psutil.Process(hosted.process_id),
        "agents": psutil.Process(swarm.pid),
        "coordinator": psutil.Process(),
    }
    before = {name: sum(one.cpu_times()[:2]) for name, one in processes.items()}
    watch.measuring = True
    await asyncio.sleep(load.steady_s)
    watch.measuring = False
    used = {name: sum(one.cpu_times()[:2]) - before[name] for name, one in processes.items()}
    delays = sorted(watch.delays_s)
    if not delays:
        raise UserError("no health message came: the broker does not carry so many agents")
    return {
        **{f"{name}_cpu": cpu_s / load.steady_s for name, cpu_s in used.items()},
        "broker_memory_mb": processes["broker"].memory_info().rss / 1e6,
        "messages_per_s": len(delays) / load.steady_s,
        "delay_p50_s": percentile(delays, 50),
        "delay_p99_s": percentile(delays, 99),
        "delay_max_s": delays[-1],
    }


async def _lose(
    swarm: asyncio.subprocess.Process, load: Load, watch: Watch
) -> dict[str, list[float | None]]:
    """Seconds until each lost agent was missed, by its last will and by its silence."""
    lost: list[tuple[str, str, float]] = []
    assert swarm.stdin is not None
    for number in range(2 * load.lost):
        order, name = ("freeze", "kill")[number % 2], agent_name(number)
        swarm.stdin.write(f"{order} {name}\n".encode())
        lost.append((order, name, float(await line_of(swarm))))
        await asyncio.sleep(_BETWEEN_LOSSES_S)
    await watch.until(lambda: all(watch.has_missed(one[1]) for one in lost), _NOTICED_TIMEOUT_S)
    notices: dict[str, list[float | None]] = {}
    for order, name, lost_s in lost:
        for how, seen_s in (("will", watch.willed_s), ("silence", watch.silent_s)):
            took_s = seen_s[name] - lost_s if name in seen_s else None
            notices.setdefault(f"{order}_{how}_s", []).append(took_s)
    return notices


if __name__ == "__main__":
    main()
