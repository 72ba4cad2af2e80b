"""A child process that speaks lines of JSON, as its parent sees it."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ChildProcess"]

TERMINATE_AFTER_S = 1.0
"""A child ends when its input closes; one that has not by then is terminated, later killed."""

KILL_AFTER_S = 1.0
"""Patience after SIGTERM. Together below the 5 s that a stop may take."""

LINE_BYTES_MAX = 2**20
"""Longest line that a child may print."""


@dataclass(slots=True)
class ChildProcess:
    """Python module that runs as a process of its own."""

    process: asyncio.subprocess.Process

    @classmethod
    async def start(
        cls,
        module: str,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        command: Sequence[str] = (),
    ) -> "ChildProcess":
        """Run `command... python -m module`, away from the terminal's signals, with pipes to it.

        Raises OSError when there is no such command.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
            limit=LINE_BYTES_MAX,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self.process.pid

    async def read_line(self) -> bytes:
        """The next line that the child prints; empty when it has ended."""
        assert self.process.stdout is not None
        return await self.process.stdout.readline()

    def write_line(self, line: bytes) -> None:
        """Send the child a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line)

    async def stop(self) -> None:
        """Close its input and wait; terminate, then kill, one that does not end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if await self._ended_within(TERMINATE_AFTER_S):
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        if not await self._ended_within(KILL_AFTER_S):
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    async def _ended_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self.process.wait()
        except TimeoutError:
            return False
        return True
