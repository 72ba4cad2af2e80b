"""What does an agent cost that has nothing to do?

    python -m tools.experiments.control.agent_idle MODEL --json FILE

One agent joins a coordinator and is paused: it is connected, says once a second that it lives, and
looks at its owner's limits. Memory and processor time are read from the system, bytes from the
kernel's counters of its own TCP connections, without the headers of packets.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil

from tools.experiments.harness.agents import AgentsRun, Command, agents_run
from tools.experiments.harness.results import markdown_table
from tools.experiments.harness.tcp_counters import TcpCounters

__all__ = ["main"]

SETTLE_S = 20.0
"""After the pause: the probe's process has ended, the allocator is calm."""


@dataclass(frozen=True, slots=True)
class IdleCost:
    """Of one idle agent."""

    resident_mb: float
    """At the end, what other processes share included."""
    cpu_share: float
    """Of one core."""
    sent_bytes_per_minute: float
    received_bytes_per_minute: float


@click.command()
@click.argument("model")
@click.option("--duration-s", default=300.0, show_default=True, help="Of the measurement.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write this file.")
def main(model: str, duration_s: float, json_file: Path | None) -> None:
    """Measure an agent of a cluster that serves MODEL."""
    with agents_run(model, ()) as run:
        agent = run.join("idle", "--device", "cpu")
        agent.line("joined")
        _pause(run)
        time.sleep(SETTLE_S)
        cost = _measure(agent, duration_s)
    click.echo(_table(cost))
    if json_file is not None:
        report = {"duration_s": duration_s, **asdict(cost)}
        json_file.write_text(json.dumps(report, indent=2) + "\n")


def _pause(run: AgentsRun) -> None:
    """As its owner would, once the agent answers."""
    place = ("--data-dir", str(run.folder / "idle"))
    command = [sys.executable, "-m", "molink.cli.main", "agent", "pause", *place]
    for _ in range(20):
        if subprocess.run(command, capture_output=True, env=os.environ).returncode == 0:
            return
        time.sleep(0.5)
    subprocess.run(command, check=True)


def _measure(agent: Command, duration_s: float) -> IdleCost:
    process = psutil.Process(agent.pid)
    with TcpCounters() as counters:
        sent, received = _bytes(process, counters)
        cpu_s, began_s = _cpu_s(process), time.perf_counter()
        time.sleep(duration_s)
        elapsed_s = time.perf_counter() - began_s
        sent_after, received_after = _bytes(process, counters)
    return IdleCost(
        resident_mb=process.memory_info().rss / 1e6,
        cpu_share=(_cpu_s(process) - cpu_s) / elapsed_s,
        sent_bytes_per_minute=(sent_after - sent) * 60 / elapsed_s,
        received_bytes_per_minute=(received_after - received) * 60 / elapsed_s,
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _bytes(process: psutil.Process, counters: TcpCounters) -> tuple[int, int]:
    """Of all connections that it has now."""
    ours = {
        (one.laddr.port, one.raddr.port) for one in process.net_connections("tcp4") if one.raddr
    }
    counted = [count for connection, count in counters.now().items() if connection in ours]
    return sum(one.sent_bytes for one in counted), sum(one.received_bytes for one in counted)


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
