"""Finds the way of one outgoing link, and a better one later.

It opens a door to the relay at once and tries the direct addresses; the first path that works is
told to whoever started it, and each later one too: the stage then moves the link when nothing is in
flight. The door stays open as long as the keeper runs, so a direct path that fails is replaced at
once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from molink.transport.paths.choose import Path, PathChooser, PathPeriods
from molink.transport.paths.direct import DIRECT_WITHIN_S, find_link_port
from molink.transport.relay.caller import RelayCaller, RelayTunnel

__all__ = ["LinkEnd", "PathKeeper"]

FIRST_WITHIN_S = 1.0
"""For the direct addresses at first, when a relay leads there too: what is reachable answers within
a round trip or two, and a link that begins relayed moves later."""

PERIODS = PathPeriods()


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """Where a link leads."""

    to: str
    """A node's id or the coordinator."""
    port_name: str
    """Of the port, at the relay."""
    addresses: Sequence[str]
    """host:port of the port itself, tried in this order."""


class PathKeeper:
    """The path of one link, while `run` runs."""

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
        self._end, self._moved, self._direct_within_s = end, moved, direct_within_s
        self._door = None
        if caller is not None:
            self._door = RelayTunnel(caller, end.to, end.port_name, self._heard)
        self._chooser = PathChooser(self._door is not None, periods)
        self._told = Path("none")
        self._news = asyncio.Event()
        self.trouble = ""
        """Why the relay does not lead there now, for the owner; empty when it does."""

    @property
    def path(self) -> Path:
        """In use: as it was last told to `moved`."""
        return self._told

    def failed(self, path: Path) -> None:
        """The stage says that over this path the link is not open, or no longer."""
        if path == self._told:
            self._chooser.failed(self._now())
            self._news.set()

    def now_at(self, addresses: Sequence[str]) -> None:
        """The far end has other addresses; tried at once unless the link is direct."""
        self._end = replace(self._end, addresses=tuple(addresses))
        self._chooser.look_again(self._now())
        self._news.set()

    async def run(self) -> None:
        """Until it is cancelled. Raises what `moved` raises."""
        if self._door is not None:
            self._door.open()
        try:
            while True:
                if self._is_time():
                    await self._try()
                await self._tell()
                await self._wait()
        finally:
            if self._door is not None:
                await self._door.close()

    def _heard(self, sentence: str) -> None:
        self.trouble = sentence

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _is_time(self) -> bool:
        due_at = self._chooser.next_try_at
        return due_at is not None and self._now() >= due_at

    async def _try(self) -> None:
        """See whether a direct address works."""
        hurry = self._told.kind == "none" and self._door is not None
        within_s = min(FIRST_WITHIN_S, self._direct_within_s) if hurry else self._direct_within_s
        found = await find_link_port(self._end.addresses, within_s=within_s)
        if found is None:
            self._chooser.silent(self._now())
        else:
            address, connection = found
            connection.close()
            self._chooser.answered(address, self._now())

    async def _tell(self) -> None:
        path = self._chooser.path
        if path.kind == "relay" and self._door is not None:
            path = replace(path, address=self._door.address)
        if path != self._told:
            self._told = path
            await self._moved(path)

    async def _wait(self) -> None:
        """Until the next attempt is due, or something has happened."""
        due_at = self._chooser.next_try_at
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due_at):
                await self._news.wait()
        self._news.clear()
