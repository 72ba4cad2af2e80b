"""Blocks: never shared, never lost, in one piece while there is room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks, OutOfBlocks, blocks_for

steps = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 120), st.integers(0, 160)), max_size=60
)


@given(steps)
def test_a_block_has_one_owner_and_none_is_lost(steps):
    kv = KvBlocks(24)
    held: dict[int, int] = {}
    for request_id, tokens, expected in steps:
        if tokens == 0:
            kv.release(request_id)
            held.pop(request_id, None)
            continue
        missing, free = kv.blocks_missing(request_id, tokens), kv.blocks_free
        if missing > free:
            with pytest.raises(OutOfBlocks):
                kv.grow(request_id, tokens, expected)
        else:
            kv.grow(request_id, tokens, expected)
            held[request_id] = max(held.get(request_id, 0), blocks_for(tokens))
        owned = [block for holder in kv.holders() for block in kv.table(holder)]
        assert len(owned) == len(set(owned)) == sum(held.values())
        assert kv.blocks_free == 24 - len(owned)
        assert kv.tokens_used == len(owned) * BLOCK_TOKENS
        free = [block for first, count in kv.free_runs() for block in range(first, first + count)]
        assert free == sorted(set(range(24)) - set(owned))


shares = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 5), st.integers(0, 8)),
        st.tuples(st.just("grow"), st.integers(1, 5), st.integers(1, 120)),
        st.tuples(st.just("keep"), st.integers(1, 5), st.integers(0, 8)),
        st.tuples(st.just("shrink"), st.integers(1, 5), st.integers(0, 120)),
        st.tuples(st.just("release"), st.integers(1, 5), st.none()),
        st.tuples(st.just("drop"), st.integers(0, 60), st.none()),
    ),
    max_size=60,
)


@given(shares)
def test_a_block_is_free_when_its_last_user_has_gone(steps):
    kv = KvBlocks(24)
    tables: dict[int, list[int]] = {}
    cached: dict[int, int] = {}
    for what, one, other in steps:
        table = tables.get(one)
        if what == "begin" and table is None:
            kv.begin(one, list(cached)[:other])
            tables[one] = list(cached.values())[:other]
        elif what == "grow" and kv.blocks_missing(one, other) <= kv.blocks_free:
            kv.grow(one, other, other + 16)
            assert list(kv.table(one))[: len(table or ())] == (table or [])
            tables[one] = list(kv.table(one))
        elif what == "keep" and table is not None:
            new = [block for block in table[other:] if block not in cached.values()]
            if new == table[other:]:
                numbers = range(max(cached, default=0) + 1, max(cached, default=0) + 1 + len(new))
                kv.keep(one, other, numbers)
                cached.update(zip(numbers, new, strict=True))
        elif what == "shrink" and table is not None:
            kv.shrink(one, other)
            tables[one] = table[: blocks_for(other)]
        elif what == "release":
            kv.release(one)
            tables.pop(one, None)
        elif what == "drop" and one in cached:
            kv.drop([one])
            del cached[one]
        used = {block for blocks in (*tables.values(), cached.values()) for block in blocks}
        in_use = {block for table in tables.values() for block in table}
        assert kv.blocks_free == 24 - len(used)
        assert kv.tokens_used == len(in_use) * BLOCK_TOKENS
        assert kv.tokens_cached == len(cached) * BLOCK_TOKENS
    kv.drop_all()
    for one in tables:
        kv.release(one)
    assert kv.blocks_free == 24
    assert kv._free.fit(24) == range(24)


def test_what_the_cache_does_not_hold_changes_nothing():
    kv = KvBlocks(4)
    kv.grow(1, 16)
    kv.keep(1, 0, range(7, 8))
    with pytest.raises(KeyError):
        kv.begin(2, [7, 8])
    assert kv.holders() == {1}
    kv.release(1)
    assert kv.blocks_free == 3


def test_sequences_that_grow_in_turn_stay_in_one_piece():
    kv = KvBlocks(64)
    for tokens in range(1, 97):
        for request_id in (1, 2, 3, 4):
            kv.grow(request_id, tokens, tokens_expected=96)
    tables = [list(kv.table(request_id)) for request_id in (1, 2, 3, 4)]
    assert all(table == list(range(table[0], table[0] + 6)) for table in tables)
    assert len({table[0] for table in tables}) == 4


def test_under_pressure_claims_give_way():
    kv = KvBlocks(4)
    kv.grow(1, 16, tokens_expected=64)
    kv.grow(2, 48)
    assert kv.blocks_free == 0
    assert not set(kv.table(1)) & set(kv.table(2))


def test_a_sequence_goes_on_where_there_is_room():
    kv = KvBlocks(3)
    kv.grow(1, 16)
    kv.grow(2, 16)
    kv.grow(1, 32)
    assert list(kv.table(1)) == [0, 2]
    assert list(kv.table(2)) == [1]


def test_a_table_is_a_copy():
    kv = KvBlocks(2)
    kv.grow(1, 16)
    table = kv.table(1)
    kv.grow(1, 32)
    assert list(table) == [0] and list(kv.table(1)) == [0, 1]


def test_a_stage_without_blocks_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        KvBlocks(0)


def test_blocks_behind_what_is_kept_are_given_back():
    kv = KvBlocks(8)
    kv.grow(1, 70, 80)
    kv.grow(2, 40)
    kv.shrink(1, 32)
    assert (len(kv.table(1)), kv.blocks_free) == (2, 3)
    kv.shrink(1, 48)
    kv.shrink(3, 0)
    assert len(kv.table(1)) == 2
    kv.grow(1, 80, 80)
    assert len(kv.table(1)) == 5 and kv.blocks_free == 0
    kv.release(1)
    kv.release(2)
    assert kv.blocks_free == 8


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90)), max_size=40), st.data())
def test_as_many_blocks_are_held_as_may_be_and_none_twice(moves, data):
    kv, tokens = KvBlocks(12), {}
    for request_id, wanted in moves:
        if wanted % 3 == 0:
            kv.release(request_id)
            tokens.pop(request_id, None)
        elif wanted % 3 == 1:
            held = kv.blocks_total - kv.blocks_free
            kv.resize(data.draw(st.integers(max(1, held), 30)))
        else:
            wanted = max(wanted, tokens.get(request_id, 0))
            try:
                kv.grow(request_id, wanted)
                tokens[request_id] = wanted
            except OutOfBlocks:
                assert kv.blocks_missing(request_id, wanted) > kv.blocks_free
        tables = [block for one in kv.holders() for block in kv.table(one)]
        assert len(set(tables)) == len(tables) == kv.blocks_total - kv.blocks_free


def test_what_is_held_is_not_given_back():
    kv = KvBlocks(8)
    kv.grow(1, 5 * BLOCK_TOKENS)
    with pytest.raises(ValueError, match="5 KV blocks are held"):
        kv.resize(4)
    kv.resize(5)
    with pytest.raises(OutOfBlocks):
        kv.grow(2, 1)
    kv.resize(10)
    kv.grow(2, 5 * BLOCK_TOKENS)
    assert kv.blocks_free == 0


def test_a_lost_place_takes_its_requests_and_cached_blocks_and_is_never_used_again():
    kv = KvBlocks(4)
    kv.resize(10)  # Six more at another place: [4, 10).
    for request_id, blocks in ((1, 3), (2, 3), (3, 2)):
        kv.grow(request_id, blocks * BLOCK_TOKENS, blocks * BLOCK_TOKENS)
    kv.keep(1, 0, range(70, 72))
    kv.keep(2, 0, range(80, 82))
    there = {one for one in (1, 2, 3) if any(block >= 4 for block in kv.table(one))}
    assert 0 < len(there) < 3
    at_home = {one for one in (70, 71, 80, 81) if kv.places([one])[0] < 4}
    kv.lose(range(4, 10))
    assert kv.lost_requests() == there and kv.cached_numbers() == at_home
    for request_id in (1, 2, 3):
        kv.release(request_id)
    kv.drop_all()
    assert (kv.blocks_total, kv.blocks_free, kv.lost_requests()) == (4, 4, frozenset())
    kv.grow(9, 4 * BLOCK_TOKENS)
    assert sorted(kv.table(9)) == [0, 1, 2, 3]
    assert kv.tokens_used == 4 * BLOCK_TOKENS
