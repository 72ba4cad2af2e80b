"""Nodes for tests of the relay: ids, tokens, and something to wait with."""

import asyncio
from collections.abc import Callable

from molink.transport.relay.client import RelayCaller
from molink.transport.relay.protocol import relay_token
from molink.transport.sockets import address_of, listen

SECRET = b"0123456789abcdef0123456789abcdef"
ANNA, BERT, CARL = "a" * 16, "b" * 16, "c" * 16
WITHIN_S = 20.0


def caller_of(node_id: str, relay: str, secret: bytes = SECRET) -> RelayCaller:
    return RelayCaller(relay, node_id, relay_token(secret, node_id))


async def until(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError when it does not come true."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - a condition has no event
            await asyncio.sleep(0.002)


class EchoPort:
    """A port that says everything again, and half closes when its peer has."""

    def __init__(self):
        self.connections = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        self.address = address_of(self._server.sockets[0])
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _echo(self, reader, writer):
        self.connections += 1
        try:
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


def free_address() -> str:
    """Where nobody listens now."""
    listener = listen("127.0.0.1", 0)
    address = address_of(listener)
    listener.close()
    return address
