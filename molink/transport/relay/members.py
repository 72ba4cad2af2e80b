"""Nodes that are registered with a relay, dials that wait for an answer, and what each holds."""

import asyncio
import secrets
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from molink.transport.preamble import PreambleRefusedError
from molink.transport.relay.protocol import RELAY_FRAMES, Called, RelayFrame

DIALS_PER_NODE_MAX = 32
"""Connections that one node has dialled, open or waiting: a stage has two links that leave it, and
a measurement one more; the rest is for several stages and for old ones that have not been noticed
to be gone. Counted at the caller only, or others could use up a node's share by dialling it."""

DIALS_PER_PAIR_MAX = 8
"""Such connections to one node: one or two links, a measurement, and their predecessors."""

TICKET_BYTES = 16
"""128 bits: not to be guessed in the seconds that it is valid."""


@dataclass(slots=True, eq=False)
class PendingDial:
    """Dial that waits for the receiver's connection."""

    to: str
    answer: "asyncio.Future[socket.socket]"
    taken: bool = False

    async def arrival(self, within_s: float) -> socket.socket:
        """The receiver's connection. Raises RefusedError when it declines, TimeoutError."""
        async with asyncio.timeout(within_s):
            connection = await self.answer
        self.taken = True
        return connection

    def give_up(self) -> None:
        """The caller does not wait any more; a connection that came in this moment is closed."""
        if self.answer.cancel() or self.taken or self.answer.cancelled():
            return
        if self.answer.exception() is None:
            self.answer.result().close()


@dataclass(slots=True)
class Members:
    """Registrations, dials and tasks of a relay, by node."""

    registered: dict[str, socket.socket] = field(default_factory=dict)
    _pending: dict[bytes, PendingDial] = field(default_factory=dict)
    _dials: Counter[tuple[str, str]] = field(default_factory=Counter)
    _tasks: dict[str, set["asyncio.Task[object]"]] = field(default_factory=dict)

    def register(self, node_id: str, connection: socket.socket) -> None:
        """Let this connection reach the node from now on.

        The newest counts: a node that comes again has lost the older one, whether or not the relay
        has noticed. The older one is ended.
        """
        older = self.registered.get(node_id)
        if older is not None:
            _hang_up(older)
        self.registered[node_id] = connection

    def leave(self, node_id: str, connection: socket.socket) -> None:
        """This registration is over, unless a newer one has replaced it."""
        if self.registered.get(node_id) is connection:
            del self.registered[node_id]

    def send_to(self, node_id: str, frame: RelayFrame) -> bool:
        """Send to a node on its registration; one that does not read is dropped."""
        connection = self.registered.get(node_id)
        if connection is None:
            return False
        if RELAY_FRAMES.write_now(connection, frame):
            return True
        del self.registered[node_id]
        _hang_up(connection)
        return False

    @contextmanager
    def dialling(self, caller: str, to: str) -> Iterator[None]:
        """Count one dial as long as it is open. Raises RefusedError above the limits."""
        if self._dials[caller, to] >= DIALS_PER_PAIR_MAX:
            raise PreambleRefusedError(
                f"this node has {DIALS_PER_PAIR_MAX} connections to {to} already"
            )
        if sum(n for (who, _), n in self._dials.items() if who == caller) >= DIALS_PER_NODE_MAX:
            raise PreambleRefusedError(
                f"this node has {DIALS_PER_NODE_MAX} connections here already"
            )
        self._dials[caller, to] += 1
        try:
            yield
        finally:
            self._dials[caller, to] -= 1
            if not self._dials[caller, to]:
                del self._dials[caller, to]

    @contextmanager
    def calling(self, caller: str, to: str, port_name: str) -> Iterator[PendingDial]:
        """Ask a node to come for a caller. Raises RefusedError when it is not registered."""
        ticket = secrets.token_bytes(TICKET_BYTES)
        pending = PendingDial(to, asyncio.get_running_loop().create_future())
        self._pending[ticket] = pending
        try:
            if not self.send_to(to, Called(caller, port_name, ticket)):
                raise PreambleRefusedError(f"{to} is not registered with this relay")
            yield pending
        finally:
            del self._pending[ticket]
            pending.give_up()

    def answered(self, node_id: str, ticket: bytes, connection: socket.socket) -> bool:
        """Hand a receiver's connection to the dial that waits for it; False when none does."""
        pending = self._waiting(node_id, ticket)
        if pending is None:
            return False
        pending.answer.set_result(connection)
        return True

    def declined(self, node_id: str, ticket: bytes, why: str) -> None:
        """The receiver will not come."""
        pending = self._waiting(node_id, ticket)
        if pending is not None:
            pending.answer.set_exception(PreambleRefusedError(why))

    def _waiting(self, node_id: str, ticket: bytes) -> PendingDial | None:
        pending = self._pending.get(ticket)
        ours = pending is not None and pending.to == node_id and not pending.answer.done()
        return pending if ours else None

    @contextmanager
    def working_for(self, *node_ids: str) -> Iterator[None]:
        """This task ends when one of the nodes is forbidden."""
        task = asyncio.current_task()
        assert task is not None
        for node_id in node_ids:
            self._tasks.setdefault(node_id, set()).add(task)
        try:
            yield
        finally:
            for node_id in node_ids:
                tasks = self._tasks.get(node_id, set())
                tasks.discard(task)
                if not tasks:
                    self._tasks.pop(node_id, None)

    def end(self, node_id: str) -> None:
        """End the node's registration and all connections that it is an end of."""
        for task in tuple(self._tasks.get(node_id, ())):
            task.cancel()


def _hang_up(connection: socket.socket) -> None:
    """End this connection: the task that reads from it sees its end and closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
