"""A node's dealings with a relay: dialling a port of another node, and being reached itself.

`relay_tunnel` is what a stage sees of a relayed link: a port on loopback. Each connection to it is
dialled through the relay and joined with what comes back. A stage connects with ZeroMQ, which tries
again by itself, some ten times a second; so a dial that fails keeps the stage's connection for a
while before it ends it, longer each time.

`RelayReceiver` keeps a PC reachable for as long as its agent runs. One registration stays open; for
each call a new connection to the relay is joined with a port of this PC, by the port's name: only
ports that the agent has opened can be named. However hard the network is, it never gives up: it
tries again, after half a second first and every half minute in the end, a little earlier or later
each time, so that nodes that lost their relay together do not return together.
"""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from molink.errors import FrameError
from molink.tasks import background_tasks
from molink.transport.preamble import PreambleRefusedError, Signed, sentence
from molink.transport.relay.protocol import (
    RELAY_FRAMES,
    SILENT_S,
    Answer,
    Called,
    Dial,
    Joined,
    Ping,
    Refused,
    Register,
    Registered,
    RelayFrame,
)
from molink.transport.relay.splice import Splicer
from molink.transport.sockets import accept_from, address_of, connect, listen

JOINED_WITHIN_S = 20.0
"""The relay gives the far end ten seconds to come, each end its own round trips."""

PAUSE_FIRST_S, PAUSE_MAX_S = 0.25, 5.0
"""How long a failed dial keeps its caller, doubling: soon enough for a far end that is starting,
and twelve dials a minute for one that is gone."""

TUNNEL_CONNECTIONS_MAX = 8
"""Connections through one tunnel: ZeroMQ has one, at times one that ends. More are left waiting."""

CONNECTIONS_MAX = 64
"""Joined with ports of this PC at a time: a stage has a few links, and a round of measurements
comes one after the other."""

CALLER_CONNECTIONS_MAX = 8
"""Connections of one caller: one or two links, a measurement, and their predecessors."""


@dataclass(frozen=True, slots=True)
class RelayCaller:
    """Requests of one node to one relay."""

    address: str
    """host:port of the relay."""
    node_id: str
    token: str
    """Token that `relay_token` makes for this node."""

    async def dial(self, to: str, port_name: str) -> socket.socket:
        """A connection to a port of another node.

        Raises OSError when the relay cannot be reached, RefusedError when it says why not.
        """
        return await self._ask(Dial(self.node_id, b"", to, port_name), Joined)

    async def answer(self, ticket: bytes) -> socket.socket:
        """A connection for the dial of that ticket. Raises as `dial`."""
        return await self._ask(Answer(self.node_id, b"", ticket), Joined)

    async def register(self) -> socket.socket:
        """A connection on which the relay says who calls. Raises as `dial`."""
        return await self._ask(Register(self.node_id, b""), Registered)

    async def _ask(self, request: Signed, wanted: type[RelayFrame]) -> socket.socket:
        connection = await connect(self.address)
        try:
            answer = await RELAY_FRAMES.request(connection, request, self.token, JOINED_WITHIN_S)
            if isinstance(answer, Refused):
                raise PreambleRefusedError(answer.sentence)
            if not isinstance(answer, wanted):
                raise FrameError("it answers out of order")
        except FrameError as error:
            connection.close()
            raise ConnectionError(f"no relay listens at {self.address}: {error}") from None
        except BaseException:
            connection.close()
            raise
        return connection


