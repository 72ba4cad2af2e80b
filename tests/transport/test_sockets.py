"""Ports for strangers: the few unidentified ones are shared out by address."""

import asyncio
import socket

from molink.transport.sockets import Listener
from tests.transport.relay.nodes import WITHIN_S, until

UNIDENTIFIED_MAX = 4


def dial(port: int, host: str) -> socket.socket:
    """A connection that says nothing, from an address of this machine."""
    return socket.create_connection(("127.0.0.1", port), source_address=(host, 0))


async def test_a_flood_from_one_address_ends_its_own_connections():
    async def serve(connection: socket.socket) -> bool:
        await asyncio.sleep(3600)
        return False

    listener = Listener(serve, 1000, UNIDENTIFIED_MAX)
    listener.open("127.0.0.1", 0)
    honest = dial(listener.port, "127.0.0.1")
    await until(lambda: len(listener._unidentified) == 1)
    flood = [dial(listener.port, "127.0.0.2") for _ in range(20)]
    for one in flood[: 1 - UNIDENTIFIED_MAX]:
        one.settimeout(WITHIN_S)
        assert await asyncio.to_thread(one.recv, 1) == b""
    left = ["127.0.0.1"] + ["127.0.0.2"] * (UNIDENTIFIED_MAX - 1)
    assert list(listener._unidentified.values()) == left
    await listener.close()
    for one in (honest, *flood):
        one.close()
