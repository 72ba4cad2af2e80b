"""One run of Mosquitto, and what it says of itself on its standard error."""

import asyncio
import contextlib
import logging
import pwd
import signal
from collections import deque
from pathlib import Path

from molink.control.broker.tied_process import tied
from molink.errors import ControlError

__all__ = ["MosquittoProcess"]

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 10.0
_RELOAD_TIMEOUT_S = 1.0
"""It overlooks a SIGHUP that comes while it reads its files; then it is sent another."""
_STOP_TIMEOUT_S = 0.3
_STOP_ATTEMPTS = 15
"""It overlooks a SIGTERM that comes while it starts, and may have much to write."""
_LINES_KEPT = 5
"""Of what it said last, for the sentence that says why it did not start."""
_RUNNING = b" running"
_RELOADING = b"Reloading config."
"""Said before it reads the files; it does one thing after the other, so whoever connects after this
line is judged by the new ones."""


class MosquittoProcess:
    """From start to end."""

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
            *tied([program, "-c", str(config)], account),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # A terminal's Ctrl-C is for us: we end it when all have left.
        )
        mosquitto = cls(process)
        try:
            if await mosquitto._heard(mosquitto._running, _START_TIMEOUT_S):
                return mosquitto
        except asyncio.CancelledError:
            await mosquitto.stop()
            raise
        await mosquitto.stop()
        words = "; ".join(mosquitto._last_lines) or "it said nothing"
        raise ControlError(f"Mosquitto did not start: {words}.")

    @property
    def process_id(self) -> int:
        """Of the process."""
        return self._process.pid

    async def ended(self) -> int:
        """Wait for its end; minus the signal, or its exit code."""
        return await self._process.wait()

    async def reload(self) -> bool:
        """Have it read its files; false when it ended or did not answer."""
        self._reloading.clear()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)
        return await self._heard(self._reloading, _RELOAD_TIMEOUT_S)

    async def stop(self) -> None:
        """Ask it to end, and make it."""
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

    async def _heard(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Whether it said so before it ended, in time."""
        heard = asyncio.ensure_future(event.wait())
        ended = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait(
                (heard, ended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            return heard.done()
        finally:
            heard.cancel()
            ended.cancel()

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
