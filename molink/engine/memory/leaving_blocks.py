"""Cached KV on its way out of a device's blocks, while others compute.

The blocks are free at once, as the head counts them, and a thread copies them out in pieces, the
first ones first. A step that writes where a block still stands makes a copy of that block itself
before, which the thread takes over later: so it waits for the piece that is being copied just then,
and for nothing else, however much leaves and whatever the thread does meanwhile (`moving_blocks`).

Such copies are all that waits in memory beside the blocks themselves. Where a slow disk holds the
thread up they grow, and what would be more than WAITING_BYTES_MAX is lost: its fetch will say so.
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
    _begun: int = field(init=False, default=0)
    """Number of blocks, from the first, that are copied or being copied."""
    _copied: int = field(init=False, default=0)
    _aside: dict[int, BlockBytes | None] = field(init=False, default_factory=dict)
    """Copies that steps have made, until the thread takes them over; None: there was no room."""
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

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
        first, stop = self._begun, self._begun + len(out_BW)
        with self._changed:
            self._begun = stop
        try:
            self.packed.copy_out([some[first:stop] for some in self.places], out_BW)
        finally:
            with self._changed:
                aside = {at: self._aside.pop(at) for at in [*self._aside] if at < stop}
                self._copied = stop
                self._changed.notify_all()
        for at, block_W in aside.items():  # Another's rows stand there by now.
            if block_W is not None:
                out_BW[at - first] = block_W
        return [at - first for at, block_W in aside.items() if block_W is None]

    def give_up(self) -> None:
        """Have no more of them copied."""
        with self._changed:
            self._begun = self._copied = len(self.numbers)
            self._aside.clear()
            self._changed.notify_all()

    # -- in the thread that computes ------------------------------------------------------------

    def vacate(self, pool: int, places: Collection[int], room_bytes: int) -> None:
        """Return when none of these places of a pool is read any more. Blocks that nobody has begun
        to copy are copied here, as many as there is room for."""
        found = [at for at, place in enumerate(self.places[pool]) if place in places]
        with self._changed:
            for at in found:
                if at >= self._begun and at not in self._aside:
                    self._aside[at] = self._set_aside(at, room_bytes - self.waiting_bytes)
            under_way = max((at for at in found if at < self._begun), default=-1)
            self._changed.wait_for(lambda: self._copied > under_way)

    def _set_aside(self, at: int, room_bytes: int) -> BlockBytes | None:
        if self.packed.block_bytes > room_bytes:
            return None
        try:
            return self.packed.take([some[at : at + 1] for some in self.places]).reshape(-1)
        except MemoryError:
            return None
