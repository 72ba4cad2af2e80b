"""KV blocks of a stage of which some lie at a lender: which, and when.

A block's number says where it is: those of the stage's own memory come first, the lender's places
are a further range behind them. Rows are written at home only, so a new block is one of its own;
when these run short, full ones go away, and their numbers change in every table that has them,
between two steps. The head never hears of it: it counts one capacity.

What goes first is what costs least there: blocks that only the cache holds, which no step reads;
then the beginnings of the longest tables, so that few requests have keys in two places. The last
blocks of a table stay: they are written, or were just now, and drafts may write there again.

Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import islice

from molink_scheduler.kv.blocks import KvBlocks, OutOfBlocks
from molink_scheduler.kv.free_runs import FreeRuns
from molink_scheduler.number_runs import number_runs

LAST_BLOCKS_HERE = 2
"""Last blocks of each table that are never lent: the one that is filled, and the one before, into
which rejected drafts may reach."""

NONE = range(0), dict[int, int]()


@dataclass(slots=True)
class LentBlocks(KvBlocks):
    """Blocks of one stage: first those of its own memory, then the places of its lender."""

    blocks_here: int = field(init=False)
    """Blocks of the stage's own memory; numbers from this one on are places of lenders."""
    first_away: int = field(init=False)
    """Number of the first place of the lender that there is, or will be."""
    _away: FreeRuns = field(init=False, default_factory=FreeRuns)
    """Places that nobody's block lies in."""

    def __post_init__(self) -> None:
        KvBlocks.__post_init__(self)
        self.blocks_here = self.first_away = self.blocks_total

    @classmethod
    def of(cls, kv: KvBlocks) -> "LentBlocks":
        """The blocks of a stage that had no lender so far, with all that they hold; `kv` is not to
        be used any more."""
        lent = cls(len(kv._users))
        for one in fields(KvBlocks):
            setattr(lent, one.name, getattr(kv, one.name))
        return lent

    @property
    def room(self) -> int:
        """Blocks that it has places for, whatever the ring counts with."""
        return self.blocks_here + len(self._users) - self.first_away

    @property
    def free_here(self) -> int:
        """Blocks of its own memory that belong to nobody."""
        return self._free.blocks + sum(map(len, self._claims.values()))

    @property
    def blocks_lent(self) -> int:
        """Blocks that lie at the lender."""
        return len(self._users) - self.first_away - self._away.blocks

    def borrow(self, places: int) -> None:
        """Have so many places of a lender, where none are. They have further numbers: those of a
        lender that was lost are never used again."""
        self.first_away = len(self._users)
        self._away.add(range(self.first_away, self.first_away + places))
        self._users.extend(bytes(places))
        self._is_cached.extend(bytes(places))
        self.blocks_total += places
        self.blocks_free += places

    def lose_lender(self) -> None:
        """The lender is gone, with all that lay there; see `lose`."""
        places = range(self.first_away, len(self._users))
        self.blocks_free -= self._away.blocks
        self._away, self.first_away = FreeRuns(), len(self._users)
        self.lose(places)
        self.drop([number for number, block in self._cached.items() if block in places])

    def leaving(self, left: int, most: int) -> tuple[range, dict[int, int]]:
        """Numbers of the lender's last places beyond its first `left`, `most` of them, and where
        the blocks in them may go: into its first places, else home. Empty where there is no room
        for them, as before the ring counts with so much less."""
        stop, kept = len(self._users), self.first_away + left
        going = range(max(kept, stop - most), stop)
        blocks = [block for block in going if self._users[block]]
        first = (range(run.start, min(run.stop, kept)) for run in self._away.runs())
        here = (*self._free.runs(), *self._claims.values())
        room = [*islice((block for run in (*first, *here) for block in run), len(blocks))]
        return (going, dict(zip(blocks, room, strict=True))) if len(room) == len(blocks) else NONE

    def leave(self, going: range, moves: Mapping[int, int]) -> None:
        """The lender has these places no more; the blocks in them are where `leaving` has said."""
        for request_id, claim in self._claims.items():
            self._free.add(claim)
            self._claims[request_id] = range(0)
        for block in moves.values():
            _take_one(self._free if block < self.blocks_here else self._away, block)
        for block in going:
            if block not in moves:
                _take_one(self._away, block)
        for block, place in moves.items():
            self._users[place], self._is_cached[place] = self._users[block], self._is_cached[block]
        self._rename(moves)
        del self._users[going.start :], self._is_cached[going.start :]

    def is_here(self, number: int) -> bool:
        """Whether the block that the cache holds under this number lies in the stage's own
        memory."""
        return self._cached[number] < self.blocks_here

    def grow(self, request_id: int, tokens: int, tokens_expected: int = 0) -> None:
        """Let the request hold its first `tokens` tokens, in new blocks of its own memory. Raises
        OutOfBlocks, and changes nothing, when too few of these are free."""
        self._check_room(self.blocks_missing(request_id, tokens))
        KvBlocks.grow(self, request_id, tokens, tokens_expected)

    def bring_back(self, numbers: Iterable[int]) -> list[int]:
        """Let the cache hold a free block of its own memory under each of these numbers. Raises
        OutOfBlocks, and changes nothing, when too few are free."""
        wanted = list(numbers)
        self._check_room(len(wanted))
        return KvBlocks.bring_back(self, wanted)

    def lend(self, count: int, busy: Collection[int] = ()) -> list[tuple[int, int]]:
        """Let as many as `count` blocks lie at the lender from now on: for each the block of the
        stage's own memory that it was, and its place there from 0 on. None of those that are
        `busy` goes."""
        chosen = list(islice(self._lendable(busy), min(count, self._away.blocks)))
        places = list(self._taken(len(chosen)))
        moved = dict(zip(chosen, places, strict=True))
        for block, place in moved.items():
            self._users[place], self._users[block] = self._users[block], 0
            self._is_cached[place], self._is_cached[block] = self._is_cached[block], 0
        self._rename(moved)
        for run in number_runs(sorted(chosen)):
            self._free.add(run)
        return [(block, place - self.first_away) for block, place in moved.items()]

    # -- what goes ------------------------------------------------------------------------------

    def _lendable(self, busy: Collection[int]) -> Iterator[int]:
        """Blocks of its own memory that may go, those first that cost least there."""
        held = {block for table in self._tables.values() for block in table[-LAST_BLOCKS_HERE:]}
        held.update(busy)
        seen = set[int]()
        idle = (block for block in self._cached.values() if self._users[block] == 1)
        longest = sorted(self._tables.values(), key=len, reverse=True)
        for block in (*idle, *(block for table in longest for block in table)):
            if block < self.blocks_here and block not in held and block not in seen:
                seen.add(block)
                yield block

    def _taken(self, count: int) -> Iterator[int]:
        while count:
            run = self._away.fit(count)
            self._away.take(run)
            count -= len(run)
            yield from run

    def _rename(self, moved: Mapping[int, int]) -> None:
        for table in self._tables.values():
            for place, block in enumerate(table):
                if block in moved:
                    table[place] = moved[block]
        for number, block in self._cached.items():
            if block in moved:
                self._cached[number] = moved[block]

    # -- where it is ----------------------------------------------------------------------------

    def _add_free(self, run: range) -> None:
        here = run[: max(0, self.blocks_here - run.start)]
        self._free.add(here)
        self._away.add(run[len(here) :])

    def _check_room(self, blocks: int) -> None:
        if blocks > self.free_here:
            raise OutOfBlocks(
                f"{blocks} blocks are wanted in a stage's own memory, {self.free_here} are free"
            )


def _take_one(free: FreeRuns, block: int) -> None:
    """Take one block out of the run that it lies in."""
    run = next(run for run in free.runs() if block in run)
    free.take(run)
    free.add(range(run.start, block))
    free.add(range(block + 1, run.stop))
