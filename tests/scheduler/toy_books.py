"""Whether what toy stages hold of the prefix cache is what the head's directory says."""

from collections.abc import Sequence

from molink_scheduler.kv.block_table import OWED
from molink_scheduler.kv.changes import LowerBlocks
from molink_scheduler.kv.tiers import DEVICE
from tests.scheduler.toy_stage import ToyStage


def assert_books_agree(stages: Sequence[ToyStage], stage: ToyStage) -> None:
    """All stages hold what the head has cached where the head says, but for what a fresh one
    lacks, and what is lost below its device."""
    places = places_at_head(stages[0])
    source = stage.core.source
    ledger = source.kv if stage.index == 0 else source.book.kv
    lacking = set() if stage.index == 0 else source.book.table.owed(places)
    near = {number for number, tier in places.items() if tier == DEVICE} - lacking
    assert ledger.blocks_free + ledger.blocks_cached == ledger.blocks_total
    assert ledger.blocks_cached == len(near)
    for part in stage.layers.parts():
        assert part.cached.keys() == near
        assert part.away.keys() <= places.keys() - near
    if stage.index:
        table = source.book.table
        assert table.count(OWED) == len(lacking)
        assert all(table.place_of(one) == places[one] for one in places.keys() - lacking)


def places_at_head(head: ToyStage) -> dict[int, int]:
    """Tier of each cached block, as the head has told all stages."""
    cache = head.core.source.book.cache
    told = [change for change in cache.take_changes() if isinstance(change, LowerBlocks)]
    assert not told, "the head moves blocks and tells nobody"
    nodes = cache.tree._nodes.values()
    return {number: node.tier for node in nodes for run in node.numbers for number in run}
