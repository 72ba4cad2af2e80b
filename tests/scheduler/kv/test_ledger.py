"""The head's book says of every amount what the placing of blocks says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.kv.blocks import KvBlocks, OutOfBlocks
from molink_scheduler.kv.ledger import KvLedger

STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200)), max_size=60)


@given(STEPS)
def test_amounts_are_those_of_the_blocks(steps):
    blocks, ledger = KvBlocks(20), KvLedger(20)
    for request_id, tokens in steps:
        for book in (blocks, ledger):
            if tokens == 0:
                book.release(request_id)
            elif book.blocks_missing(request_id, tokens) <= book.blocks_free:
                book.grow(request_id, tokens)
            else:
                with pytest.raises(OutOfBlocks):
                    book.grow(request_id, tokens)
        assert ledger.blocks_free == blocks.blocks_free
        assert ledger.tokens_used == blocks.tokens_used
        assert ledger.holders() == blocks.holders()
    assert ledger.tokens_capacity == blocks.tokens_capacity


def test_whoever_holds_blocks_holds_a_slot():
    ledger = KvLedger(20, state_slots=2)
    ledger.grow(1, 16)
    ledger.grow(2, 16)
    assert not ledger.has_slot
    assert ledger.requests_max == 2
    ledger.grow(1, 40)
    with pytest.raises(OutOfBlocks, match="request 3 needs a state slot"):
        ledger.grow(3, 1)
    assert ledger.blocks_free == 16
    ledger.release(2)
    ledger.grow(3, 1)
    assert ledger.holders() == {1, 3}


def test_a_ring_without_any_slot_is_none():
    with pytest.raises(ValueError, match="at least one state slot"):
        KvLedger(20, state_slots=0)
