"""One run of Mosquitto, followed by what it writes to its standard error.

It ends when we do, whatever ends us. A script runs between us and the program: it gives up root if
asked to, asks the kernel to kill it when its parent dies, and becomes the program. The kernel
forgets that request when a process changes its user, so the user is changed first. SIGKILL, because
Mosquitto overlooks a SIGTERM that comes while it starts. (A `preexec_fn` would do it without a
script, but runs Python in the forked copy of a process with threads, which may deadlock.)
"""

import asyncio
import contextlib
import logging
import os
import pwd
import signal
import sys
from collections import deque
from pathlib import Path

from molink.errors import ControlError
from molink.tasks import cancel

__all__ = ["MosquittoProcess"]

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 10.0
_RELOAD_TIMEOUT_S = 1.0
"""It overlooks a SIGHUP that comes while it reads its files; then it is sent another."""
_STOP_TIMEOUT_S = 0.3
_STOP_ATTEMPTS = 15
"""It overlooks a SIGTERM that comes while it starts, and may have much to write."""
_LINES_KEPT = 5
"""Of its last output, for the sentence that tells why it did not start."""
_RUNNING = b" running"
_RELOADING = b"Reloading config."
"""Written before it reads the files; it does one thing after the other, so a client that connects
after this line is checked by the new ones."""
_SCRIPT = """
import ctypes, os, resource, signal, sys
parent, uid, gid = (int(word) for word in sys.argv[1:4])
if uid >= 0:
    os.setgroups([]); os.setgid(gid); os.setuid(uid)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
files = 65536 if most < 0 else min(most, 65536)
resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(1)
os.execv(sys.argv[4], sys.argv[4:])
"""
"""1 is PR_SET_PDEATHSIG; the parent may have died before it was set. A shell's usual 1,024 open
files are too few for a thousand connections; the kernel allows any process more."""


class MosquittoProcess:
    """Child process that runs Mosquitto."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._running, self._reloading = asyncio.Event(), asyncio.Event()
        self._last_lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, program: str, config: Path, account: pwd.struct_passwd | None
    ) -> "MosquittoProcess":
        """Start it and wait until it listens. Raises ControlError with its last words if it
        ends."""
        process = await asyncio.create_subprocess_exec(
            *_tied([program, "-c", str(config)], account),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # A terminal's Ctrl-C is for us: we end it when all have left.
        )
        mosquitto = cls(process)
        try:
            if await mosquitto._announced(mosquitto._running, _START_TIMEOUT_S):
                return mosquitto
        except asyncio.CancelledError:
            await mosquitto.stop()
            raise
        await mosquitto.stop()
        words = "; ".join(mosquitto._last_lines) or "it said nothing"
        raise ControlError(f"Mosquitto did not start: {words}.")

    @property
    def process_id(self) -> int:
        """Process id of the child."""
        return self._process.pid

    async def ended(self) -> int:
        """Wait for its end; its exit code, or minus the signal that ended it."""
        return await self._process.wait()

    async def reload(self) -> bool:
        """Make it read its files again; False when it ended or did not answer."""
        self._reloading.clear()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)
        return await self._announced(self._reloading, _RELOAD_TIMEOUT_S)

    async def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        for attempt in range(_STOP_ATTEMPTS + 1):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(
                    signal.SIGTERM if attempt < _STOP_ATTEMPTS else signal.SIGKILL
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await self._process.wait()
                break
        await self._process.wait()
        await self._reader

    async def _announced(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Whether `event` was set in time, before the process ended."""
        announced = asyncio.create_task(event.wait())
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait(
                (announced, ended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            return announced.done()
        finally:
            await cancel(announced, ended)

    async def _read(self) -> None:
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:  # longer than the reader holds: a client id can be
                continue
            if not line:
                return
            self._note(line.rstrip())

    def _note(self, line: bytes) -> None:
        text = line.decode(errors="replace").partition(": ")[2]
        self._last_lines.append(text)
        log.debug("mosquitto: %s", text)
        if line.endswith(_RUNNING):
            self._running.set()
        elif line.endswith(_RELOADING):
            self._reloading.set()


def _tied(command: list[str], account: pwd.struct_passwd | None = None) -> list[str]:
    """The command line that runs `command` until this process ends, as `account` if given."""
    uid, gid = (account.pw_uid, account.pw_gid) if account is not None else (-1, -1)
    words = (str(os.getpid()), str(uid), str(gid))
    return [str(Path(sys.executable)), "-I", "-S", "-c", _SCRIPT, *words, *command]
