"""Requests that have their first blocks in fewer, as the head counts them and as stages place
them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks, OutOfBlocks, folded_numbers
from molink_scheduler.kv.changes import FoldBlocks
from molink_scheduler.kv.ledger import KvLedger

TOTAL, STEP = 24, 48

moves = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 4), st.integers(1, 200)),
        st.tuples(st.just("keep"), st.integers(1, 4), st.integers(1, 6)),
        st.tuples(st.just("fold"), st.integers(1, 4), st.integers(2, 8)),
        st.tuples(st.just("release"), st.integers(1, 4), st.just(0)),
    ),
    max_size=40,
)


@given(moves, st.integers(2, 5))
def test_amounts_are_those_of_the_blocks_also_where_some_are_folded(moves, folds):
    blocks, ledger = KvBlocks(TOTAL, STEP), KvLedger(TOTAL, folds=folds)
    cached, folded, numbers = dict[int, int](), set[int](), 0
    for kind, request_id, amount in moves:
        held = ledger.blocks_of(request_id) + ledger.spared_blocks(request_id)
        if kind == "release":
            blocks.release(request_id)
            ledger.release(request_id)
            cached.pop(request_id, None)
            folded.discard(request_id)
        elif kind == "grow":
            missing = ledger.blocks_missing(request_id, amount)
            assert missing == blocks.blocks_missing(request_id, amount)
            if missing <= ledger.blocks_free:
                blocks.grow(request_id, amount)
                ledger.grow(request_id, amount)
        elif kind == "keep" and request_id not in folded | cached.keys() and amount <= held:
            blocks.keep(request_id, 0, range(numbers, numbers + amount))
            ledger.keep(request_id, amount)
            cached[request_id], numbers = amount, numbers + amount
        elif kind == "fold" and request_id not in folded and amount < held:
            into = ledger.folded_blocks(amount)
            if into < amount and amount >= cached.get(request_id, 0):
                needed = ledger.blocks_to_fold(request_id, amount, into)
                if needed > ledger.blocks_free:
                    for book in (blocks, ledger):
                        with pytest.raises(OutOfBlocks):
                            book.fold(request_id, amount, into)
                    continue
                before, hosts = blocks.fold(request_id, amount, into)
                ledger.fold(request_id, amount, into)
                assert (len(before), len(hosts)) == (amount, into)
                folded.add(request_id)
        assert ledger.blocks_free == blocks.blocks_free
        owned = [block for holder in blocks.holders() for block in blocks.table(holder)]
        for holder in blocks.holders():
            of_whole = blocks.whole_table(holder)
            assert len(of_whole) == len(set(of_whole))
            assert len(of_whole) == ledger.blocks_of(holder) + ledger.spared_blocks(holder)
            assert {number % STEP for number in of_whole} == set(blocks.table(holder))
        assert len(owned) == len(set(owned))


def test_folded_blocks_are_in_the_request_s_own_as_far_as_it_has_some():
    blocks = KvBlocks(TOTAL, STEP)
    blocks.grow(1, 8 * BLOCK_TOKENS)
    blocks.keep(1, 0, range(2))
    before, hosts = blocks.fold(1, 6, 3)
    assert (list(before), list(hosts)) == ([0, 1, 2, 3, 4, 5], [2, 3, 4])
    assert list(blocks.whole_table(1)) == [2, 3, 4, 2 + STEP, 3 + STEP, 4 + STEP, 6, 7]
    assert list(blocks.written(1, 7 * BLOCK_TOKENS, 8 * BLOCK_TOKENS)) == [7]
    assert blocks.cached_numbers() == {0, 1} and blocks.blocks_free == TOTAL - 5 - 2
    blocks.grow(1, 9 * BLOCK_TOKENS)
    assert len(blocks.table(1)) == 6


def test_a_number_says_in_which_block_and_how_far_behind():
    assert list(folded_numbers([5, 9], 5, 100)) == [5, 9, 105, 109, 205]


@pytest.mark.parametrize(("blocks", "into"), [(2, 2), (2, 0), (1, 1), (0, 0), (2, 3), (-1, -2)])
def test_what_folds_nothing_is_no_message(blocks, into):
    with pytest.raises(ValueError, match="folded"):
        FoldBlocks(1, blocks, into)
