"""How many KV blocks each request holds, where nobody asks which: the head's book.

The head admits and preempts by numbers; which block is whose, every stage decides for itself
(`KvBlocks`). Placing blocks in the head too cost a search over all free ones, a millisecond for
every prompt and for every block that a growing sequence took out of order.
"""

from dataclasses import dataclass, field

from molink_scheduler.kv.blocks import BLOCK_TOKENS, OutOfBlocks, blocks_for

__all__ = ["KvLedger"]


@dataclass(slots=True)
class KvLedger:
    """The counting half of `KvBlocks`."""

    blocks_total: int
    blocks_free: int = field(init=False)
    """Blocks that belong to nobody."""
    _held: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.blocks_total < 1:
            raise ValueError(f"a ring needs at least one KV block, got {self.blocks_total}")
        self.blocks_free = self.blocks_total

    @property
    def tokens_used(self) -> int:
        """Tokens in blocks that belong to somebody, the unused rest of last blocks included."""
        return (self.blocks_total - self.blocks_free) * BLOCK_TOKENS

    @property
    def tokens_capacity(self) -> int:
        """Tokens that all blocks hold."""
        return self.blocks_total * BLOCK_TOKENS

    def blocks_missing(self, request_id: int, tokens: int) -> int:
        """Blocks that `grow` would take from the free ones."""
        return max(0, blocks_for(tokens) - self._held.get(request_id, 0))

    def grow(self, request_id: int, tokens: int) -> None:
        """Let the request hold its first `tokens` tokens.

        Raises OutOfBlocks, and changes nothing, when too few blocks are free.
        """
        missing = self.blocks_missing(request_id, tokens)
        if missing > self.blocks_free:
            raise OutOfBlocks(
                f"request {request_id} needs {missing} more blocks, {self.blocks_free} are free"
            )
        self._held[request_id] = self._held.get(request_id, 0) + missing
        self.blocks_free -= missing

    def release(self, request_id: int) -> None:
        """Give the request's blocks back; a request that holds none is fine."""
        self.blocks_free += self._held.pop(request_id, 0)

    def holders(self) -> frozenset[int]:
        """Requests that hold blocks."""
        return frozenset(self._held)
