"""Limits of a server's connections: their number, and how long an answer may lie unread.

aiohttp closes a connection that asks nothing, but counts none, so that one address could take every
descriptor of the process; and it waits for ever for a client that does not read. Each of its
protocols is therefore wrapped by one of ours, which sees a connection come, go, and stop reading.
Nothing is done for each event of a stream: asyncio says when the buffer of a connection is full and
when it is empty again, and only then a clock runs.

A connection over a limit is answered with 503 before aiohttp knows of it. With TLS it is counted
before its handshake (`control.handshake`), and closed if it is over a limit: to tell it why would
cost a handshake each.
"""

import asyncio
import json
import logging
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import cast

from aiohttp import web

from molink.api.errors import RETRY_AFTER_S, ApiError, error_body
from molink.control.handshake import Handshake
from molink.households import household_of

IDLE_S = 75.0
"""Longest time in which a connection asks nothing, at its begin or between two requests. Proxies
keep theirs for 60 s, and should be the ones to close them."""

UNREAD_S = 60.0
"""Longest time in which a client takes nothing of 64 KiB that wait for it: a stream that is read at
all moves on within seconds."""

HANDSHAKE_S = 10.0
"""Seconds for a TLS handshake, whose three round trips take seconds on the worst lines."""

CONNECTIONS_MAX = 4096
"""Most connections: as many as sequences at a time on a ring; each costs some 10 KB."""

DESCRIPTORS_PART = 4
"""A server may take a quarter of the process's descriptors, so that those of users and of nodes
leave half: rings, plans and files need theirs."""

ADDRESS_PART = 4
"""Part of the connections that one address may hold: a quarter."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one server's connections."""

    total: int = CONNECTIONS_MAX
    per_address: int = CONNECTIONS_MAX // ADDRESS_PART
    unread_s: float = UNREAD_S

    @classmethod
    def of_process(cls) -> "ConnectionLimits":
        """Limits for as many connections as this process has descriptors for."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        usable = CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft // DESCRIPTORS_PART
        total = max(ADDRESS_PART, min(CONNECTIONS_MAX, usable))
        return cls(total, total // ADDRESS_PART)


@dataclass(slots=True)
class ConnectionGuard:
    """Counter of a server's connections, by address."""

    limits: ConnectionLimits
    open: Counter[str] = field(default_factory=Counter)
    """Connections of each address that has any."""
    refused: int = 0
    """Connections that were over a limit."""

    def admit(self, address: str) -> bool:
        """Count a connection, if there is room for it."""
        within = self.open[address] < self.limits.per_address
        if within and self.open.total() < self.limits.total:
            self.open[address] += 1
            return True
        if not self.open[address]:
            del self.open[address]
        self.refused += 1
        if self.refused.bit_count() == 1:
            logger.warning(
                "a connection of %s was refused (%d so far): %s", address, self.refused, self.limits
            )
        return False

    def leave(self, address: str) -> None:
        """Count the end of a connection that was admitted."""
        self.open[address] -= 1
        if not self.open[address]:
            del self.open[address]

    def protocols(
        self, inner: Callable[[], asyncio.BaseProtocol]
    ) -> Callable[[], asyncio.BaseProtocol]:
        """Maker of protocols around those of `inner`, for `loop.create_server`."""
        return lambda: _GuardedConnection(self, inner)


@dataclass(slots=True)
class _Handshakes:
    """Connections of a guard whose TLS is not ready yet (`Strangers`)."""

    guard: ConnectionGuard
    open: dict[Handshake, str] = field(default_factory=dict)
    """Open connections, each with its address."""

    def add_stranger(self, stranger: object, address: str) -> bool:
        """Count one; whether there is room for it."""
        counted_as = household_of(address)
        if not self.guard.admit(counted_as):
            return False
        self.open[cast(Handshake, stranger)] = counted_as
        return True

    def remove_stranger(self, stranger: object) -> None:
        """Count it no more; the connection of its session is counted instead."""
        counted_as = self.open.pop(cast(Handshake, stranger), None)
        if counted_as is not None:
            self.guard.leave(counted_as)

    def end(self) -> None:
        """Close all connections whose handshake is not done."""
        for handshake in list(self.open):
            handshake.end()


class _GuardedConnection(asyncio.Protocol):
    """One connection; everything goes on to aiohttp's protocol once it is admitted."""

    def __init__(self, guard: ConnectionGuard, inner: Callable[[], asyncio.BaseProtocol]) -> None:
        self._guard, self._make_inner = guard, inner
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit it, or refuse it in one sentence."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._address = household_of(peer[0] if peer else None)
        if not self._guard.admit(self._address):
            self._transport.write(_refusal())
            self._transport.close()
            return
        self._inner = cast(asyncio.Protocol, self._make_inner())
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what a client sent."""
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on that a client sends no more."""
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        """The client does not read what waits for it: give it some time."""
        assert self._transport is not None
        loop, limits = asyncio.get_running_loop(), self._guard.limits
        self._unread = loop.call_later(limits.unread_s, self._transport.abort)
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The client reads again: its time starts anew when it stops."""
        self._stop_clock()
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Count the connection no more."""
        self._stop_clock()
        if self._inner is not None:
            self._guard.leave(self._address)
            self._inner.connection_lost(error)

    def _stop_clock(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _refusal() -> bytes:
    error = ApiError(
        "The server holds as many connections as it can, or as one address may have: close some, "
        "or try again later.",
        status=503,
        code="too_many_connections",
    )
    body = json.dumps(error_body(error)).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class GuardedSite(web.TCPSite):
    """TCPSite whose connections are counted."""

    def __init__(
        self,
        runner: web.BaseRunner,
        host: str,
        port: int,
        *,
        guard: ConnectionGuard,
        backlog: int,
        ssl_context: SSLContext | None = None,
    ) -> None:
        super().__init__(runner, host, port, backlog=backlog, ssl_context=ssl_context)
        self._guard, self._handshakes = guard, _Handshakes(guard)

    async def start(self) -> None:
        """Listen, and count every connection that comes."""
        await web.BaseSite.start(self)
        assert self._runner.server is not None
        self._server = await asyncio.get_running_loop().create_server(
            self._protocols(self._runner.server), self._host, self._port, backlog=self._backlog
        )

    async def stop(self) -> None:
        """Listen no more; connections whose TLS is not ready are closed."""
        await super().stop()
        self._handshakes.end()

    def _protocols(
        self, inner: Callable[[], asyncio.BaseProtocol]
    ) -> Callable[[], asyncio.BaseProtocol]:
        guarded, context = self._guard.protocols(inner), self._ssl_context
        if context is None:
            return guarded
        return lambda: Handshake(context, self._handshakes, guarded, HANDSHAKE_S)
