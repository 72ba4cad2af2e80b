"""A server of this process that may come to listen at another port, too."""

from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext

from aiohttp import web

from molink.api.server import listen_too


@dataclass(frozen=True, slots=True)
class Listening:
    """A server that was started."""

    runner: web.AppRunner
    tls: SSLContext | None
    """What it presents itself with; None: plain HTTP."""
    data_dir: Path
    """Where its owner's commands reach it, by each of its ports."""

    @property
    def port(self) -> int:
        """Port at which it was started."""
        return int(self.runner.addresses[0][1])

    async def also_at(self, host: str, port: int) -> None:
        """Listen there from now on, unless it does; 0 is no port. Raises UserError."""
        known = {one[1] for one in self.runner.addresses if isinstance(one, tuple)}
        if port and port not in known:
            await listen_too(self.runner, host, port, self.tls, self.data_dir)
