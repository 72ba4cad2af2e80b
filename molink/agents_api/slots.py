"""Slots of simultaneous downloads, and the rate that all of them share.

A PC has one download at a time, whatever its devices, and that is the one it asked for last: where
its line has a new address the older one's end is never heard, and it must not wait for that. One
that takes bytes too slowly while others wait gives its slot away and goes on beside: it uses little
of the line, so nobody loses by that, and a few slow readers keep nobody out. To end it instead was
rejected: where the coordinator's own line is slow, all are slow, and none would ever come to the
end of a block. The cap spaces the chunks of all downloads together: each reserves its time on the
line, and sleeps until it has come.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

DOWNLOADS_MAX = 4
"""Most downloads at a time: enough to fill an upload though some nodes are slow, few enough that
the first come are done soon: nodes that have their layers can serve while others still load."""

WAITING_MAX = 64
"""Most PCs in line; a ring has fewer nodes. More are sent away at once."""

SLOW_BYTES_PER_S, SLOW_AFTER_S = 64 * 2**10, 10.0
"""Rate that a download must keep to hold its slot while others wait, and the seconds over which it
is measured: half a megabit per second, of which home lines have a multiple."""

LOOK_EVERY_S = 1.0
"""Seconds between two looks at the downloads while others wait."""

SLOW_MAX = 64
"""Downloads beside the slots, each a file and some buffers: more PCs than lag behind at once."""

WAIT_S = 30.0
"""Seconds in line before a node is sent away: shorter than the time-outs of proxies on the way."""


class NoSlotError(Exception):
    """Raised when no slot came free in time, or too many wait already."""


class TakenOverError(Exception):
    """Raised when the PC has asked anew: this download of it is to end at once."""


@dataclass(slots=True, eq=False)
class Download:
    """A download that holds a slot, or has given it away."""

    pc: str
    since_s: float
    """When its rate was looked at last, or when it began."""
    sent_bytes: int = 0
    """Bytes sent since its rate was looked at last."""


class DownloadSlots:
    """Limit on simultaneous downloads, with a line to wait in; one to a PC."""

    def __init__(
        self,
        count: int = DOWNLOADS_MAX,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free = asyncio.Semaphore(count)
        self._wait_s, self._clock = wait_s, clock
        self._pcs: dict[str, asyncio.Timeout] = {}
        """PCs that download or wait, with the timeout that ends their download or wait."""
        self._holding: set[Download] = set()
        self._slow: set[Download] = set()
        self._waiting = 0

    @property
    def busy(self) -> int:
        """How many slots are taken."""
        return len(self._holding)

    def has_others(self, pc: str) -> bool:
        """Whether any other PC downloads or waits."""
        return bool(self._pcs.keys() - {pc})

    @asynccontextmanager
    async def one(self, pc: str) -> AsyncIterator[Download]:
        """Hold a slot for the block of `async with`; the PC's older download ends.

        Raises NoSlotError, and TakenOverError out of the block when the PC asks anew meanwhile.
        """
        try:
            async with asyncio.timeout(None) as ending, self._only(pc, ending):
                await self._acquire()
                download = Download(pc, self._clock())
                self._holding.add(download)
                try:
                    yield download
                finally:
                    self._end(download)
        except TimeoutError:
            if ending.expired():
                raise TakenOverError from None
            raise

    @asynccontextmanager
    async def _only(self, pc: str, ending: asyncio.Timeout) -> AsyncIterator[None]:
        """Be the PC's only download, until a newer one is."""
        if pc in self._pcs:
            self._pcs[pc].reschedule(asyncio.get_running_loop().time())
        self._pcs[pc] = ending
        try:
            yield
        finally:
            if self._pcs.get(pc) is ending:
                del self._pcs[pc]

    def give_away_slow(self) -> None:
        """Free the slots of downloads that take too little; for when others wait."""
        now = self._clock()
        for download in list(self._holding):
            elapsed_s = now - download.since_s
            if elapsed_s < SLOW_AFTER_S:
                continue
            if download.sent_bytes < SLOW_BYTES_PER_S * elapsed_s and len(self._slow) < SLOW_MAX:
                self._holding.discard(download)
                self._slow.add(download)
                self._free.release()
            download.since_s, download.sent_bytes = now, 0

    async def _acquire(self) -> None:
        if self._waiting >= WAITING_MAX:
            raise NoSlotError
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._turn()
        except TimeoutError:
            raise NoSlotError from None
        finally:
            self._waiting -= 1

    async def _turn(self) -> None:
        """Wait for a slot, and give slots of slow downloads away meanwhile."""
        if not self._free.locked():
            await self._free.acquire()
            return
        acquiring = asyncio.ensure_future(self._free.acquire())
        try:
            while not acquiring.done():
                self.give_away_slow()
                await asyncio.wait([acquiring], timeout=LOOK_EVERY_S)
        except BaseException:
            if acquiring.done() and not acquiring.cancelled():
                self._free.release()
            acquiring.cancel()
            raise

    def _end(self, download: Download) -> None:
        self._slow.discard(download)
        if download in self._holding:
            self._holding.discard(download)
            self._free.release()


@dataclass(slots=True)
class RateCap:
    """Rate that all downloads share: spaces what they send."""

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
