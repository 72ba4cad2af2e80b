"""What does an agent cost that has nothing to do?

    python -m tools.experiments.control.agent_idle MODEL --out DIR

One agent joins a coordinator and is paused: it is connected, publishes its health once a second,
and checks its owner's limits. Memory and processor time are read from the system, bytes from the
kernel's counters of its own TCP connections, without the headers of packets.
"""

import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil

from tools.experiments.harness.agents import AgentsRun, agents_run
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.harness.processes import MOLINK, Running, cpu_s
from tools.experiments.harness.tcp_counters import TcpCounters

__all__ = ["main"]

SETTLE_S = 20.0
"""After the pause: the probe's process has ended, the allocator is calm."""


@dataclass(frozen=True, slots=True)
class IdleCost:
    """What one idle agent costs its PC."""

    resident_mb: float
    """At the end, what other processes share included."""
    cpu_share: float
    """Of one core."""
    sent_bytes_per_minute: float
    received_bytes_per_minute: float


@experiment
@click.argument("model")
@click.option("--duration-s", default=300.0, show_default=True, help="Of the measurement.")
def main(out: Path, model: str, duration_s: float) -> None:
    """Measure an agent of a cluster that serves MODEL."""
    with agents_run(model, ()) as run:
        agent = run.join("idle", "--device", "cpu")
        agent.line("joined")
        _pause(run)
        time.sleep(SETTLE_S)
        cost = _measure(agent, duration_s)
    show(_table(cost))
    write_report(out, "agent_idle", {"duration_s": duration_s, **asdict(cost)})


def _pause(run: AgentsRun) -> None:
    """As its owner would, once the agent answers."""
    place = ("--data-dir", str(run.folder / "idle"))
    command = [sys.executable, "-m", MOLINK, "agent", "pause", *place]
    for _ in range(20):
        if subprocess.run(command, capture_output=True).returncode == 0:
            return
        time.sleep(0.5)
    subprocess.run(command, check=True)


def _measure(agent: Running, duration_s: float) -> IdleCost:
    process = psutil.Process(agent.pid)
    with TcpCounters() as counters:
        sent, received = _bytes(process, counters)
        used_s, began_s = cpu_s(process), time.perf_counter()
        time.sleep(duration_s)
        elapsed_s = time.perf_counter() - began_s
        sent_after, received_after = _bytes(process, counters)
    return IdleCost(
        resident_mb=process.memory_info().rss / 1e6,
        cpu_share=(cpu_s(process) - used_s) / elapsed_s,
        sent_bytes_per_minute=(sent_after - sent) * 60 / elapsed_s,
        received_bytes_per_minute=(received_after - received) * 60 / elapsed_s,
    )


def _bytes(process: psutil.Process, counters: TcpCounters) -> tuple[int, int]:
    """Bytes sent and received on all connections that it has now."""
    ours = {
        (near.laddr.port, near.raddr.port) for near in process.net_connections("tcp4") if near.raddr
    }
    counted = [count for connection, count in counters.now().items() if connection in ours]
    return sum(c.sent_bytes for c in counted), sum(c.received_bytes for c in counted)


def _table(cost: IdleCost) -> str:
    rows = [
        ["resident memory, MB", f"{cost.resident_mb:.0f}"],
        ["processor, share of a core", f"{cost.cpu_share:.2%}"],
        ["sent, bytes a minute", f"{cost.sent_bytes_per_minute:,.0f}"],
        ["received, bytes a minute", f"{cost.received_bytes_per_minute:,.0f}"],
    ]
    return markdown_table(["an idle agent", ""], rows)


if __name__ == "__main__":
    main()
