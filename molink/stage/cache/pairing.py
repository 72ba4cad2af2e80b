"""A stage's end of its pair: as it was told when it loaded, or is told while it serves."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.engine_protocol.engine import BlocksIn, CachedBlocks
from molink.engine_protocol.values import Prepared
from molink.stage.cache.handing import HandingPair
from molink.stage.cache.pair import NoPair, Pair, computed_by
from molink.stage.cache.taking import TakingPair
from molink.stage_protocol.health import PairHealth
from molink.stage_protocol.messages import LoadStage
from molink.stage_protocol.pairing import Pairing
from molink_scheduler.kv.changes import Fetched, KeepBlocks, TakeBlocks

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StagePair:
    """End of a pair that may become that of another one, or of none, between two blocks; for any
    thread. What is on its way when that happens is lost, and computed."""

    end_of: Callable[[Pairing | None], Pair] = lambda pairing: NoPair()
    """Makes an end; without it none is made, whatever it is told."""
    _now: Pair = field(default_factory=NoPair)
    _begun: tuple[int, int] | None = None
    """Epoch of the ring and bytes of a block, once they are known."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def become(self, pairing: Pairing | None) -> None:
        """Be this end from now on; None: of no pair."""
        with self._lock:
            self._now.close()
            self._now = self.end_of(pairing)
            if self._begun is not None:
                self._now.begin(*self._begun)

    def begin(self, epoch: int, block_bytes: int) -> None:
        """Be of the ring's epoch, with blocks of so many bytes."""
        with self._lock:
            self._begun = epoch, block_bytes
            self._now.begin(epoch, block_bytes)

    def kept(self, change: KeepBlocks, device: CachedBlocks) -> None:
        """Blocks are computed, and cached from now on."""
        with self._lock:
            self._now.kept(change, device)

    def take(self, change: TakeBlocks, arriving: BlocksIn) -> bool:
        """Fill blocks with what was handed over; False: nothing ever is."""
        with self._lock:
            return self._now.take(change, arriving)

    @property
    def health(self) -> PairHealth | None:
        """What the present end has handed over or taken; None: it is of no pair."""
        return self._now.health


def paired(load: LoadStage, layers: Prepared, fetched: Callable[[Fetched], None]) -> StagePair:
    """The end of a stage that has loaded; `fetched` is called when blocks are sure."""
    computes = computed_by(load, layers)

    def end_of(pairing: Pairing | None) -> Pair:
        """Where it cannot listen it has no end, and its ring computes all."""
        if pairing is None:
            return NoPair()
        if pairing.sends:
            return HandingPair(pairing, computes, layers.block_bytes)
        of = computes, layers.block_bytes, fetched
        try:
            return TakingPair.listening(pairing, load.address, *of)
        except OSError as error:
            log.warning("It takes no KV from another ring: %s: %s.", pairing.path, error)
            return NoPair()

    return StagePair(end_of, end_of(load.pairing))
