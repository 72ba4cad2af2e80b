"""Steps make way for what leaves only where they write."""

import numpy as np
import pytest

from molink.engine.memory import moving_blocks
from molink.engine.memory.moving_blocks import MovingBlocks
from molink_scheduler.batch import PREFILL, Batch, Span
from molink_scheduler.kv.blocks import KvBlocks
from tests.engine.memory.test_leaving_blocks import leaving_of, pool_of


def test_who_writes_elsewhere_waits_for_nothing():
    """A request's rows are written in some of its blocks only."""
    pool, moving, kv = pool_of(8, 1), MovingBlocks(), KvBlocks(8)
    for request_id, tokens in ((1, 64), (2, 64)):
        kv.grow(request_id, tokens)
    first, second = (leaving_of([pool], [kv.table(one)]) for one in (1, 2))
    for leaving in (first, second):
        moving.leave(leaving, 0)
    moving.make_way(kv, Batch(0, PREFILL, -1, (Span(1, 20, 33, samples=False),)))
    block = first.packed.block_bytes
    assert (first.waiting_bytes, second.waiting_bytes) == (2 * block, 0)
    for leaving in (first, second):
        leaving.give_up()
    assert not moving.any_leaves


@pytest.mark.parametrize("room", [0, 1, 3])
def test_what_waits_is_counted_over_all_that_leave(monkeypatch, room):
    pool, moving, kv = pool_of(8, 1), MovingBlocks(), KvBlocks(8)
    kv.grow(1, 128)
    some = [leaving_of([pool], [list(kv.table(1))[at : at + 4]]) for at in (0, 4)]
    block = some[0].packed.block_bytes
    monkeypatch.setattr(moving_blocks, "WAITING_BYTES_MAX", room * block)
    for leaving in some:
        moving.leave(leaving, 0)
    for start in (0, 64):
        span = Span(1, start, start + 32, samples=False)
        moving.make_way(kv, Batch(0, PREFILL, -1, (span,)))
    assert sum(leaving.waiting_bytes for leaving in some) == room * block
    out_BW = np.empty((4, block), np.uint8)
    assert sum(len(leaving.copy(out_BW)) for leaving in some) == 4 - room
