"""Plain TCP sockets for what carries bytes without reading them: the relay, its doors, probes.

asyncio's streams read ahead into a buffer of their own and write into another one; here a few exact
bytes are read from a connection that is then handed on, socket and all, so nothing may be read too
many. Every socket here is non-blocking, sends at once (no Nagle) and notices a peer that is gone.
"""

import asyncio
import resource
import socket
import struct
from contextlib import suppress

from molink.errors import UserError

__all__ = [
    "CONNECT_WITHIN_S",
    "abandon",
    "accept_from",
    "address_of",
    "connect",
    "listen",
    "raise_file_limit",
    "receive_exactly",
    "split_address",
    "tune",
]

CONNECT_WITHIN_S = 5.0
"""Two lost SYNs (1 + 2 s) and a round trip; whoever is farther is of no use to a ring."""

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
"""When the process has no descriptors left: some connection ends, or the caller gives up."""

PORT_MAX = 65535


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`. Raises OSError when it is neither."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise OSError(f"{address!r} is no host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_of(bound: socket.socket) -> str:
    """`host:port` of this end."""
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
        door = socket.socket(family, kind, protocol)
        try:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.setblocking(False)
            door.bind(where)
            door.listen(BACKLOG)
        except BaseException:
            door.close()
            raise
    except (OSError, OverflowError) as error:
        raise UserError(
            f"Cannot listen at {host}:{port} ({getattr(error, 'strerror', error)}): "
            "give a free port and an address of this machine."
        ) from None
    return door


async def accept_from(door: socket.socket) -> socket.socket:
    """The next connection; waits when the process has no descriptors left."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(door)
            return tune(connection)
        except ConnectionError:
            continue
        except OSError:
            if door.fileno() < 0:
                raise
            await asyncio.sleep(ACCEPT_PAUSE_S)


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
    """As many descriptors as this process may have: 1,024, the usual soft limit, are 400 links."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
