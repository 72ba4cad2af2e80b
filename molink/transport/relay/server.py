"""The relay: nodes register and dial, two connections are joined, nothing is read.

What it may know of its users is whether they are members: any member may dial any other. Which
pairs belong together changes with every placement, and a relay on a rented server would have to be
told; but it would protect nothing, because the receiver decides who may speak: its ZeroMQ port by
CURVE keys that the coordinator vouches for, its peer service by a token for each pair. Against a
member that dials for the sake of dialling there are limits at the caller (`members`), and the
receiver's own.

Every connection is a task; a node that is removed has its tasks cancelled. Nothing here keeps bytes
but the splices, at most two pieces for each (`splice`).
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from molink.errors import FrameError
from molink.tasks import cancel
from molink.transport.preamble import PreambleRefusedError, Signed, is_signed, sentence
from molink.transport.relay.members import Members
from molink.transport.relay.protocol import (
    PING_PERIOD_S,
    RELAY_FRAMES,
    SILENT_S,
    Answer,
    Dial,
    Joined,
    Ping,
    Refused,
    Register,
    Registered,
    relay_token,
)
from molink.transport.relay.splice import Splicer
from molink.transport.sockets import Listener, connect, raise_file_limit

CONNECTIONS_MAX = 8192
"""Registrations, joined pairs and unidentified connections together: a thousand nodes with seven
links each, far more than the relay's own line could carry. At most twice a piece of `splice` is
held for each: 1 GiB, if every receiver is stuck at once both ways."""

UNIDENTIFIED_MAX = 256
"""Connections that have not proven themselves; the next one ends the oldest."""

CALLED_WITHIN_S = 10.0
"""Seconds for the receiver to connect: its handshakes over a slow line, one packet lost."""


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """Figures of a relay: what it has done since it started, and holds now."""

    registered: int
    joined: int
    """Pairs of connections that are joined now."""
    held_bytes: int
    """Bytes read from one end and not yet taken by the other, now."""
    bytes_carried: int
    dials: int
    """Dials that were joined."""
    refused: int
    """Dials that were not joined, for whatever reason."""
    unroutable: int
    """Refused dials whose receiver is not registered, has no such port, or did not come."""
    spoofed: int
    """Requests in a name whose proof was wrong."""


class RelayServer:
    """The relay's port, from `start` to `stop`; also an async context manager."""

    def __init__(
        self,
        secret: bytes,
        host: str = "0.0.0.0",
        port: int = 0,
        authorised: Callable[[str], bool] = lambda node_id: True,
    ) -> None:
        """`authorised` may refuse nodes although their token is right: those that were removed."""
        self._secret, self._authorised = secret, authorised
        self._where = (host, port)
        self._members = Members()
        self._splicer = Splicer()
        self._forwards: dict[tuple[str, str], str] = {}
        self._listener = Listener(self._serve, CONNECTIONS_MAX, UNIDENTIFIED_MAX)
        self._pinging: asyncio.Task[None] | None = None
        self._dials = self._refused = self._unroutable = self._spoofed = 0

    async def start(self) -> None:
        """Raises UserError when it cannot listen there."""
        raise_file_limit()
        self._listener.open(*self._where)
        self._pinging = asyncio.create_task(self._ping())

    async def stop(self) -> None:
        """Stop listening and end every connection."""
        await cancel(self._pinging)
        await self._listener.close()

    async def __aenter__(self) -> "RelayServer":
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """host:port that it listens at."""
        return self._listener.address

    @property
    def port(self) -> int:
        """Number of the port that it listens at."""
        return self._listener.port

    @property
    def statistics(self) -> RelayStatistics:
        """Figures of its work since the start, and of what it holds now."""
        return RelayStatistics(
            registered=len(self._members.registered),
            joined=self._splicer.open_count,
            held_bytes=self._splicer.held_bytes,
            bytes_carried=self._splicer.bytes_carried,
            dials=self._dials,
            refused=self._refused,
            unroutable=self._unroutable,
            spoofed=self._spoofed,
        )

    def forward(self, to: str, port_name: str, address: str) -> None:
        """Join dials to this port with `host:port` itself, without a registration.

        A coordinator that holds its relay in its own process names its links and its peer service
        here: so nodes need to reach one port of it, and it need not register with itself.
        """
        self._forwards[to, port_name] = address

    def forward_no_more(self, to: str, port_name: str) -> None:
        """Undo `forward` for connections to come."""
        self._forwards.pop((to, port_name), None)

    def forbid(self, node_id: str) -> None:
        """End all that a node has here; `authorised` keeps it from coming back."""
        self._members.end(node_id)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_PERIOD_S)
            for node_id in tuple(self._members.registered):
                self._members.send_to(node_id, Ping())

    async def _serve(self, connection: socket.socket) -> bool:
        """Serve one connection from its first frame to its end; True when another task has it
        now."""
        try:
            return await self._serve_node(connection)
        except PreambleRefusedError as error:
            RELAY_FRAMES.write_now(connection, Refused(sentence(str(error))))
            return False

    async def _serve_node(self, connection: socket.socket) -> bool:
        """Do what a node asks; True when another task has the connection now."""
        request, nonce = await RELAY_FRAMES.challenge(connection)
        if not isinstance(request, Register | Dial | Answer):
            raise PreambleRefusedError("register, dial or answer first")
        self._check(request, nonce)
        self._listener.identified()
        match request:
            case Register():
                with self._members.working_for(request.node_id):
                    await self._keep(request.node_id, connection)
            case Dial():
                await self._dial(request, connection)
            case Answer():
                if not self._members.answered(request.node_id, request.ticket, connection):
                    raise PreambleRefusedError("nobody waits for this connection any more")
                return True
            case _:
                assert_never(request)
        return False

    def _check(self, request: Signed, nonce: bytes) -> None:
        if not is_signed(request, relay_token(self._secret, request.node_id), nonce):
            self._spoofed += 1
            raise PreambleRefusedError(
                f"the proof is not that of {request.node_id}: this relay has another secret than "
                "the coordinator, or somebody uses this name"
            )
        if not self._authorised(request.node_id):
            raise PreambleRefusedError(f"{request.node_id} is not a member of this cluster")

    async def _keep(self, node_id: str, connection: socket.socket) -> None:
        """Listen to a registered node until it goes."""
        await RELAY_FRAMES.write(connection, Registered())
        self._members.register(node_id, connection)
        try:
            while True:
                match await RELAY_FRAMES.read(connection, SILENT_S):
                    case Refused(why, ticket):
                        self._members.declined(node_id, ticket, why)
                    case Ping():
                        pass
                    case other:
                        raise FrameError(f"a registered node sent {type(other).__name__}")
        finally:
            self._members.leave(node_id, connection)

    async def _dial(self, request: Dial, connection: socket.socket) -> None:
        """Find the far end, join it with the caller, and carry until they end."""
        with self._members.working_for(request.node_id, request.to):
            try:
                with self._members.dialling(request.node_id, request.to):
                    far_end = await self._far_end(request)
                    await self._join(connection, far_end)
            except PreambleRefusedError:
                self._refused += 1
                raise

    async def _far_end(self, request: Dial) -> socket.socket:
        address = self._forwards.get((request.to, request.port_name))
        members = self._members
        try:
            if address is not None:
                return await connect(address)
            with members.calling(request.node_id, request.to, request.port_name) as pending:
                far_end = await pending.arrival(CALLED_WITHIN_S)
            RELAY_FRAMES.write_now(far_end, Joined())
            return far_end
        except PreambleRefusedError:
            self._unroutable += 1
            raise
        except OSError as error:
            self._unroutable += 1
            raise PreambleRefusedError(
                f"{request.to} did not come: {error or 'too slow'}"
            ) from None

    async def _join(self, connection: socket.socket, far_end: socket.socket) -> None:
        try:
            await RELAY_FRAMES.write(connection, Joined())
            self._dials += 1
            await self._splicer.join(connection, far_end)
        finally:
            far_end.close()
