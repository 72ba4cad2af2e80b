"""What does it cost a relay that many nodes are registered and none speaks?

    python -m tools.experiments.relay.relay_crowd --out DIR

All nodes are in this process, `molink relay` is another one. They register at once, as after a
restart of the relay, and then answer its pings.
"""

import asyncio
import time
from pathlib import Path

import click
import psutil

from molink.tasks import cancel
from molink.transport.relay.client import RelayCaller, RelayReceiver
from molink.transport.relay.protocol import PING_PERIOD_S, relay_token
from molink.transport.sockets import raise_file_limit
from tools.experiments.harness.experiment import (
    Figures,
    experiment,
    markdown_table,
    show,
    write_report,
)
from tools.experiments.harness.processes import cpu_s
from tools.experiments.relay.relay_speed import SECRET, start_relay

__all__ = ["main"]

LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
IDLE_S = 3 * PING_PERIOD_S


@experiment
@click.option("--nodes", default=1000, show_default=True, help="That register.")
def main(out: Path, nodes: int) -> None:
    """Measure a relay with many registrations."""
    raise_file_limit()
    with start_relay() as (relay, address):
        figures = asyncio.run(_crowd(nodes, relay, address))
    write_report(out, "relay_crowd", {"nodes": nodes, "figures": figures})
    rows = [[name, f"{value:,.3g}"] for name, value in figures.items()]
    show(markdown_table(["figure", f"{nodes} nodes"], rows))


async def _crowd(nodes: int, relay: psutil.Process, address: str) -> Figures:
    """Register all, then wait; what the relay used."""
    empty_bytes, began_s = relay.memory_info().rss, time.perf_counter()
    receivers = [RelayReceiver(_caller(number, address)) for number in range(nodes)]
    running = [asyncio.create_task(receiver.run()) for receiver in receivers]
    for receiver in receivers:
        await receiver.registered.wait()
    registered_s, used_s = time.perf_counter() - began_s, cpu_s(relay)
    await asyncio.sleep(IDLE_S)
    idle_s = cpu_s(relay) - used_s
    full_bytes = relay.memory_info().rss
    still = sum(receiver.registered.is_set() for receiver in receivers)
    await cancel(*running)
    return {
        "registered_per_s": round(nodes / registered_s, 1),
        "registered_at_the_end": still,
        "relay_mib_empty": round(empty_bytes / 2**20, 1),
        "relay_mib_full": round(full_bytes / 2**20, 1),
        "relay_ms_per_s": round(idle_s / IDLE_S * 1e3, 2),
    }


def _caller(number: int, address: str) -> RelayCaller:
    digits = (number // 32**place % 32 for place in range(16))
    node_id = "".join(LETTERS[digit] for digit in digits)
    return RelayCaller(address, node_id, relay_token(SECRET.encode(), node_id))


if __name__ == "__main__":
    main()
