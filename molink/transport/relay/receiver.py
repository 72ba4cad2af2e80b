"""Keeps a PC reachable through a relay, for as long as its agent lives.

One registration stays open; when somebody calls, a new connection to the relay is joined with a
port of this PC, by the port's name: only ports that the agent has opened can be named. However hard
the network is, this never gives up: it tries again, after half a second first and every half minute
in the end, a little earlier or later each time, so that nodes that lost their relay together do not
return together.
"""

import asyncio
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from molink.errors import FrameError
from molink.transport.preamble import RefusedError, sentence
from molink.transport.relay.caller import RelayCaller
from molink.transport.relay.protocol import RELAY_FRAMES, SILENT_S, Called, Ping, Refused
from molink.transport.relay.splice import Splicer
from molink.transport.sockets import connect

__all__ = ["CONNECTIONS_MAX", "Pauses", "RelayReceiver"]

CONNECTIONS_MAX = 64
"""Joined with ports of this PC at a time: a stage has a few links, and a round of measurements
comes one after the other. Whoever calls beyond that is declined."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long to wait before the next attempt."""

    first_s: float = 0.5
    max_s: float = 30.0
    """A relay that has been away for hours is found again within half a minute, by each node with
    three packets a try."""
    spread: float = 0.5
    """Each pause is this share shorter at most, drawn evenly."""

    def draw(self, rng: random.Random) -> Iterator[float]:
        """Doubling, without end."""
        pause_s = self.first_s
        while True:
            yield pause_s * (1 - self.spread * rng.random())
            pause_s = min(2 * pause_s, self.max_s)


class RelayReceiver:
    """The registration of one node with one relay."""

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
        self._carrying: set[asyncio.Task[None]] = set()
        self.registered = asyncio.Event()
        """Set while the relay knows this node."""
        self.trouble = ""
        """Why it is not registered, for the owner; empty when it is."""

    def open(self, port_name: str, address: str) -> None:
        """From now on whoever asks the relay for this port of this node reaches `host:port`."""
        self._ports[port_name] = address

    def close(self, port_name: str) -> None:
        """Nobody new comes to this port; connections that are open go on."""
        self._ports.pop(port_name, None)

    @property
    def bytes_carried(self) -> int:
        """Both ways, since the start."""
        return self._splicer.bytes_carried

    @property
    def connections(self) -> int:
        """That are joined with ports of this PC now, or being joined."""
        return len(self._carrying)

    async def run(self) -> None:
        """Until it is cancelled; then every connection is ended."""
        try:
            await self._stay()
        finally:
            for task in tuple(self._carrying):
                task.cancel()
            await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _stay(self) -> None:
        """A registration that did not last counts as a failure: of two agents with one id, each of
        which ends the other's, neither floods the relay."""
        loop = asyncio.get_running_loop()
        pauses = self._pauses.draw(self._rng)
        while True:
            began_s = loop.time()
            try:
                await self._listen(await self._caller.register())
            except (OSError, FrameError, RefusedError) as error:
                self.trouble = f"the relay at {self._caller.address}: {error or 'silent'}"
            if loop.time() - began_s > self._pauses.max_s:
                pauses = self._pauses.draw(self._rng)
            await asyncio.sleep(next(pauses))

    async def _listen(self, connection: socket.socket) -> None:
        """Hear who calls. Raises OSError or FrameError when the registration is lost."""
        self.trouble = ""
        self.registered.set()
        try:
            while True:
                match await RELAY_FRAMES.read(connection, SILENT_S):
                    case Called() as call:
                        self._called(connection, call)
                    case Ping():
                        RELAY_FRAMES.write_now(connection, Ping())
                    case other:
                        raise FrameError(f"{type(other).__name__} from a relay")
        finally:
            self.registered.clear()
            connection.close()

    def _called(self, connection: socket.socket, call: Called) -> None:
        address = self._ports.get(call.port_name)
        if address is None:
            why = f"this node has no port {call.port_name}"
        elif len(self._carrying) >= CONNECTIONS_MAX:
            why = f"this node has {CONNECTIONS_MAX} connections already"
        else:
            task = asyncio.create_task(self._carry(connection, call.ticket, address))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)
            return
        RELAY_FRAMES.write_now(connection, Refused(why, call.ticket))

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
        except (OSError, RefusedError):
            port.close()
        except BaseException:
            port.close()
            raise
        else:
            await self._splicer.join(port, far_end)
