"""A broker in a process of its own, with a port at which agents are let in.

    python -m tools.experiments.swarm.broker_host

Prints one line of JSON (see `Hosted`), serves until its standard input ends. The admission port
stands for the coordinator's join endpoint: a client that connects there and sends its node id on a
line is allowed, and is answered with a line when the broker has taken it.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import partial

from molink.control.broker.embedded import EmbeddedBroker

__all__ = ["HOST", "Hosted", "let_in", "password_of"]

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Hosted:
    """Where a hosted broker is, and how the coordinator's client enters."""

    port: int
    admission_port: int
    username: str
    password: str
    process_id: int


def password_of(node_id: str) -> str:
    """The password of a made-up agent that came through the admission port."""
    return f"made-up-token-of-{node_id}"


async def let_in(
    broker: EmbeddedBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Admit the agent of one connection."""
    node_id = (await reader.readline()).decode().strip()
    await broker.allow(node_id, password_of(node_id))
    writer.write(b"allowed\n")
    writer.close()


async def _serve() -> None:
    broker = EmbeddedBroker(HOST, 0)
    await broker.start()
    admission = await asyncio.start_server(partial(let_in, broker), HOST, 0)
    hosted = Hosted(
        broker.address.port,
        admission.sockets[0].getsockname()[1],
        broker.coordinator.username,
        broker.coordinator.password,
        os.getpid(),
    )
    print(json.dumps(asdict(hosted)), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(_serve())
