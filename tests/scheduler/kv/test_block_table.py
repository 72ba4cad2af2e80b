"""A stage's table of cached blocks against a plain record of who uses what and where it is."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.kv.block_table import OWED, BlockTable
from molink_scheduler.kv.changes import (
    AwayBlocks,
    DropBlocks,
    FetchBlocks,
    Fetched,
    KeepBlocks,
    KeptBlocks,
    LowerBlocks,
    RetainBlocks,
)
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.tiers import DEVICE, FILE, HOST, CacheTiers

BLOCKS, NUMBERS, ROOM = 3, 3, 6
TIERS = CacheTiers(host_blocks=1, file_blocks=1)
KINDS = ("keep", "begin", "release", "drop", "lower", "fetch", "read")


@dataclass
class Record:
    """What must be so, kept without the table's own shortcuts."""

    place: dict[int, int] = field(default_factory=dict)
    users: dict[int, list[int]] = field(default_factory=dict)
    reading: set[int] = field(default_factory=set)

    def in_place(self, place: int) -> int:
        return sum(one == place for one in self.place.values())

    def is_idle(self, number: int) -> bool:
        return not any(number in held for held in self.users.values())

    def may_go(self, change) -> bool:
        (number,) = change.numbers
        place = self.place.get(number)
        if place is None or not self.is_idle(number):
            return False
        match change:
            case DropBlocks():
                return True
            case LowerBlocks(tier):
                room = self.in_place(tier) < TIERS.capacity(tier)
                return number not in self.reading and place < tier and room
        return place != DEVICE and len(self.reading) < 4


class Walk:
    """The table and the record, through the same steps."""

    def __init__(self) -> None:
        self.table, self.record, self.next_id = BlockTable(KvLedger(BLOCKS), TIERS), Record(), 0

    def step(self, kind: str, number: int, tier: int) -> None:
        run = ((number, 1),)
        match kind:
            case "keep":
                self.keep(number)
            case "begin":
                self.begin(number)
            case "release":
                self.release(number)
            case "drop":
                self.go(DropBlocks(run), number, None)
            case "lower":
                self.go(LowerBlocks(tier, run), number, tier)
            case "fetch" if self.table.kv.blocks_free and number not in self.record.reading:
                self.go(FetchBlocks(number, run), number, DEVICE)
            case "read" if number in self.record.reading:
                self.table.answers.arrived(Fetched(number, 1))
                self.table.read(Fetched(number, 1))
                self.record.reading.discard(number)
        self.check()

    def keep(self, number: int) -> None:
        if not self.table.kv.blocks_free:
            return
        self.next_id += 1
        change = KeepBlocks((KeptBlocks(self.next_id, 0, number, 1),))
        assert (self.table.objection(change) is None) is (number not in self.record.place)
        if number not in self.record.place:
            self.table.kv.grow(self.next_id, 16)
            self.table.change(change)
            self.record.place[number] = DEVICE
            self.record.users[self.next_id] = [number]

    def begin(self, number: int) -> None:
        here = self.record.place.get(number) == DEVICE
        assert self.table.has([number]) is here
        if here and number not in self.record.reading:
            self.next_id += 1
            self.table.begin(self.next_id, [range(number, number + 1)])
            self.record.users[self.next_id] = [number]

    def release(self, number: int) -> None:
        for request_id in [one for one, held in self.record.users.items() if number in held]:
            self.table.leave(range(one, one + 1) for one in self.record.users.pop(request_id))
            self.table.kv.release(request_id)

    def go(self, change, number: int, place: int | None) -> None:
        may_go = self.record.may_go(change)
        assert (self.table.objection(change) is None) is may_go
        if not may_go:
            return
        self.table.change(change)
        del self.record.place[number]
        if place is not None:
            self.record.place[number] = place
        if isinstance(change, FetchBlocks):
            self.record.reading.add(number)
        elif number in self.record.reading:
            self.table.answers.arrived(Fetched(number, 1))
            self.table.read(Fetched(number, 1))  # Its answer is passed on all the same.
            self.record.reading.discard(number)

    def check(self) -> None:
        table, record = self.table, self.record
        assert {one: table.place_of(one) for one in record.place} == record.place
        for place in (DEVICE, HOST, FILE):
            assert table.count(place) == record.in_place(place)
        assert table.kv.blocks_cached == record.in_place(DEVICE)
        assert table.kv.blocks_free == BLOCKS - record.in_place(DEVICE)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_table_allows_exactly_what_nobody_is_harmed_by(seed):
    """Sixty steps of each seed: most ways to a block on its way back are long."""
    random, walk = Random(seed), Walk()
    for _ in range(60):
        walk.step(random.choice(KINDS), random.randrange(NUMBERS), random.choice((HOST, FILE)))


def test_a_fresh_stage_is_owed_what_stays_and_has_it_once_it_is_rebuilt():
    table = BlockTable(KvLedger(ROOM))
    table.resume(frozenset(), fresh=True)
    change = RetainBlocks(((3, 2), (7, 1)))
    assert table.objection(change) is None
    table.change(change)
    assert table.count(OWED) == 3 and table.kv.blocks_free == ROOM
    assert not table.has([3, 4]) and table.has([3, 4], rebuilt={3, 4})
    table.kv.grow(1, 32)
    table.begin(1, [range(3, 5)])
    assert table.has([3, 4]) and table.owed([3, 4, 7]) == {7}
    assert table.kv.blocks_cached == 2 and table.kv.blocks_free == ROOM - 2


@pytest.mark.parametrize("fresh", [False, True])
def test_what_stays_is_said_once_and_of_blocks_that_were_offered(fresh):
    table = BlockTable(KvLedger(ROOM))
    table.resume(frozenset({3, 4}), fresh=fresh)
    assert (table.objection(RetainBlocks(((3, 3),))) is None) is fresh
    table.change(RetainBlocks(((3, 2),)))
    assert "said twice" in table.objection(RetainBlocks(((3, 2),)))


def test_what_stays_below_the_device_is_where_it_was():
    table = BlockTable(KvLedger(ROOM), CacheTiers(2, 3))
    here = AwayBlocks(host=((3, 2),), file=((5, 9),))
    table.resume(frozenset({1}), here, fresh=False)

    def says(host, file):
        return table.objection(RetainBlocks(((1, 1),), AwayBlocks(host, file)))

    assert "not there" in says(((2, 1),), ()) and "not there" in says(((3, 1),), ((4, 1),))
    assert "there is room for" in says((), ((5, 4),))
    assert says(((3, 2),), ((6, 2),)) is None
    table.change(RetainBlocks(((1, 1),), AwayBlocks(((3, 2),), ((6, 2),))))
    assert [table.count(place) for place in (DEVICE, HOST, FILE, OWED)] == [1, 2, 2, 0]
    assert table.kv.blocks_free == ROOM - 1


def test_a_fresh_stage_has_what_its_file_has_and_is_owed_the_rest():
    table = BlockTable(KvLedger(ROOM), CacheTiers(0, 3))
    table.resume(frozenset(), AwayBlocks(file=((5, 3),)), fresh=True)
    change = RetainBlocks(((1, 2),), AwayBlocks(file=((5, 2),)))
    assert table.objection(change) is None
    table.change(change)
    assert (table.place_of(1), table.place_of(5), table.place_of(7)) == (OWED, FILE, None)
    assert table.kv.blocks_free == ROOM
