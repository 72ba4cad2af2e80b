"""A node's dealings with a relay: dialling a port of another node, and registering its own.

`RelayTunnel` is what a stage sees of a relayed link: a port on loopback. Each connection to it is
dialled through the relay and joined with what comes back. A stage connects with ZeroMQ, which tries
again by itself, some ten times a second; so a dial that fails keeps the stage's connection for a
while before it ends it, longer each time.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from molink.errors import FrameError
from molink.transport.preamble import Hello, RefusedError, Signed, sign
from molink.transport.relay.protocol import (
    RELAY_FRAMES,
    Answer,
    Dial,
    Joined,
    Refused,
    Register,
    Registered,
    RelayFrame,
)
from molink.transport.relay.splice import Splicer
from molink.transport.sockets import accept_from, address_of, connect, listen

__all__ = ["JOINED_WITHIN_S", "RelayCaller", "RelayTunnel"]

JOINED_WITHIN_S = 20.0
"""The relay gives the far end ten seconds to come, each end its own round trips."""

PAUSE_FIRST_S, PAUSE_MAX_S = 0.25, 5.0
"""How long a failed dial keeps its caller, doubling: soon enough for a far end that is starting,
and twelve dials a minute for one that is gone."""

CONNECTIONS_MAX = 8
"""Through one door: ZeroMQ has one, and at times one that is ending. More are left waiting."""


@dataclass(frozen=True, slots=True)
class RelayCaller:
    """One node at one relay."""

    address: str
    """host:port of the relay."""
    node_id: str
    token: str
    """`relay_token` of this node."""

    async def dial(self, to: str, port_name: str) -> socket.socket:
        """A connection to a port of another node.

        Raises OSError when the relay cannot be reached, RefusedError when it says why not.
        """
        request = Dial(self.node_id, b"", to, port_name)
        return await self._ask(request, Joined, JOINED_WITHIN_S)

    async def answer(self, ticket: bytes) -> socket.socket:
        """A connection for the dial of that ticket. Raises as `dial`."""
        return await self._ask(Answer(self.node_id, b"", ticket), Joined, JOINED_WITHIN_S)

    async def register(self) -> socket.socket:
        """A connection on which the relay says who calls. Raises as `dial`."""
        return await self._ask(Register(self.node_id, b""), Registered, JOINED_WITHIN_S)

    async def _ask(
        self, request: Signed, wanted: type[RelayFrame], within_s: float
    ) -> socket.socket:
        connection = await connect(self.address)
        try:
            hello = await RELAY_FRAMES.read(connection)
            if not isinstance(hello, Hello):
                raise FrameError(f"what listens at {self.address} is no relay")
            signed = sign(request, self.token, hello.nonce)
            await RELAY_FRAMES.write(connection, signed)  # type: ignore[arg-type]
            match await RELAY_FRAMES.read(connection, within_s):
                case Refused(why):
                    raise RefusedError(why)
                case frame if not isinstance(frame, wanted):
                    raise FrameError(f"the relay at {self.address} answers out of order")
        except FrameError as error:
            connection.close()
            raise ConnectionError(str(error)) from None
        except BaseException:
            connection.close()
            raise
        return connection


class RelayTunnel:
    """A port on loopback that leads to a port of another node, from `open` to `close`."""

    def __init__(
        self,
        caller: RelayCaller,
        to: str,
        port_name: str,
        said: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`said` hears why a dial failed, and the empty text when one has succeeded."""
        self._caller, self._to, self._port_name, self._said = caller, to, port_name, said
        self._splicer = Splicer()
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause_s = PAUSE_FIRST_S

    def open(self) -> None:
        """Listen at a free port of 127.0.0.1. Raises UserError when there is none."""
        self._door = listen("127.0.0.1", 0)
        self._tasks.add(asyncio.create_task(self._accept()))

    async def close(self) -> None:
        """End it with all connections through it."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._door.close()

    @property
    def address(self) -> str:
        """host:port that the stage connects to."""
        return address_of(self._door)

    @property
    def bytes_carried(self) -> int:
        """Both ways, since it was opened."""
        return self._splicer.bytes_carried

    async def _accept(self) -> None:
        while True:
            await self._room.acquire()
            connection = await accept_from(self._door)
            task = asyncio.create_task(self._carry(connection))
            self._tasks.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._room.release()

    async def _carry(self, connection: socket.socket) -> None:
        try:
            far_end = await self._caller.dial(self._to, self._port_name)
        except (OSError, RefusedError) as error:
            self._said(f"the relay at {self._caller.address}: {error or 'too slow'}")
            pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MAX_S)
            await asyncio.sleep(pause_s)
        else:
            self._said("")
            self._pause_s = PAUSE_FIRST_S
            await self._splicer.join(connection, far_end)
        finally:
            connection.close()
