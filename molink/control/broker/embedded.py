"""A broker inside the coordinator's process.

It keeps its state in memory only. That suffices: every client repeats what it had published when it
comes back, and the coordinator publishes what its own database holds. So it needs a small part of
MQTT 3.1.1: a session ends with its connection, and QoS 1 is acknowledged but never repeated, since
TCP repeats what is lost on the way. A library (amqtt) was here before: its packets and its loop
were all that was left of it when no client could harm another, and they took most of the time.
"""

import asyncio
import hmac
import resource
import secrets
import ssl

from molink.control.addresses import BrokerAddress, Credentials, ServerTrust, TlsFiles
from molink.control.broker.permissions import COORDINATOR_NAME, check_username
from molink.control.broker.routing import Router
from molink.control.broker.session import (
    CONNECT_TIMEOUT_S,
    CONNECTIONS_MAX,
    Session,
    Sessions,
)
from molink.control.handshake import Handshake
from molink.errors import ErrorGuard, UserError

_SWEEP_S = 0.25
"""How often lost clients are looked for."""
_LATE_S = 1.0
"""A look that comes so late: it was we who did not read, and what clients have sent still waits."""


class EmbeddedBroker:
    """A `Broker` that serves on this event loop."""

    def __init__(self, host: str, port: int, tls: TlsFiles | None = None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._pinned = None if tls is None else tls.pinned
        self._coordinator = Credentials(COORDINATOR_NAME, secrets.token_urlsafe(32))
        self._passwords = {COORDINATOR_NAME: self._coordinator.password}
        self._router = Router()
        self._sessions = Sessions()
        self._server: asyncio.Server | None = None
        self._others: dict[int, asyncio.Server] = {}
        """Servers at further ports."""
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def address(self) -> BrokerAddress:
        """Address at which it listens; the port is known once it has started."""
        return BrokerAddress(self._host, self._port, self._pinned)

    @property
    def trust(self) -> ServerTrust | None:
        """What agents accept its certificate by."""
        return None if self._tls is None else self._tls.trust

    @property
    def coordinator(self) -> Credentials:
        """Drawn anew for every start of the coordinator."""
        return self._coordinator

    async def start(self) -> None:
        """Listen. Raises UserError when the address cannot be had."""
        _allow_many_connections()
        self._router = Router()
        self._server = await self._listen(self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self._sweeper = asyncio.create_task(self._sweep())

    async def also_at(self, port: int) -> None:
        """Listen there from now on, too, unless it does; 0 is no port. Raises UserError."""
        if port and port != self._port and port not in self._others:
            self._others[port] = await self._listen(port)

    async def _listen(self, port: int) -> asyncio.Server:
        context = None if self._tls is None else self._tls.server_context()
        try:
            return await asyncio.get_running_loop().create_server(
                lambda: self._connection(context), self._host, port, backlog=CONNECTIONS_MAX
            )
        except OSError as error:
            where = f"{self._host}:{port}"
            raise UserError(f"The broker cannot listen on {where}: {error}.") from None

    async def stop(self) -> None:
        """End all connections, without their last wills; what was retained is gone."""
        if self._server is None or self._sweeper is None:
            return
        for server in (self._server, *self._others.values()):
            server.close()
        self._others.clear()
        self._sweeper.cancel()
        for stranger in self._sessions.strangers:
            if isinstance(stranger, Handshake):
                stranger.end()
        closing = [session.closed for session in self._sessions]
        for session in self._sessions:
            session.end(with_will=False)
        await asyncio.gather(self._sweeper, *closing, return_exceptions=True)
        self._server = None

    async def allow(self, username: str, password: str) -> Credentials:
        """Let a node connect, see `Broker.allow`."""
        check_username(username)
        self._passwords[username] = password
        return Credentials(username, password)

    async def forbid(self, username: str) -> None:
        """Refuse a node, see `Broker.forbid`."""
        check_username(username)
        self._passwords.pop(username, None)
        self._router.end_client(username)

    def _connection(self, context: ssl.SSLContext | None) -> asyncio.Protocol:
        if context is None:
            return self._session()
        return Handshake(context, self._sessions, self._session, CONNECT_TIMEOUT_S)

    def _session(self) -> Session:
        return Session(self._router, self._knows, self._sessions)

    def _knows(self, username: str, password: str) -> bool:
        known = self._passwords.get(username, "")
        return bool(known) and hmac.compare_digest(known.encode(), password.encode())

    async def _sweep(self) -> None:
        guard = ErrorGuard("Looking for lost MQTT clients")
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            await asyncio.sleep(_SWEEP_S)
            before_s, looked_s = looked_s, loop.time()
            with guard:
                self.end_lost(looked_s - before_s)

    def end_lost(self, since_s: float) -> None:
        """End sessions whose clients are silent too long; `since_s`: since this was last done."""
        for session in self._sessions:
            if since_s > _LATE_S:
                session.excuse_silence()
            session.end_if_lost()


def _allow_many_connections() -> None:
    """A shell's usual 1,024 open files are too few; the kernel allows any process more."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS_MAX
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, more), most))
