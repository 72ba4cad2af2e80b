"""Finds the path of one outgoing link, and a better one later.

It opens a tunnel to the relay at once and tries the direct addresses; the first path that works is
reported to the link's owner, and each later one too: the stage then moves the link when nothing is
in flight. The tunnel stays open as long as the keeper runs, so a direct path that fails is replaced
at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from molink.transport.paths.choose import Path, PathChooser, PathPeriods
from molink.transport.paths.direct import DIRECT_WITHIN_S, find_link_port
from molink.transport.relay.client import RelayCaller, relay_tunnel

FIRST_WITHIN_S = 1.0
"""Seconds for the direct addresses at first, when a relay leads there too: what is reachable
answers within a round trip or two, and a link that begins relayed moves later."""

PERIODS = PathPeriods()


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """Far end of a link."""

    to: str
    """A node's id or the coordinator."""
    port_name: str
    """Name of the port, at the relay."""
    addresses: Sequence[str]
    """host:port of the port itself, tried in this order."""


class PathKeeper:
    """Path of one link, kept while `run` runs."""

    def __init__(
        self,
        end: LinkEnd,
        caller: RelayCaller | None,
        moved: Callable[[Path], Awaitable[None]],
        periods: PathPeriods = PERIODS,
        direct_within_s: float = DIRECT_WITHIN_S,
    ) -> None:
        """`caller`: this node at the relay that leads there too; None: there is none.

        `moved` is awaited with every path that is taken into use, the first one included.
        """
        self._end, self._caller, self._moved = end, caller, moved
        self._direct_within_s = direct_within_s
        self._chooser = PathChooser(caller is not None, periods)
        self._path = Path("none")
        self._changed = asyncio.Event()
        self.trouble = ""
        """Why the relay does not lead there now, for the owner; empty when it does."""

    @property
    def path(self) -> Path:
        """The path in use, as `moved` was last called with."""
        return self._path

    def failed(self, path: Path) -> None:
        """The stage reports that over this path the link is not open, or no longer."""
        if path == self._path:
            self._chooser.failed(self._now())
            self._changed.set()

    async def run(self) -> None:
        """Keep the link on its path until it is cancelled. Raises what `moved` raises."""
        if self._caller is None:
            await self._keep("")
            return
        end = self._end
        async with relay_tunnel(self._caller, end.to, end.port_name, self._note_dial) as tunnel:
            await self._keep(tunnel.address)

    async def _keep(self, tunnel_address: str) -> None:
        while True:
            due_at = self._chooser.next_try_at
            if due_at is not None and self._now() >= due_at:
                await self._try_direct()
            path = self._chooser.path
            if path.kind == "relay":
                path = replace(path, address=tunnel_address)
            if path != self._path:
                self._path = path
                await self._moved(path)
            await self._wait()

    def _note_dial(self, trouble: str) -> None:
        self.trouble = trouble

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _try_direct(self) -> None:
        """Find out whether a direct address works."""
        hurry = self._path.kind == "none" and self._caller is not None
        within_s = min(FIRST_WITHIN_S, self._direct_within_s) if hurry else self._direct_within_s
        found = await find_link_port(self._end.addresses, within_s=within_s)
        if found is None:
            self._chooser.unanswered(self._now())
        else:
            address, connection = found
            connection.close()
            self._chooser.answered(address, self._now())

    async def _wait(self) -> None:
        """Wait until the next attempt is due, or something has happened."""
        due_at = self._chooser.next_try_at
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due_at):
                await self._changed.wait()
        self._changed.clear()
