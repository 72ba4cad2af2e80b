"""The two agents of a relayed link, as processes of their own, for what they cost.

    python -m tools.experiments.relay.relay_ends tunnel    RELAY NODE TOKEN OTHER-NODE
    python -m tools.experiments.relay.relay_ends receiver  RELAY NODE TOKEN HOST:PORT

Each prints one line of JSON when it is ready, the tunnel with its address, and ends when its
standard input closes.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence

from molink.transport.relay.client import RelayCaller, RelayReceiver, relay_tunnel

__all__ = ["PORT_NAME", "main"]

PORT_NAME = "ring"


async def _tunnel(caller: RelayCaller, to: str) -> None:
    async with relay_tunnel(caller, to, PORT_NAME) as tunnel:
        print(json.dumps({"address": tunnel.address}), flush=True)
        await _until_closed()


async def _receiver(caller: RelayCaller, address: str) -> None:
    receiver = RelayReceiver(caller)
    receiver.open(PORT_NAME, address)
    running = asyncio.create_task(receiver.run())
    await receiver.registered.wait()
    print(json.dumps({"registered": True}), flush=True)
    await _until_closed()
    running.cancel()


async def _until_closed() -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    await reader.read()
    os._exit(0)


def main(arguments: Sequence[str]) -> None:
    """Run one end: `tunnel` or `receiver`."""
    role, relay, node_id, token, last = arguments
    end = {"tunnel": _tunnel, "receiver": _receiver}[role]
    asyncio.run(end(RelayCaller(relay, node_id, token), last))


if __name__ == "__main__":
    main(sys.argv[1:])
