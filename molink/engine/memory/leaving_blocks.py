"""Cached KV on its way out of a device's blocks, while others compute.

The blocks are free at once, as the head counts them, and a thread copies them out in pieces, the
first ones first. A step that writes where a block still stands sets a copy of that block aside
before, which the thread takes in place of what it has read there. So a step waits for nobody,
however much leaves and whatever the thread does meanwhile (`moving_blocks`).

What is set aside is all that waits in memory beside the blocks themselves. Where a slow disk holds
the thread up it grows, and what would be more than may wait is lost: its fetch will say so.
"""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from molink.engine.device.streams import host_blocks
from molink.engine.memory.packed_blocks import PackedBlocks
from molink.engine_protocol.values import BlockBytes


@dataclass(slots=True, eq=False)
class LeavingBlocks:
    """Cached blocks that another thread copies out; see `engine_protocol`."""

    packed: PackedBlocks
    numbers: tuple[int, ...]
    """Numbers of the blocks in the cache."""
    places: Sequence[Sequence[int]]
    """Blocks of each pool in which they stand."""
    _copied: int = field(init=False, default=0)
    """Number of blocks, from the first, that are copied."""
    _aside: dict[int, BlockBytes | None] = field(init=False, default_factory=dict)
    """Copies that steps have made, until the thread takes them over; None: there was no room."""
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    @property
    def is_gone(self) -> bool:
        """Whether nothing of them is to be copied any more."""
        return self._copied == len(self.numbers)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the copies that the thread has not taken over."""
        return sum(one.nbytes for one in [*self._aside.values()] if one is not None)

    # -- in the thread that copies --------------------------------------------------------------

    def memory(self, blocks: int) -> BlockBytes:
        """Memory of the host for so many packed blocks, [B, W]. Raises MemoryError."""
        return host_blocks(blocks, self.packed.block_bytes, self.packed.kind)

    def copy(self, out_BW: BlockBytes) -> Collection[int]:
        """Copy the next blocks, as many as there is memory for here; which of these are lost."""
        first, stop = self._copied, self._copied + len(out_BW)
        try:
            self.packed.copy_out([some[first:stop] for some in self.places], out_BW)
        finally:
            with self._lock:
                aside = {at: self._aside.pop(at) for at in [*self._aside] if at < stop}
                self._copied = stop
        for at, block_W in aside.items():  # What was read there may be another's by now.
            if block_W is not None:
                out_BW[at - first] = block_W
        return [at - first for at, block_W in aside.items() if block_W is None]

    def give_up(self) -> None:
        """Have no more of them copied."""
        with self._lock:
            self._copied = len(self.numbers)
            self._aside.clear()

    # -- in the thread that computes ------------------------------------------------------------

    def vacate(self, pool: int, places: Collection[int], room_bytes: int) -> None:
        """Set aside what stands in these places of a pool and is not copied yet, as much of it as
        there is room for: others write there next."""
        found = [at for at, place in enumerate(self.places[pool]) if place in places]
        with self._lock:
            for at in found:
                if at >= self._copied and at not in self._aside:
                    self._aside[at] = self._set_aside(at, room_bytes - self.waiting_bytes)

    def _set_aside(self, at: int, room_bytes: int) -> BlockBytes | None:
        if self.packed.block_bytes > room_bytes:
            return None
        try:
            return self.packed.take([some[at : at + 1] for some in self.places]).reshape(-1)
        except MemoryError:
            return None
