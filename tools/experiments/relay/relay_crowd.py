"""What does it cost a relay that many nodes are registered and nobody speaks?

    python -m tools.experiments.relay.relay_crowd --out DIR

All nodes are in this process, `molink relay` is another one. They register at once, as after a
restart of the relay, and then answer its pings.
"""

import asyncio
import json
import os
import platform
import time
from contextlib import ExitStack
from pathlib import Path

import click
import psutil

from molink.transport.relay.client import RelayCaller, RelayReceiver
from molink.transport.relay.protocol import PING_PERIOD_S, relay_token
from molink.transport.sockets import raise_file_limit
from tools.experiments.harness.results import markdown_table
from tools.experiments.relay.relay_speed import SECRET, start_relay

__all__ = ["main"]

LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
IDLE_S = 3 * PING_PERIOD_S


@click.command()
@click.option("--nodes", default=1000, show_default=True, help="That register.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="For relay_crowd.json.",
)
def main(nodes: int, out: Path) -> None:
    """Measure a relay with many registrations."""
    raise_file_limit()
    with ExitStack() as stack:
        relay, address = stack.enter_context(start_relay())
        figures = asyncio.run(_crowd(nodes, relay, address))
    machine = {"cores": os.cpu_count(), "system": platform.platform()}
    report = {"experiment": "relay_crowd", "machine": machine, "nodes": nodes, "figures": figures}
    out.mkdir(parents=True, exist_ok=True)
    (out / "relay_crowd.json").write_text(json.dumps(report, indent=2) + "\n")
    rows = [[name, f"{value:,.3g}"] for name, value in figures.items()]
    click.echo(f"\n{markdown_table(['figure', f'{nodes} nodes'], rows)}\n")


async def _crowd(nodes: int, relay: psutil.Process, address: str) -> dict[str, float]:
    """Register all, then wait; what the relay used."""
    empty_bytes, began_s = relay.memory_info().rss, time.perf_counter()
    receivers = [RelayReceiver(_caller(number, address)) for number in range(nodes)]
    running = [asyncio.create_task(one.run()) for one in receivers]
    for one in receivers:
        await one.registered.wait()
    registered_s, used_s = time.perf_counter() - began_s, _used_s(relay)
    await asyncio.sleep(IDLE_S)
    idle_s = _used_s(relay) - used_s
    full_bytes = relay.memory_info().rss
    still = sum(one.registered.is_set() for one in receivers)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return {
        "registered_per_s": round(nodes / registered_s, 1),
        "registered_at_the_end": still,
        "relay_mib_empty": round(empty_bytes / 2**20, 1),
        "relay_mib_full": round(full_bytes / 2**20, 1),
        "relay_ms_per_s": round(idle_s / IDLE_S * 1e3, 2),
    }


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _caller(number: int, address: str) -> RelayCaller:
    digits = (number // 32**place % 32 for place in range(16))
    node_id = "".join(LETTERS[digit] for digit in digits)
    return RelayCaller(address, node_id, relay_token(SECRET.encode(), node_id))


if __name__ == "__main__":
    main()
