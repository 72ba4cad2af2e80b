"""A stage's end of its pair, as it was told when it loaded."""

import logging
from collections.abc import Callable

from molink.engine_protocol.values import Prepared
from molink.stage.cache.handing import HandingPair
from molink.stage.cache.pair import NoPair, Pair, computed_by
from molink.stage.cache.taking import TakingPair
from molink.stage_protocol.messages import LoadStage
from molink_scheduler.kv.changes import Fetched

log = logging.getLogger(__name__)


def paired(load: LoadStage, layers: Prepared, fetched: Callable[[Fetched], None]) -> Pair:
    """The end of a stage that has loaded; `fetched` is called when blocks are sure. Where it cannot
    listen it has none, and its ring computes all."""
    pairing = load.pairing
    if pairing is None:
        return NoPair()
    computes = computed_by(load, layers)
    if pairing.sends:
        return HandingPair(pairing.path, computes, layers.block_bytes)
    try:
        return TakingPair.listening(pairing.path, computes, layers.block_bytes, fetched)
    except OSError as error:
        log.warning("It takes no KV from another ring: %s: %s.", pairing.path, error)
        return NoPair()
