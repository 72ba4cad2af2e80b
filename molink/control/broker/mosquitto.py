"""Mosquitto as a supervised child: restarted when it dies, reloaded when users change.

Mosquitto reads its users on SIGHUP and drops clients whose user is gone, so a user file and a
signal are all it takes. A reload checks every client that is connected; forty nodes that join at
once should cost one reload, not forty. So a change of the users waits for the next reload, and
reloads are at least `RELOAD_PERIOD_S` apart.

The broker keeps its state in memory only, so that nobody can fill the disk through it, and comes
back on its old port; clients reconnect and publish their retained messages again, so nothing is
lost when it dies.
"""

import asyncio
import logging
import os
import secrets
import shutil
import socket
import time
from pathlib import Path
from random import Random

from molink.control.addresses import BrokerAddress, Credentials, ServerTrust, TlsFiles
from molink.control.backoff import Backoff
from molink.control.broker.mosquitto_files import MosquittoFiles, password_hash, service_account
from molink.control.broker.mosquitto_process import MosquittoProcess
from molink.control.broker.permissions import COORDINATOR_NAME, check_username
from molink.errors import ControlError, ErrorGuard, UserError
from molink.tasks import cancel, spawn, task_group

__all__ = ["RELOAD_PERIOD_S", "MosquittoBroker", "find_mosquitto"]

log = logging.getLogger(__name__)

RELOAD_PERIOD_S = 0.1
_CHANGE_TIMEOUT_S = 20.0
"""A reload takes milliseconds; this allows for a broker that has died and is being started
again."""
_RESTART_FIRST_S, _RESTART_LONGEST_S = 0.1, 5.0
_STABLE_S = 30.0
"""A run that lasted so long was a good start: the next restart waits the shortest time."""
_PORT_ATTEMPTS = 5
"""Another process may take a free port between our finding it and Mosquitto's using it."""


def find_mosquitto() -> str | None:
    """Its path; Debian puts it where a user's PATH does not lead."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class MosquittoBroker:
    """A `Broker` that runs Mosquitto in a process of its own."""

    def __init__(
        self, program: str, host: str, port: int, data_dir: Path, tls: TlsFiles | None = None
    ) -> None:
        directory = (data_dir / "broker").resolve()
        self._program, self._tls = program, tls
        self._pinned = None if tls is None else tls.pinned
        self._host, self._port = host, port
        pem = None if tls is None else (tls.chain(), tls.secret())
        self._files = MosquittoFiles(directory, service_account(directory), pem)
        self._coordinator = Credentials(COORDINATOR_NAME, secrets.token_urlsafe(32))
        self._files.hashes[COORDINATOR_NAME] = password_hash(self._coordinator.password)
        self._process: MosquittoProcess | None = None
        self._running: asyncio.Task[None] | None = None
        self._started = False
        self._version = self._loaded = 0
        """Of the users: as they should be, and as the broker has them."""
        self._changed = asyncio.Event()
        self._reloaded = asyncio.Condition()
        self._guard = ErrorGuard("Giving Mosquitto its files")

    @property
    def address(self) -> BrokerAddress:
        """Where it listens; the port is known once it has started."""
        return BrokerAddress(self._host, self._port, self._pinned)

    @property
    def trust(self) -> ServerTrust | None:
        """What agents accept its certificate by."""
        return None if self._tls is None else self._tls.trust

    @property
    def coordinator(self) -> Credentials:
        """Drawn anew for every start of the coordinator."""
        return self._coordinator

    @property
    def process_id(self) -> int | None:
        """Process id of the child that runs now."""
        return self._process.process_id if self._process else None

    async def start(self) -> None:
        """Start it and wait until it listens. Raises UserError when it does not."""
        self._started, chosen = True, self._port
        for attempt in range(_PORT_ATTEMPTS):
            self._port = chosen or _free_port(self._host)
            try:
                self._process = await self._launch()
                break
            except ControlError as error:
                if chosen or attempt == _PORT_ATTEMPTS - 1:
                    self._started = False
                    raise UserError(str(error)) from None
        self._running = spawn(self._run())

    async def stop(self) -> None:
        """End it; what was retained is gone."""
        await cancel(self._running)
        self._started, self._running = False, None
        if self._process is not None:
            await self._process.stop()
            self._process = None

    async def allow(self, username: str, password: str) -> Credentials:
        """Let a node connect, see `Broker.allow`; waits for a reload."""
        check_username(username)
        self._files.hashes[username] = password_hash(password)
        await self._users_changed()
        return Credentials(username, password)

    async def forbid(self, username: str) -> None:
        """Refuse a node, see `Broker.forbid`: a reload drops a connection whose user is gone."""
        check_username(username)
        if self._files.hashes.pop(username, None) is not None:
            await self._users_changed()

    async def _launch(self) -> MosquittoProcess:
        self._files.write_config(self._host, self._port)
        version = self._version
        self._files.write_users()
        process = await MosquittoProcess.start(
            self._program, self._files.config, self._files.account
        )
        await self._have_loaded(version)
        return process

    async def _run(self) -> None:
        async with task_group() as group:
            group.create_task(self._supervise())
            group.create_task(self._reload())

    async def _supervise(self) -> None:
        """Restart it whenever it has died."""
        backoff = Backoff(_RESTART_FIRST_S, _RESTART_LONGEST_S, Random(os.getpid()))
        while True:
            started_s = time.monotonic()
            assert self._process is not None
            code = await self._process.ended()
            if time.monotonic() - started_s > _STABLE_S:
                backoff.reset()
            log.warning("mosquitto has ended (%s) and is started again", code)
            self._process = await self._relaunch(backoff)

    async def _relaunch(self, backoff: Backoff) -> MosquittoProcess:
        while True:
            await asyncio.sleep(backoff.next_s())
            with self._guard:
                return await self._launch()

    async def _users_changed(self) -> None:
        """Wait until the broker has loaded the users as they are now, or later ones."""
        self._version += 1
        version = self._version
        if not self._started:
            return
        self._changed.set()
        try:
            async with asyncio.timeout(_CHANGE_TIMEOUT_S), self._reloaded:
                await self._reloaded.wait_for(lambda: self._loaded >= version)
        except TimeoutError:
            raise ControlError("The broker does not take new users: see the log.") from None

    async def _reload(self) -> None:
        """Reload changed users, at most once each `RELOAD_PERIOD_S`; ever less often while the
        disk is full."""
        backoff = Backoff(2 * RELOAD_PERIOD_S, _RESTART_LONGEST_S, Random(os.getpid()))
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._loaded < self._version:
                before = self._loaded
                with self._guard:
                    await self._reload_users()
                if self._loaded > before:
                    backoff.reset()
                await asyncio.sleep(RELOAD_PERIOD_S if self._loaded > before else backoff.next_s())

    async def _reload_users(self) -> None:
        version = self._version
        self._files.write_users()
        if self._process is not None and await self._process.reload():
            await self._have_loaded(version)

    async def _have_loaded(self, version: int) -> None:
        async with self._reloaded:
            self._loaded = max(self._loaded, version)
            self._reloaded.notify_all()


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise UserError(f"The broker cannot listen on {host}: {error.strerror}.") from None
        return int(probe.getsockname()[1])
