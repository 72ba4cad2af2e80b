"""How many downloads at once, and how fast together, so that serving is not starved.

Weights and tokens leave the coordinator's PC by the same upload. A download takes a *slot* for one
request; who finds none waits in line for a while and is then sent away with a time to come back.
Nodes ask for a few blocks at a time, so slots change hands and a slow node holds nobody up for
long. The cap spaces the chunks of all slots together: each reserves its time on the line, and
sleeps until it has come.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

__all__ = ["DOWNLOADS_MAX", "DownloadSlots", "NoSlotError", "RateCap"]

DOWNLOADS_MAX = 4
"""Enough to fill an upload though some nodes are slow, few enough that the first come are done
soon: nodes that have their layers can serve while others still load."""

WAITING_MAX = 64
"""In line; a ring has fewer nodes. More are sent away at once."""

WAIT_S = 30.0
"""In line, before a node is told to come back: below what proxies on the way put up with."""


class NoSlotError(Exception):
    """Raised when no slot came free in time, or too many wait already."""


class DownloadSlots:
    """Who may download now."""

    def __init__(self, count: int = DOWNLOADS_MAX, wait_s: float = WAIT_S) -> None:
        self._free = asyncio.Semaphore(count)
        self._wait_s = wait_s
        self._waiting = 0
        self.busy = 0
        """Slots taken."""

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold a slot. Raises NoSlotError."""
        await self._acquire()
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self._free.release()

    async def _acquire(self) -> None:
        if self._waiting >= WAITING_MAX:
            raise NoSlotError
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise NoSlotError from None
        finally:
            self._waiting -= 1


@dataclass(slots=True)
class RateCap:
    """One line that all downloads share."""

    bytes_per_s: float | None
    """None: no cap."""
    clock: Callable[[], float] = time.monotonic
    _free_at_s: float = field(default=0.0, init=False)

    def reserve(self, size: int) -> float:
        """Seconds to wait before `size` bytes may go."""
        if self.bytes_per_s is None:
            return 0.0
        now = self.clock()
        begin = max(now, self._free_at_s)
        self._free_at_s = begin + size / self.bytes_per_s
        return begin - now

    async def take(self, size: int) -> None:
        """Return when `size` bytes may go."""
        if (wait_s := self.reserve(size)) > 0:
            await asyncio.sleep(wait_s)
