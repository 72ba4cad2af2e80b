"""Rows of cached blocks that a stage has sent: the store of what it owes a replaced neighbour.

A request that begins with cached blocks never has their rows sent. So the rows of a block are kept
when it is cached, for the log of such a request and for a fresh neighbour, which lacks all blocks
that the others still hold. What is *owed* to one stays until it is sent, or dropped by the head.

Pure: rows are bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from molink_scheduler.batch import Admission
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.number_runs import named_runs, number_runs
from molink_scheduler.stage.sent_rows import SentRows, joined_rows


@dataclass(slots=True)
class BlockRows:
    """Rows of cached blocks, by the blocks' numbers."""

    bytes_held: int = field(init=False, default=0)
    _kept: dict[int, SentRows] = field(init=False, default_factory=dict)
    """Rows of blocks that may be forgotten, the longest kept first."""
    _owed: dict[int, SentRows] = field(init=False, default_factory=dict)
    """Rows of blocks that the replaced neighbour lacks."""

    def numbers(self) -> frozenset[int]:
        """Blocks whose rows are here."""
        return frozenset(self._kept) | frozenset(self._owed)

    def __contains__(self, number: int) -> bool:
        return number in self._kept or number in self._owed

    def keep(self, number: int, pieces: Sequence[SentRows]) -> None:
        """Keep the rows of a block that is cached now."""
        self._kept[number] = joined_rows(pieces)
        self.bytes_held += len(self._kept[number].rows)

    def drop(self, number: int) -> None:
        """Forget the rows of a block; one that is unknown is fine."""
        dropped = self._kept.pop(number, None) or self._owed.pop(number, None)
        if dropped is not None:
            self.bytes_held -= len(dropped.rows)

    def drop_oldest(self) -> bool:
        """Forget the block that was kept longest; whether there was one."""
        if not self._kept:
            return False
        self.drop(next(iter(self._kept)))
        return True

    def drop_all(self) -> None:
        """Forget all blocks that are not owed."""
        for number in list(self._kept):
            self.drop(number)

    def begin_epoch(self, *, stay: bool, owed: bool) -> None:
        """Begin the ring's next epoch, in which cached blocks may `stay`; `owed`: the neighbour is
        fresh and lacks them."""
        self._kept, self._owed = self._owed | self._kept, {}
        if not stay:
            self.drop_all()
        elif owed:
            self._kept, self._owed = {}, self._kept

    def not_owed(self, number: int) -> None:
        """Owe a block to nobody; the neighbour has it."""
        if (rows := self._owed.pop(number, None)) is not None:
            self._kept[number] = rows

    def begun(self, admission: Admission) -> list[SentRows]:
        """Rows of the blocks that a request begins with, as its own first ones; none unless all of
        them are here."""
        rows = [self._kept.get(one) or self._owed.get(one) for one in admission.cached_numbers]
        found = [one.moved(place * BLOCK_TOKENS) for place, one in enumerate(rows) if one]
        return found if len(found) == len(rows) else []

    def lacking(self, admission: Admission) -> list[tuple[int, int]]:
        """Places and numbers of the blocks that a request begins with whose rows are not here."""
        numbers = enumerate(admission.cached_numbers)
        return [(place, number) for place, number in numbers if number not in self]

    def take_owed(
        self, admission: Admission, blocks_max: int
    ) -> Iterator[tuple[SentRows, tuple[Admission, ...]]]:
        """Rows of the blocks that a request begins with and the neighbour lacks, at most so many
        blocks at a time. With the first the request is admitted, behind the blocks that the
        neighbour has."""
        numbers = list(admission.cached_numbers)
        places = [place for place, number in enumerate(numbers) if number in self._owed]
        if not places:
            return
        held = named_runs(number_runs(numbers[: places[0]]))
        begun: tuple[Admission, ...] = (replace(admission, cached=held),)
        for first in range(places[0], places[-1] + 1, blocks_max):
            stop = min(first + blocks_max, places[-1] + 1)
            yield self._take(numbers[first:stop], first), begun
            begun = ()

    def _take(self, numbers: Sequence[int], first_block: int) -> SentRows:
        """Rows of blocks that are sent now, the first of them a request's `first_block`-th."""
        rows = [self._owed.pop(number) for number in numbers]
        self._kept.update(zip(numbers, rows, strict=True))
        sent, start = joined_rows(rows), first_block * BLOCK_TOKENS
        return sent._replace(start=start, end=start + len(rows) * BLOCK_TOKENS)
