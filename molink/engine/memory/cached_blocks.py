"""Cached KV blocks of a stage that leave its device's memory, and come back; and folded ones.

The head says what, by numbers; here is where the blocks of each number are. A stage of several
parts has blocks of one number in all of them, which leave and come back as one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Protocol, assert_never

from molink.engine.memory.arriving_blocks import ArrivingBlocks
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.leaving_blocks import LeavingBlocks
from molink.engine.memory.moving_blocks import MovingBlocks
from molink.engine.memory.packed_blocks import PackedBlocks
from molink.engine_protocol import values
from molink_scheduler.kv.blocks import KvBlocks
from molink_scheduler.kv.changes import (
    DropBlocks,
    FoldBlocks,
    KeepBlocks,
    KeptBlocks,
    LowerBlocks,
    OutwardChange,
    RetainBlocks,
)
from molink_scheduler.kv.tiers import DEVICE


class CachingPart(Protocol):
    """A part of a stage, with KV of its own."""

    kv: KvBlocks
    moving: MovingBlocks

    @property
    def kv_memory(self) -> KvPool:
        """The tensors behind its KV blocks."""


@dataclass(frozen=True, slots=True)
class ArrivingTogether:
    """Cached blocks that another thread fills in all parts; see `engine_protocol`."""

    packed: PackedBlocks
    parts: Sequence[ArrivingBlocks]

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the blocks in the cache."""
        return self.parts[0].numbers

    @property
    def is_there(self) -> bool:
        """Whether nothing is to be filled any more."""
        return all(part.is_there for part in self.parts)

    def only(self, count: int) -> bool:
        """The first of the blocks will come, so many; False: they were given up."""
        return all([part.only(count) for part in self.parts])

    def fill(self, blocks_W: Sequence[values.BlockBytes]) -> None:
        """Copy packed blocks in, layer by layer."""
        self.packed.put(self.parts, blocks_W)

    def end(self, failure: Exception) -> None:
        """None of the blocks will ever be there."""
        for part in self.parts:
            part.end(failure)

    def settle(self, numbers: Iterable[int]) -> None:
        """Return when nothing is filled any more where some of these blocks are. What a slow disk
        is still to read is not waited for: it is filled no more."""
        wanted = list(numbers)
        for part in self.parts:
            if part.has_any(wanted) and not part.give_up(wanted):
                part.wait()

    def check(self) -> None:
        """Raises StageError where the blocks will never be there."""
        for part in self.parts:
            part.check()


@dataclass(frozen=True, slots=True)
class BlocksOfParts:
    """Cached blocks of all parts of a stage; for the stage's own thread."""

    parts: Sequence[CachingPart]

    @property
    def packed(self) -> PackedBlocks:
        """Packer of a block of all parts."""
        return PackedBlocks(tuple(part.kv_memory for part in self.parts))

    def blocks_out(self, change: OutwardChange) -> LeavingBlocks | None:
        """Keep, drop and put away blocks as the head says; what is put away from here."""
        match change:
            case KeepBlocks(kept):
                self._keep(kept)
            case DropBlocks():
                self._leave([one for one in change.numbers if self.parts[0].kv.has(one)])
            case LowerBlocks():
                return self._put_away(change.numbers)
            case RetainBlocks():
                self._retain(change)
            case FoldBlocks():
                self._fold(change)
            case _:
                assert_never(change)
        return None

    def blocks_copied(self, numbers: Sequence[int]) -> values.BlockBytes | None:
        """Copies of blocks, packed, [B, W], which stay; None where one lies at a lender."""
        if not all(part.kv.is_here(one) for part in self.parts for one in numbers):
            return None
        return self.packed.take([part.kv.places(numbers) for part in self.parts])

    def blocks_in(self, numbers: Sequence[int]) -> ArrivingTogether:
        """Let the cache hold free blocks under these numbers, to be filled by another thread; under
        the first of them where there is no room for all."""
        numbers = numbers[: min(part.moving.let_in(len(numbers)) for part in self.parts)]
        arrivals = [part.moving.bring_back(part.kv, numbers) for part in self.parts]
        return ArrivingTogether(self.packed, arrivals)

    def _keep(self, kept: Iterable[KeptBlocks]) -> None:
        for part in self.parts:
            for one in kept:
                part.kv.keep(one.request_id, one.first_block, one.numbers)

    def _fold(self, change: FoldBlocks) -> None:
        for part in self.parts:
            before, hosts = part.kv.fold(change.request_id, change.blocks, change.into)
            part.moving.vacate(set(hosts))
            part.kv_memory.fold(before, hosts)

    def _retain(self, change: RetainBlocks) -> None:
        for part in self.parts:
            cached = part.kv.cached_numbers()  # A part that is new has none of the others'.
            part.kv.drop([number for number in cached if not change.keeps(DEVICE, number)])

    def _put_away(self, numbers: Iterable[int]) -> LeavingBlocks | None:
        """Those of the blocks that are here are free from now on, and can be copied out."""
        known = [number for number in numbers if self.parts[0].kv.has(number)]
        is_near = [all(part.kv.is_here(one) for part in self.parts) for one in known]
        self._leave([one for one, here in zip(known, is_near, strict=True) if not here])
        near = tuple(compress(known, is_near))  # The others lay at a lender, and are lost.
        if not near:
            return None
        leaving = LeavingBlocks(self.packed, near, [part.kv.places(near) for part in self.parts])
        for pool, part in enumerate(self.parts):
            part.moving.leave(leaving, pool)
        self._leave(near)
        return leaving

    def _leave(self, numbers: Sequence[int]) -> None:
        for part in self.parts:
            part.kv.drop(numbers)