class RelayTunnel:
    """Port on loopback that leads to a port of another node. Made by `relay_tunnel`."""

    def __init__(
        self,
        caller: RelayCaller,
        to: str,
        port_name: str,
        on_dial: Callable[[str], None],
        listener: socket.socket,
    ) -> None:
        self._caller, self._to, self._port_name = caller, to, port_name
        self._on_dial, self._listener = on_dial, listener
        self._splicer = Splicer()
        self._slots = asyncio.Semaphore(TUNNEL_CONNECTIONS_MAX)
        self._pause_s = PAUSE_FIRST_S

    @property
    def address(self) -> str:
        """host:port that the stage connects to."""
        return address_of(self._listener)

    @property
    def bytes_carried(self) -> int:
        """Both ways, since it was opened."""
        return self._splicer.bytes_carried

    async def serve(self, group: asyncio.TaskGroup) -> None:
        """Dial for each connection, in a task of the group, until cancelled."""
        while True:
            await self._slots.acquire()
            group.create_task(self._carry(await accept_from(self._listener)))

    async def _carry(self, connection: socket.socket) -> None:
        try:
            far_end = await self._caller.dial(self._to, self._port_name)
        except (OSError, PreambleRefusedError) as error:
            self._on_dial(f"the relay at {self._caller.address}: {error or 'too slow'}")
            pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MAX_S)
            await asyncio.sleep(pause_s)
        else:
            self._on_dial("")
            self._pause_s = PAUSE_FIRST_S
            await self._splicer.join(connection, far_end)
        finally:
            connection.close()
            self._slots.release()


@asynccontextmanager
async def relay_tunnel(
    caller: RelayCaller,
    to: str,
    port_name: str,
    on_dial: Callable[[str], None] = lambda sentence: None,
) -> AsyncIterator[RelayTunnel]:
    """A tunnel at a free port of 127.0.0.1, which ends with the block; `on_dial` is called with why
    a dial has failed, and with the empty text when one has succeeded. Raises UserError when no port
    is free."""
    with listen("127.0.0.1", 0) as listener:
        tunnel = RelayTunnel(caller, to, port_name, on_dial, listener)
        async with background_tasks() as group:
            group.create_task(tunnel.serve(group))
            yield tunnel


@dataclass(frozen=True, slots=True)
class Pauses:
    """Backoff between attempts to register."""

    first_s: float = 0.5
    max_s: float = 30.0
    """A relay that has been away for hours is found again within half a minute, by each node with
    three packets a try."""
    spread: float = 0.5
    """Each pause is this share shorter at most, drawn evenly."""

    def draw(self, rng: random.Random) -> Iterator[float]:
        """Pauses one after the other, doubling, without end."""
        pause_s = self.first_s
        while True:
            yield pause_s * (1 - self.spread * rng.random())
            pause_s = min(2 * pause_s, self.max_s)


@dataclass(slots=True)
class CallerPlaces:
    """The connections that a node has taken from others, by who called.

    The relay knows who calls; what comes after has proven nothing yet. So no caller has more than a
    few places, and when all are taken, one that has fewer than another gets a place of that one's:
    who calls for the sake of calling, under many names too, keeps nobody else out.
    """

    _carrying: dict[str, list["asyncio.Task[None]"]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._carrying.values()))

    def objection(self, caller: str) -> str | None:
        """Why a call cannot be taken; None: it can, and the newest connection of whoever has the
        most was ended for it where none was free."""
        own = len(self._carrying.get(caller, ()))
        if own >= CALLER_CONNECTIONS_MAX:
            return f"{caller} has {CALLER_CONNECTIONS_MAX} connections to this node already"
        if len(self) < CONNECTIONS_MAX:
            return None
        greediest = max(self._carrying.values(), key=len)
        if len(greediest) <= own + 1:
            return f"this node has {CONNECTIONS_MAX} connections already"
        greediest.pop().cancel()
        return None

    def take(self, caller: str, carrying: "asyncio.Task[None]") -> None:
        """Count a connection until its task ends."""
        self._carrying.setdefault(caller, []).append(carrying)
        carrying.add_done_callback(lambda ended: self._leave(caller, ended))

    def _leave(self, caller: str, ended: "asyncio.Task[None]") -> None:
        own = self._carrying.get(caller, [])
        if ended in own:
            own.remove(ended)
        if not own:
            self._carrying.pop(caller, None)


