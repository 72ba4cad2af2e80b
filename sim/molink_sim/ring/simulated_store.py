"""Memory below a simulated device's: where blocks lie that the head has put away, and when a fetch
of them has been read.

One reader brings back one fetch after the other, as `molink.stage.cache` does; what goes down costs
the stage nothing here. Blocks have no content, so none is ever unreadable.
"""

from dataclasses import dataclass, field
from typing import assert_never

from molink_scheduler.kv.changes import (
    CacheChange,
    DropBlocks,
    FetchBlocks,
    FoldBlocks,
    KeepBlocks,
    LowerBlocks,
    RetainBlocks,
)
from molink_scheduler.kv.tiers import FILE, CacheTiers


@dataclass(slots=True)
class SimulatedStore:
    """Host memory and file of one stage's PC."""

    tiers: CacheTiers
    _places: dict[int, int] = field(init=False, default_factory=dict)
    """Tier of each block that is not in the device's memory, by its number."""
    _free_at: float = field(init=False, default=0.0)
    """When the reader has read what it was asked for so far."""

    def change(self, change: CacheChange, now: float) -> float | None:
        """Do as the head says; of a fetch, when its blocks are in the device's memory."""
        match change:
            case LowerBlocks(tier):
                self._places.update(dict.fromkeys(change.numbers, tier))
            case DropBlocks():
                self._forget(change)
            case FetchBlocks():
                self._free_at = max(now, self._free_at) + self._forget(change)
                return self._free_at
            case KeepBlocks() | RetainBlocks() | FoldBlocks():
                pass
            case _:
                assert_never(change)
        return None

    def _forget(self, change: DropBlocks | FetchBlocks) -> float:
        """Hold these blocks no more; seconds to copy them back."""
        tiers = [self._places.pop(number, None) for number in change.numbers]
        held, in_file = sum(one is not None for one in tiers), tiers.count(FILE)
        return held * self.tiers.copy_block_s + in_file * self.tiers.read_block_s
