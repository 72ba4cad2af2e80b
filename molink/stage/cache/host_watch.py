"""Watch that keeps a stage's cached KV within what its PC can spare of its main memory.

It has a thread of its own: a game that starts, or a program that grows, has the memory within a
second, also while the stage's loop is within a long step and its store waits for a disk. Asking the
system four times a second takes some thousandths of a core (`docs/benchmarks/room.md`). The
system's own alarms (pressure stall information) were rejected: a container need not have them, and
under WSL they come when the PC swaps already.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.hardware.host import MainMemory, read_main_memory
from molink.stage.cache.host_share import HostRoom, HostShare, host_room
from molink.stage.cache.lower_store import EmptyStore, LowerStore
from molink.stage_protocol.health import HostCacheHealth

PERIOD_S = 0.25
"""Two looks and what follows them take less than a second on a busy PC, too."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class HostWatch:
    """Watch of one stage's share of host memory; for any thread."""

    share: HostShare = field(default_factory=HostShare)
    store: LowerStore = field(default_factory=EmptyStore)
    read: Callable[[], MainMemory] = read_main_memory
    _lent_bytes: int | None = field(init=False, default=None)
    """What the owner lends now; None: what was taken."""
    _room: HostRoom = field(init=False)
    _looking: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._room = HostRoom(self.share.taken_bytes)

    def begin(self) -> None:
        """Look from now on, until the process ends; where there is nothing to watch, do not."""
        if self.share.why_less:
            log.warning("Of the memory lent for cached KV %s.", self.share.why_less)
        if self.share.taken_bytes:
            threading.Thread(target=self._run, name="host memory", daemon=True).start()

    def lend(self, lent_bytes: int | None) -> None:
        """Hold no more than this from now on; None: as much as was taken."""
        self._lent_bytes = lent_bytes
        self.look()

    def look(self) -> None:
        """Ask how much memory is free, and have the store hold no more than can be spared."""
        with self._looking:
            held_bytes = self.store.host_bytes
            room = host_room(self.share, self._lent_bytes, held_bytes, self.read())
            if bool(room.why_less) != bool(self._room.why_less):
                log.info("Cached KV in host memory: %s.", room.why_less or "all of it is back")
            self._room = room
            self.store.host_room(room.size_bytes)

    @property
    def health(self) -> HostCacheHealth | None:
        """What is taken, what of it may be used now, what is, and why it is not more; None where
        nothing was lent."""
        if self.share == HostShare():
            return None
        why = self._room.why_less or self.share.why_less
        room, held = self._room.size_bytes, self.store.host_bytes
        return HostCacheHealth(self.share.taken_bytes, room, held, why)

    def _run(self) -> None:
        ended = threading.Event()  # It never is: the thread goes with the process.
        while not ended.wait(PERIOD_S):
            self.look()
