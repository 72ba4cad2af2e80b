"""Plain TCP sockets for what carries bytes without reading them: the relay, its tunnels, probes.

asyncio's streams read ahead into a buffer of their own and write into another one; here a few exact
bytes are read from a connection that is then handed on, socket and all, so nothing may be read too
many. Every socket here is non-blocking, sends at once (no Nagle) and notices a peer that is gone.
"""

import asyncio
import logging
import resource
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from molink.errors import FrameError, UserError
from molink.households import household_of
from molink.tasks import cancel

CONNECT_WITHIN_S = 5.0
"""Two lost SYNs (1 + 2 s) and a round trip; a peer that is farther is of no use to a ring."""

KEEPALIVE_IDLE_S, KEEPALIVE_PERIOD_S, KEEPALIVE_PROBES = 30, 10, 3
"""Home routers forget a silent connection after two minutes at the earliest; a peer that has lost
its power is noticed after one."""

STUCK_MS = 60_000
"""A peer that lives but takes nothing for so long (a suspended process) is let go: it connects
again when it wakes. ZeroMQ reads on while a stage computes, so no working stage is that slow."""

BACKLOG = 256
"""Connections that the kernel holds until they are accepted: all nodes of a cluster that return at
once after the relay was restarted."""

ACCEPT_PAUSE_S = 0.2
"""Pause when the process has no descriptors left: some connection ends, or the caller gives up."""

PORT_MAX = 65535

log = logging.getLogger(__name__)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`. Raises OSError when it is neither."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise OSError(f"{address!r} is no host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_of(bound: socket.socket) -> str:
    """Address `host:port` of this end."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tune(connection: socket.socket) -> socket.socket:
    """Set the options of a connection; returns it."""
    connection.setblocking(False)
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_PERIOD_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", STUCK_MS),
    ):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    for level, option, value in options:
        connection.setsockopt(level, option, value)
    return connection


async def connect(address: str, within_s: float = CONNECT_WITHIN_S) -> socket.socket:
    """A connection to `host:port`. Raises OSError, TimeoutError among them, when there is none."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(within_s):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        connection = tune(socket.socket(family, kind, protocol))
        try:
            await loop.sock_connect(connection, where)
        except BaseException:
            connection.close()
            raise
    return connection


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address of this machine; port 0 takes a free one.

    Raises UserError when the address is not of this machine or the port is taken.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(where)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        raise UserError(
            f"Cannot listen at {host}:{port} ({getattr(error, 'strerror', error)}): "
            "give a free port and an address of this machine."
        ) from None
    return listener


async def accept_from(listener: socket.socket) -> socket.socket:
    """The next connection; waits when the process has no descriptors left."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
            return tune(connection)
        except ConnectionError:
            continue
        except OSError:
            if listener.fileno() < 0:
                raise
            await asyncio.sleep(ACCEPT_PAUSE_S)


class Listener:
    """Port whose connections are each served by a task of their own, within limits.

    A peer that has connected is unidentified until it has proven who it is, and those are few: the
    next one ends the oldest of the address that has the most. So a flood of silent ones from few
    addresses delays nobody else, and one from many only if it replaces all of them within an honest
    peer's round trip.
    """

    def __init__(
        self,
        serve: Callable[[socket.socket], Awaitable[bool]],
        connections_max: int,
        unidentified_max: int,
    ) -> None:
        """`serve` has a connection until it returns; True: somebody else has it now, else it is
        closed. It may raise OSError and FrameError for what the peer does."""
        self._serve = serve
        self.connections_max, self.unidentified_max = connections_max, unidentified_max
        self._serving: set[asyncio.Task[None]] = set()
        self._unidentified: dict[asyncio.Task[None], str] = {}
        """Each with the address that it came from, in the order in which they came."""

    def open(self, host: str, port: int) -> None:
        """Listen there; port 0 takes a free one. Raises UserError when it cannot."""
        self._socket = listen(host, port)
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Stop listening and end every connection."""
        await cancel(self._accepting, *self._serving)
        self._socket.close()

    @property
    def address(self) -> str:
        """host:port that it listens at."""
        return address_of(self._socket)

    @property
    def port(self) -> int:
        """Number of the port that it listens at."""
        return int(self._socket.getsockname()[1])

    def identified(self) -> None:
        """The peer whose connection this task serves has proven who it is."""
        self._unidentified.pop(asyncio.current_task(), None)  # type: ignore[arg-type]

    async def _accept(self) -> None:
        while True:
            connection = await accept_from(self._socket)
            if len(self._serving) >= self.connections_max:
                connection.close()
                continue
            task = asyncio.create_task(self._serve_one(connection))
            self._serving.add(task)
            self._unidentified[task] = _peer_host(connection)
            task.add_done_callback(self._ended)
            if len(self._unidentified) > self.unidentified_max:
                self._end_oldest()

    def _end_oldest(self) -> None:
        ((greediest, _),) = Counter(self._unidentified.values()).most_common(1)
        oldest = next(task for task, host in self._unidentified.items() if host == greediest)
        del self._unidentified[oldest]  # Or one that has not ended yet would be ended twice.
        oldest.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._serving.discard(task)
        self._unidentified.pop(task, None)

    async def _serve_one(self, connection: socket.socket) -> None:
        """Serve one connection from its first byte to its end; no failure reaches the others."""
        handed_on = False
        try:
            handed_on = await self._serve(connection)
        except (FrameError, OSError):
            pass
        except Exception:
            log.exception("a connection ends because its service has failed")
        finally:
            if not handed_on:
                connection.close()


def _peer_host(connection: socket.socket) -> str:
    """The household that it came from; empty when it has gone already."""
    try:
        return household_of(connection.getpeername()[0])
    except OSError:
        return ""


async def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """The next `count` bytes and not one more. Raises OSError when the stream ends before."""
    loop = asyncio.get_running_loop()
    pieces = bytearray()
    while len(pieces) < count:
        piece = await loop.sock_recv(connection, count - len(pieces))
        if not piece:
            raise ConnectionResetError("the peer closed the connection")
        pieces += piece
    return bytes(pieces)


def abandon(connection: socket.socket) -> None:
    """Close it and drop what has not left: the kernel would go on sending."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def raise_file_limit() -> None:
    """Allow as many descriptors as possible: 1,024, the usual soft limit, are 400 links."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