class RelayReceiver:
    """Registration of one node with one relay, and what is called through it."""

    def __init__(
        self,
        caller: RelayCaller,
        pauses: Pauses = Pauses(),
        rng: random.Random | None = None,
    ) -> None:
        self._caller, self._pauses = caller, pauses
        self._rng = rng or random.Random()
        self._ports: dict[str, str] = {}
        self._splicer = Splicer()
        self._places = CallerPlaces()
        self.registered = asyncio.Event()
        """Event that is set while the relay knows this node."""
        self.trouble = ""
        """Why it is not registered, for the owner; empty when it is."""
        self._is_due = asyncio.Event()
        """Event that `retry` sets and each attempt clears."""

    def open(self, port_name: str, address: str) -> None:
        """Let calls for this port of this node reach `host:port` from now on."""
        self._ports[port_name] = address

    def close(self, port_name: str) -> None:
        """Decline calls for this port from now on; connections that are open go on."""
        self._ports.pop(port_name, None)

    @property
    def bytes_carried(self) -> int:
        """Both ways, since the start."""
        return self._splicer.bytes_carried

    @property
    def connections(self) -> int:
        """Calls that are joined with ports of this PC now, or being joined."""
        return len(self._places)

    def retry(self) -> None:
        """Register without a pause, unless it is registered: the relay is there again, perhaps."""
        if not self.registered.is_set():
            self._is_due.set()

    async def run(self) -> None:
        """Stay registered until it is cancelled; then every connection is ended."""
        async with background_tasks() as group:
            await self._stay(group)

    async def _stay(self, group: asyncio.TaskGroup) -> None:
        """A registration that did not last counts as a failure: of two agents with one id, each of
        which ends the other's, neither floods the relay."""
        loop = asyncio.get_running_loop()
        pauses = self._pauses.draw(self._rng)
        while True:
            began_s = loop.time()
            self._is_due.clear()
            try:
                await self._listen(await self._caller.register(), group)
            except (OSError, FrameError, PreambleRefusedError) as error:
                self.trouble = f"the relay at {self._caller.address}: {error or 'silent'}"
            if loop.time() - began_s > self._pauses.max_s:
                pauses = self._pauses.draw(self._rng)
            if await self._pause(next(pauses)):
                pauses = self._pauses.draw(self._rng)

    async def _pause(self, pause_s: float) -> bool:
        """Wait; whether `retry` has ended it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._is_due.wait()
        return self._is_due.is_set()

    async def _listen(self, connection: socket.socket, group: asyncio.TaskGroup) -> None:
        """Take calls. Raises OSError or FrameError when the registration is lost."""
        self.trouble = ""
        self.registered.set()
        try:
            while True:
                match await RELAY_FRAMES.read(connection, SILENT_S):
                    case Called() as call:
                        self._called(connection, call, group)
                    case Ping():
                        RELAY_FRAMES.write_now(connection, Ping())
                    case other:
                        raise FrameError(f"{type(other).__name__} from a relay")
        finally:
            self.registered.clear()
            connection.close()

    def _called(self, connection: socket.socket, call: Called, group: asyncio.TaskGroup) -> None:
        address = self._ports.get(call.port_name)
        if address is None:
            why: str | None = f"this node has no port {call.port_name}"
        else:
            why = self._places.objection(call.caller)
        if address is None or why is not None:
            RELAY_FRAMES.write_now(connection, Refused(sentence(str(why)), call.ticket))
            return
        carrying = group.create_task(self._carry(connection, call.ticket, address))
        self._places.take(call.caller, carrying)

    async def _carry(self, registration: socket.socket, ticket: bytes, address: str) -> None:
        """Join one call with the port that it is for."""
        try:
            port = await connect(address)
        except OSError as error:
            why = Refused(sentence(f"the port does not answer: {error or 'too slow'}"), ticket)
            RELAY_FRAMES.write_now(registration, why)
            return
        try:
            far_end = await self._caller.answer(ticket)
        except (OSError, PreambleRefusedError):
            port.close()
        except BaseException:
            port.close()
            raise
        else:
            await self._splicer.join(port, far_end)
