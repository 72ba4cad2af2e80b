"""A `molink serve` of its own process for a benchmark to load."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from molink.errors import UserError

__all__ = ["ServerProcess"]


@dataclass(slots=True)
class ServerProcess:
    """A server on a free port of this machine."""

    process: asyncio.subprocess.Process
    url: str

    @classmethod
    async def start(
        cls, model: str, options: Sequence[str], environment: Mapping[str, str] = {}
    ) -> "ServerProcess":
        """Start it, with more of an environment than ours, and wait until it is ready.

        Raises UserError when it does not get there.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "molink.cli.main", "serve", model, "--port", "0", *options),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
        )
        server = cls(process, "")
        try:
            server.url = await server._ready_url()
        except BaseException:
            await server.stop()
            raise
        return server

    async def _ready_url(self) -> str:
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode()
        if not line.startswith("ready "):
            raise UserError("The server did not start: what it said stands above.")
        return line.split()[1]

    @property
    def pid(self) -> int:
        """The server's process id; its stages are its children."""
        return self.process.pid

    async def stop(self) -> None:
        """End it and its stages."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await self.process.wait()
