"""Lent blocks: each is found where it was put, and what is written is never away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.engine.memory.lent_blocks import LAST_BLOCKS_HERE, LentBlocks
from molink_scheduler.kv.blocks import BLOCK_TOKENS, OutOfBlocks, blocks_for

HERE, AWAY = 16, 24

steps = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 5), st.integers(1, 160)),
        st.tuples(st.just("keep"), st.integers(1, 5), st.integers(0, 8)),
        st.tuples(st.just("begin"), st.integers(1, 5), st.integers(1, 8)),
        st.tuples(st.just("lend"), st.integers(0, 12), st.integers(0, 3)),
        st.tuples(st.just("release"), st.integers(1, 5), st.none()),
        st.tuples(st.just("drop"), st.integers(0, 60), st.none()),
        st.tuples(st.just("lose"), st.none(), st.none()),
        st.tuples(st.just("give_back"), st.integers(0, AWAY), st.integers(1, AWAY)),
    ),
    max_size=60,
)


class Memory:
    """What each block of a stage and of its lender holds: the request and place it was written
    for."""

    def __init__(self) -> None:
        self.kv = LentBlocks(HERE)
        self.kv.borrow(AWAY)
        self.away = AWAY
        self.content: dict[int, tuple[int, int]] = {}
        self.tables: dict[int, list[tuple[int, int]]] = {}
        self.cached: dict[int, tuple[int, int]] = {}
        self.written = 0

    def grow(self, request_id: int, tokens: int) -> None:
        table = self.tables.get(request_id, [])
        missing = max(0, blocks_for(tokens) - len(table))
        if missing > min(self.kv.free_here, self.kv.blocks_free):
            with pytest.raises(OutOfBlocks):
                self.kv.grow(request_id, tokens)
            return
        self.kv.grow(request_id, tokens)
        new = self.kv.table(request_id)[len(table) :]
        assert all(block < HERE for block in new)
        for block in new:
            self.written += 1
            self.content[block] = (request_id, self.written)
        self.tables[request_id] = [*table, *(self.content[block] for block in new)]

    def keep(self, request_id: int, first: int) -> None:
        new = self.tables.get(request_id, [])[first:]
        if new and not set(new) & set(self.cached.values()):
            numbers = range(self.written * 100, self.written * 100 + len(new))
            self.kv.keep(request_id, first, numbers)
            self.cached |= dict(zip(numbers, new, strict=True))

    def begin(self, request_id: int, count: int) -> None:
        if request_id not in self.tables and self.cached:
            numbers = list(self.cached)[:count]
            self.kv.begin(request_id, numbers)
            self.tables[request_id] = [self.cached[number] for number in numbers]

    def lend(self, count: int, busy: int) -> None:
        away = set(range(HERE)) & set(list(self.content)[:busy])
        last = {b for one in self.kv.holders() for b in self.kv.table(one)[-LAST_BLOCKS_HERE:]}
        for block, place in self.kv.lend(count, away):
            assert block < HERE and block not in away | last
            self.content[self.kv.first_away + place] = self.content.pop(block)

    def release(self, request_id: int) -> None:
        self.kv.release(request_id)
        self.tables.pop(request_id, None)

    def drop(self, number: int) -> None:
        if number in self.cached:
            self.kv.drop([number])
            del self.cached[number]

    def lose(self) -> None:
        gone = {one for block, one in self.content.items() if block >= HERE}
        self.kv.lose_lender()
        assert self.kv.lost_requests() == {
            one for one, table in self.tables.items() if gone & set(table)
        }
        numbers = {number for number, one in self.cached.items() if one in gone}
        assert self.kv.cached_numbers() == self.cached.keys() - numbers
        assert all(self.kv.is_here(number) for number in self.kv.cached_numbers())
        assert self.kv.blocks_total == HERE
        for request_id in self.kv.lost_requests():
            self.release(request_id)
        for number in numbers:
            del self.cached[number]
        self.content = {a: b for a, b in self.content.items() if a < HERE}
        self.kv.borrow(AWAY)
        self.away = AWAY

    def give_back(self, left: int, most: int) -> None:
        """As after a head's word that the ring counts with so much less, if that fits."""
        left = min(left, self.away)
        if self.kv.blocks_total - self.kv.blocks_free > HERE + left:
            return
        self.kv.resize(HERE + left)
        while self.kv.room > HERE + left:
            going, moves = self.kv.leaving(left, most)
            assert going and {one for one in going if self.kv._users[one]} == moves.keys()
            self.kv.leave(going, moves)
            moved = {moves.get(block, block): one for block, one in self.content.items()}
            self.content = {a: b for a, b in moved.items() if a < going.start}
        self.away = left

    def check(self) -> None:
        for request_id, table in self.tables.items():
            assert [self.content[block] for block in self.kv.table(request_id)] == table
        places = self.kv.places(self.cached)
        assert [self.content[block] for block in places] == list(self.cached.values())
        used = {one for table in self.tables.values() for one in table} | set(self.cached.values())
        assert self.kv.blocks_free == HERE + self.away - len(used)
        lent = sum(1 for block, one in self.content.items() if block >= HERE and one in used)
        assert self.kv.blocks_lent == lent
        assert self.kv.free_here == HERE - (len(used) - lent)
        runs = self.kv.free_runs()
        assert sum(count for _, count in runs) == self.kv.free_here
        assert all(first + count <= HERE for first, count in runs)


@given(steps)
def test_each_block_is_found_where_it_was_put(steps):
    memory = Memory()
    for what, one, other in steps:
        arguments = [each for each in (one, other) if each is not None]
        getattr(memory, what)(*arguments)
        memory.check()


def test_blocks_that_only_the_cache_holds_go_first_then_the_longest_tables_first_ones():
    kv = LentBlocks(16)
    kv.borrow(8)
    kv.grow(1, 4 * BLOCK_TOKENS)
    kv.keep(1, 0, range(100, 104))
    cached = list(kv.table(1))
    kv.release(1)
    kv.grow(2, 3 * BLOCK_TOKENS)
    kv.grow(3, 6 * BLOCK_TOKENS)
    longest = list(kv.table(3))
    assert [block for block, _ in kv.lend(6)] == [*cached, *longest[:2]]
    assert [block >= 16 for block in kv.table(3)] == [True] * 2 + [False] * 4


def test_no_more_go_than_the_lender_has_places_for():
    kv = LentBlocks(16)
    kv.borrow(2)
    kv.grow(1, 10 * BLOCK_TOKENS)
    assert [place for _, place in kv.lend(5)] == [0, 1]
    assert kv.lend(5) == []
    kv.release(1)
    assert (kv.blocks_free, kv.blocks_lent) == (18, 0)


def test_a_lost_lender_names_its_requests_and_takes_cached_blocks_along():
    kv = LentBlocks(16)
    kv.borrow(8)
    kv.grow(1, 8 * BLOCK_TOKENS)
    kv.keep(1, 0, range(100, 104))
    kv.grow(2, 3 * BLOCK_TOKENS)
    assert len(kv.lend(2)) == 2
    assert kv.lost_requests() == frozenset()
    kv.lose_lender()
    assert kv.lost_requests() == {1}
    assert kv.cached_numbers() == {102, 103}
