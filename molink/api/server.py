"""The API's HTTP server: ports, and handlers that end when their client goes away.

aiohttp lets a handler run on after its client has gone; here that would keep a ring busy with an
answer that no client reads, so cancellation is switched on. How many clients there may be, and how
patient the server is with them, is in `connections`.
"""

import errno
import logging
import random
import socket
from collections import Counter
from itertools import islice
from pathlib import Path
from ssl import SSLContext

from aiohttp import web

from molink.api.connections import IDLE_S, ConnectionGuard, ConnectionLimits, GuardedSite
from molink.config.data_dir import api_socket
from molink.control.private_file import private_socket
from molink.errors import UserError
from molink.transport.sockets import raise_file_limit

SHUTDOWN_S = 1.0
"""How long open answers may go on once the server stops. aiohttp waits twice this; the whole
command has 5 s."""

BACKLOG = 1024
"""Connections that may wait to be accepted: a load test opens hundreds at once."""

LISTENING_PORTS, PORTS_TRIED = range(20000, 32768), 100
"""Systems take the ports above for connections that go out, as they come: a port of these stays
free until it is listened at."""


class FewRecords(logging.Filter):
    """Filter of what a library logs of strangers' input: of each kind the 1st, 2nd, 4th, 8th ...

    A request of 70 bytes that is no HTTP makes aiohttp write a traceback of 800. A kind is a
    message before its arguments and the type of what was raised: these are in code, so few.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; it then tells how many of its kind there have been."""
        raised = record.exc_info[0] if record.exc_info else None
        kind = str(record.msg), raised.__name__ if raised else ""
        self.counts[kind] += 1
        record.msg = f"{record.getMessage()} ({self.counts[kind]} so far)"
        record.args = ()
        return self.counts[kind].bit_count() == 1


FEW_RECORDS = FewRecords()
"""Filter of the process's log records; there is one, as its loggers are the process's too."""


log = logging.getLogger(__name__)


class OwnersSite(web.SockSite):
    """SockSite at a socket in the data directory, whose file it removes at the end.

    Only the account that runs the server can open it, so who does is its owner (`cli.own_server`).
    """

    def __init__(self, runner: web.AppRunner, path: Path) -> None:
        super().__init__(runner, private_socket(path))
        self._path = path

    async def stop(self) -> None:
        """Stop listening, and remove the socket's file."""
        await super().stop()
        self._path.unlink(missing_ok=True)


def check_port_free(host: str, port: int, option: str = "--port") -> None:
    """Raise UserError when `start_api` could not listen there: known before weights are loaded.
    `option` is the option that chooses the port."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address[0], port, *address[2:]))
    except (OSError, OverflowError) as error:
        raise UserError(_why_not(error, host, port, option)) from error


def free_ports(host: str, count: int) -> list[int]:
    """Different ports that are free now, for who must tell them before they can be listened at.
    Raises UserError when there are too few."""
    candidates = random.SystemRandom().sample(LISTENING_PORTS, PORTS_TRIED)
    found = list(islice((port for port in candidates if is_free(host, port)), count))
    if len(found) < count:
        raise UserError(
            f"no port is free on {host}: check --host, or name free ones with --port and "
            "--agents-port"
        )
    return found


def is_free(host: str, port: int) -> bool:
    """Whether `start_api` could listen there now."""
    try:
        check_port_free(host, port)
    except UserError:
        return False
    return True


async def start_api(
    app: web.Application,
    host: str,
    port: int,
    tls: SSLContext | None = None,
    option: str = "--port",
    *,
    limits: ConnectionLimits | None = None,
    idle_s: float = IDLE_S,
    data_dir: Path | None = None,
) -> web.AppRunner:
    """Serve `app`; `await runner.cleanup()` ends it. `runner.addresses` has the port when `port` is
    0; `option` is the option that chooses it. With `tls` it is HTTPS. `limits` None: as much as
    this process has descriptors for. Its owner's commands reach it in `data_dir`, too."""
    for library in ("aiohttp.server", "asyncio"):
        logging.getLogger(library).addFilter(FEW_RECORDS)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
        keepalive_timeout=idle_s,
    )
    await runner.setup()
    raise_file_limit()
    guard = ConnectionGuard(limits or ConnectionLimits.of_process())
    site = GuardedSite(runner, host, port, guard=guard, backlog=BACKLOG, ssl_context=tls)
    try:
        await site.start()
    except (OSError, OverflowError) as error:
        await runner.cleanup()
        raise UserError(_why_not(error, host, port, option)) from error
    if data_dir is not None:
        await _listen_to_owner(runner, data_dir, runner.addresses[0][1])
    return runner


async def listen_too(
    runner: web.AppRunner, host: str, port: int, tls: SSLContext | None, data_dir: Path
) -> None:
    """Serve at another port what `start_api` has begun to serve, for as long; its owner's commands
    reach it in `data_dir` by that port, too. Raises UserError."""
    guard = ConnectionGuard(ConnectionLimits.of_process())
    site = GuardedSite(runner, host, port, guard=guard, backlog=BACKLOG, ssl_context=tls)
    try:
        await site.start()
    except (OSError, OverflowError) as error:
        raise UserError(_why_not(error, host, port)) from error
    await _listen_to_owner(runner, data_dir, port)


async def _listen_to_owner(runner: web.AppRunner, data_dir: Path, port: int) -> None:
    """Serve the same at the data directory's socket of this port, where one can be made."""
    path = api_socket(data_dir, port)
    try:
        await OwnersSite(runner, path).start()
    except OSError as error:
        log.warning("Commands on this machine need --key: %s cannot be made (%s).", path, error)


def _why_not(error: Exception, host: str, port: int, option: str = "--port") -> str:
    match error:
        case OSError(errno=errno.EADDRINUSE):
            return (
                f"port {port} on {host} is in use: stop what listens there or choose another "
                f"{option}"
            )
        case OSError(errno=errno.EACCES):
            return f"port {port} needs more rights than yours: choose a {option} above 1023"
        case _:
            return f"cannot listen on {host}:{port} ({error}): check --host and {option}"
