"""A stage's end of its pair: as it was told when it loaded, or is told while it serves."""

import logging
from collections.abc import Callable

from molink.engine_protocol.values import Prepared
from molink.stage.cache.handing import HandingPair
from molink.stage.cache.pair import NoPair, Pair, StagePair, computed_by
from molink.stage.cache.taking import TakingPair
from molink.stage_protocol.messages import LoadStage
from molink.stage_protocol.pairing import Pairing
from molink_scheduler.kv.changes import Fetched

log = logging.getLogger(__name__)


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
