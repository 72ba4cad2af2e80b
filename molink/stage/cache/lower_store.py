"""What a stage's cache asks of the store below its device's memory, and the store of a stage that
has none."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from molink.engine_protocol.engine import BlocksIn, BlocksOut
from molink_scheduler.kv.changes import NOWHERE, AwayBlocks, RetainBlocks
from molink_scheduler.kv.tiers import CacheTiers


class LowerStore(Protocol):
    """Store of cached blocks; nothing that it is asked for waits."""

    @property
    def tiers(self) -> CacheTiers:
        """Room of each tier, as measured."""

    def tiers_of(self, block_bytes: int) -> CacheTiers:
        """Room and rates for blocks of another size."""

    def put(self, tier: int, numbers: Sequence[int], leaving: BlocksOut | None) -> None:
        """Keep blocks in a tier, those that are `leaving` the device; None: they are in the tier
        above."""

    def drop(self, numbers: Sequence[int]) -> None:
        """Keep these blocks no more; unknown ones are fine."""

    def fetch(self, fetch_id: int, arriving: BlocksIn) -> None:
        """Bring blocks back, and answer when they are sure."""

    def clear(self, block_bytes: int, directory: int = 0) -> None:
        """Keep nothing, and from then on blocks of this size that the directory numbers."""

    def holds(self) -> AwayBlocks:
        """Blocks that are here when nothing is written or read any more."""

    def retain(self, change: RetainBlocks) -> None:
        """Keep no others than the head says, under its numbers."""

    def shed(self) -> None:
        """Lose the blocks in host memory."""

    @property
    def host_bytes(self) -> int:
        """Bytes that are taken of host memory."""

    def host_room(self, size_bytes: int) -> None:
        """Take no more than this of host memory from now on; from any thread."""


@dataclass(frozen=True, slots=True)
class EmptyStore:
    """Store that has room for nothing."""

    tiers: CacheTiers = field(default_factory=CacheTiers)

    def tiers_of(self, block_bytes: int) -> CacheTiers:
        """Room for blocks of any size: none."""
        return self.tiers

    def put(self, tier: int, numbers: Sequence[int], leaving: BlocksOut | None) -> None:
        """Lose the blocks: there is no room for them."""
        if leaving is not None:
            leaving.give_up()

    def drop(self, numbers: Sequence[int]) -> None:
        """Drop nothing: nothing is here."""

    def fetch(self, fetch_id: int, arriving: BlocksIn) -> None:
        """Fail: nobody is told of room here, so nobody fetches."""
        arriving.end(LookupError(f"fetch {fetch_id} asks a stage that has no lower tiers"))

    def clear(self, block_bytes: int, directory: int = 0) -> None:
        """Forget all blocks: none are here."""

    def holds(self) -> AwayBlocks:
        """Blocks that are here: none."""
        return NOWHERE

    def retain(self, change: RetainBlocks) -> None:
        """Forget others: none are here."""

    def shed(self) -> None:
        """Lose the blocks in host memory: none are there."""

    @property
    def host_bytes(self) -> int:
        """Bytes that are taken of host memory: none."""
        return 0

    def host_room(self, size_bytes: int) -> None:
        """Take nothing, as before."""
