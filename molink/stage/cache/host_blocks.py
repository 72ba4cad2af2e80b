"""Cached blocks in host memory, in slots that are used again.

Memory is taken from the system in chunks, as blocks come: fresh memory costs several times the copy
into it, in page faults, so what a block has left serves the next one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from molink.engine_protocol.values import BlockBytes
from molink_scheduler.kv.free_runs import FreeRuns

CHUNK_BYTES = 64 * 2**20
"""Most bytes of a chunk: above 32 MiB the system has them back as soon as they are given up."""


@dataclass(slots=True)
class HostBlocks:
    """Blocks of one size, by their numbers; for one thread at a time."""

    block_bytes: int
    blocks_max: int
    _chunks: list[BlockBytes] = field(init=False, default_factory=list)
    """Memory of the slots, [B, W] each."""
    _free: FreeRuns = field(init=False, default_factory=FreeRuns)
    """Slots without a block; no run reaches from one chunk into the next."""
    _slots: dict[int, int] = field(init=False, default_factory=dict)
    """Slot of each block."""

    @property
    def taken_blocks(self) -> int:
        """Number of blocks for which memory is taken from the system."""
        return sum(map(len, self._chunks))

    def __contains__(self, number: int) -> bool:
        return number in self._slots

    def __getitem__(self, number: int) -> BlockBytes:
        slot = self._slots[number]
        return self._memory_of(range(slot, slot + 1)).reshape(-1)

    def take(self, numbers: Sequence[int], memory: Callable[[int], BlockBytes]) -> BlockBytes:
        """Memory [B, W] for the first of some blocks, as many as find room side by side; for none
        where all of it is used. `memory` takes more from the system; raises MemoryError where that
        gives none."""
        more = min(self._chunk_blocks, self.blocks_max - self.taken_blocks)
        if not self._free.blocks and more > 0:
            self._chunks.append(memory(more))
            first = (len(self._chunks) - 1) * self._stride
            self._free.add(range(first, first + more))
        run = self._free.fit(len(numbers))
        self._free.take(run)
        self._slots.update(zip(numbers, run, strict=False))
        return self._memory_of(run)

    def drop(self, number: int) -> None:
        """Keep a block no more; one that is not here is fine."""
        if (slot := self._slots.pop(number, None)) is not None:
            self._free.add(range(slot, slot + 1))

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
