"""Snapshots of states: how much of a stage's memory they get, and which of them the head knows.

A layer that keeps a state instead of KV (linear attention, Mamba, a short convolution) cannot go
back to an earlier position, so a cached prefix is of use only where a copy of the states at its end
was kept. Such a snapshot takes as much as a whole request, and stands behind one block of the
directory of cached KV (`prefix_tree`): it is found by that block's number, and is of no use without
it. A number of its own, with orders to drop it, was rejected: a snapshot's number is its place on
every stage, so what is kept there next replaces it.

Pure: the head's half; the copies are the stages'.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SNAPSHOTS_ONE_IN = 4
"""Slots for states among which one is for snapshots: a chat takes a snapshot while nobody is at it,
and a slot while it is answered. Half was too many: it is room that fewer requests run in."""


def snapshot_slots(slots: int) -> int:
    """Slots for snapshots among a stage's slots for states; none of fewer than four."""
    return slots // SNAPSHOTS_ONE_IN


@dataclass(slots=True)
class SnapshotDirectory:
    """Snapshots of one ring, by the cached block that each stands behind."""

    capacity: int
    _free: list[int] = field(init=False)
    _behind: dict[int, int] = field(init=False, default_factory=dict)
    """Block of each complete snapshot, by number; the least recently used first."""
    _of_block: dict[int, int] = field(init=False, default_factory=dict)
    """Number of the snapshot behind each block."""
    _pins: dict[int, int] = field(init=False, default_factory=dict)
    """Requests that are about to begin with a snapshot, where there are any."""

    def __post_init__(self) -> None:
        self._free = list(range(self.capacity - 1, -1, -1))

    @property
    def count(self) -> int:
        """Snapshots that a request could begin with."""
        return len(self._behind)

    def take(self) -> int | None:
        """A place for a new snapshot: a free one, or that of the least recently used which nobody
        is about to begin with. None: all are in use."""
        if not self._free:
            unpinned = (one for one in self._behind if one not in self._pins)
            if (oldest := next(unpinned, None)) is None:
                return None
            self._forget(oldest)
        return self._free.pop()

    def give_back(self, number: int) -> None:
        """A place that was taken is not needed."""
        self._free.append(number)

    def settle(self, number: int, block: int) -> None:
        """Every stage has made the snapshot in a place that was taken; it stands behind this
        block. Where another one does already, that is used."""
        if block in self._of_block:
            self.give_back(number)
            self._touch(self._of_block[block])
            return
        self._behind[number], self._of_block[block] = block, number

    def blocks_usable(self, blocks: Sequence[int]) -> int:
        """How many of a chain's blocks, from the first, end with a snapshot."""
        for count in range(len(blocks), 0, -1):
            if blocks[count - 1] in self._of_block:
                return count
        return 0

    def pin(self, block: int) -> int:
        """Keep the snapshot behind a block until `unpin`, and count it as used: its number."""
        number = self._of_block[block]
        self._pins[number] = self._pins.get(number, 0) + 1
        self._touch(number)
        return number

    def unpin(self, number: int) -> None:
        """A request has begun with a snapshot, on every stage."""
        self._pins[number] -= 1
        if not self._pins[number]:
            del self._pins[number]

    def dropped(self, blocks: Iterable[int]) -> None:
        """Forget snapshots behind blocks that are no longer cached."""
        for block in blocks:
            if (number := self._of_block.get(block)) is not None:
                self._forget(number)

    def _touch(self, number: int) -> None:
        self._behind[number] = self._behind.pop(number)

    def _forget(self, number: int) -> None:
        assert number not in self._pins, "who begins with a snapshot holds its blocks"
        del self._of_block[self._behind.pop(number)]
        self._free.append(number)
