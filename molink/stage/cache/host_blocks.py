"""Cached blocks in host memory, in slots that are used again.

Memory is taken from the system in chunks, as blocks come: fresh memory costs several times the copy
into it, in page faults, so what a block has left serves the next one.
"""

import sys
import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

import numpy as np

from molink.engine_protocol.values import BlockBytes
from molink_scheduler.kv.free_runs import FreeRuns

CHUNK_BYTES = 64 * 2**20
"""Most bytes of a chunk: above 32 MiB the system has them back as soon as they are given up."""


@dataclass(slots=True)
class HostBlocks:
    """Blocks of one size, by their numbers; but for `spare`, for one thread at a time.

    What is given back while somebody still copies is gone when he is done, and is nobody else's
    before: chunks are never used again.
    """

    block_bytes: int
    blocks_max: int
    _spare_blocks: int = field(init=False, default=sys.maxsize)
    """Blocks for which the PC can spare memory now."""
    _chunks: dict[int, BlockBytes] = field(init=False, default_factory=dict)
    """Memory of the slots, [B, W] each, the longest taken first."""
    _next_chunk: int = field(init=False, default=0)
    _free: FreeRuns = field(init=False, default_factory=FreeRuns)
    """Slots without a block; no run reaches from one chunk into the next."""
    _slots: dict[int, int] = field(init=False, default_factory=dict)
    """Slot of each block."""
    _changing: threading.Lock = field(init=False, default_factory=threading.Lock)

    @property
    def taken_blocks(self) -> int:
        """Number of blocks for which memory is taken from the system."""
        return sum(map(len, [*self._chunks.values()]))

    def __contains__(self, number: int) -> bool:
        return number in self._slots

    def numbers(self) -> list[int]:
        """Blocks that are here."""
        with self._changing:
            return [*self._slots]

    def get(self, number: int) -> BlockBytes | None:
        """A block; None: it is not here."""
        with self._changing:
            slot = self._slots.get(number)
            return None if slot is None else self._memory_of(range(slot, slot + 1)).reshape(-1)

    def take(self, numbers: Sequence[int], memory: Callable[[int], BlockBytes]) -> BlockBytes:
        """Memory [B, W] for the first of some blocks, as many as find room side by side; for none
        where all of it is used. `memory` takes more from the system; raises MemoryError where that
        gives none."""
        with self._changing:
            most = min(self.blocks_max, self._spare_blocks)
            more = min(self._chunk_blocks, most - self.taken_blocks)
            if not self._free.blocks and more > 0:
                self._chunks[self._next_chunk] = memory(more)
                first = self._next_chunk * self._stride
                self._next_chunk += 1
                self._free.add(range(first, first + more))
            run = self._free.fit(len(numbers))
            self._free.take(run)
            self._slots.update(zip(numbers, run, strict=False))
            return self._memory_of(run)

    def drop(self, number: int) -> None:
        """Keep a block no more; one that is not here is fine."""
        with self._changing:
            if (slot := self._slots.pop(number, None)) is not None:
                self._free.add(range(slot, slot + 1))

    def spare(self, blocks: int) -> None:
        """Take memory for no more than so many blocks from now on. Whole chunks beyond go back to
        the system, with what is in them, the longest taken first."""
        with self._changing:
            self._spare_blocks, gone = blocks, set[int]()
            while self.taken_blocks > blocks:
                gone.add(chunk := next(iter(self._chunks)))
                del self._chunks[chunk]
            if gone:
                self._forget_slots(gone)

    def _forget_slots(self, gone: Container[int]) -> None:
        """Keep nothing in some chunks, nor have it free."""
        stride, slots = self._stride, self._slots.items()
        self._slots = {one: slot for one, slot in slots if slot // stride not in gone}
        for run in [*self._free.runs()]:
            if run.start // stride in gone:
                self._free.take(run)

    def take_no_more(self) -> int:
        """Go on with what is taken from the system: so many bytes."""
        self.blocks_max = self.taken_blocks
        return self.blocks_max * self.block_bytes

    def _memory_of(self, run: range) -> BlockBytes:
        if not run:
            return np.empty((0, self.block_bytes), np.uint8)
        chunk, first = divmod(run.start, self._stride)
        return self._chunks[chunk][first : first + len(run)]

    @property
    def _chunk_blocks(self) -> int:
        return max(1, CHUNK_BYTES // self.block_bytes)

    @property
    def _stride(self) -> int:
        """Distance of two chunks' first slots: one more than they have, so that runs part there."""
        return self._chunk_blocks + 1
