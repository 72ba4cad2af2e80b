"""Ledger of KV blocks: how many are whose. The head counts, and stages check.

Layers that keep a state instead of KV need the same room for every request, however long: a slot.
Who holds blocks holds a slot, so the ledger counts both.

Blocks that are cached belong to the cache, whoever else uses them: a request that begins with some
shares them, one whose blocks are kept shares them from then on.

Pure.
"""

from dataclasses import dataclass, field

from molink_scheduler.kv.blocks import BLOCK_TOKENS, OutOfBlocks, blocks_for


@dataclass(slots=True)
class _Holder:
    own: int = 0
    """Blocks that nobody else uses."""
    shared: int = 0
    """Blocks of the cache that it uses."""
    spared: int = 0
    """Blocks that it needs no more, because its first ones were folded."""


@dataclass(slots=True)
class KvLedger:
    """Blocks of a ring or of one stage, counted for each request and for the cache."""

    blocks_total: int
    state_slots: int | None = None
    """Requests whose states there is room for at a time; None: requests have no states."""
    folds: int = 1
    """Blocks of layers that keep all of a cut prompt for which one block has room."""
    blocks_free: int = field(init=False)
    """Blocks that belong to nobody; below 0: so many more are held than are counted with now."""
    blocks_most: int = field(init=False)
    """Blocks of all places together, some of which may be away for now."""
    blocks_cached: int = field(init=False, default=0)
    _holders: dict[int, _Holder] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.blocks_total < 1:
            raise ValueError(f"a ring needs at least one KV block, got {self.blocks_total}")
        if self.state_slots is not None and self.state_slots < 1:
            raise ValueError(f"a ring needs at least one state slot, got {self.state_slots}")
        if self.folds < 1:
            raise ValueError(f"a block has room for itself at least, got {self.folds}")
        self.blocks_free = self.blocks_most = self.blocks_total

    @property
    def tokens_used(self) -> int:
        """Tokens in blocks that belong to somebody, the unused rest of last blocks included."""
        return (self.blocks_total - self.blocks_free) * BLOCK_TOKENS

    @property
    def tokens_capacity(self) -> int:
        """Tokens that all blocks hold."""
        return self.blocks_total * BLOCK_TOKENS

    def resize(self, blocks: int) -> None:
        """Count so many blocks from now on; where more are held, less than none are free."""
        self.blocks_free += blocks - self.blocks_total
        self.blocks_total = blocks
        self.blocks_most = max(self.blocks_most, blocks)

    def blocks_missing(self, request_id: int, tokens: int) -> int:
        """Blocks that `grow` would take from the free ones."""
        holder = self._holders.get(request_id)
        held = 0 if holder is None else holder.own + holder.shared + holder.spared
        return max(0, blocks_for(tokens) - held)

    @property
    def requests_max(self) -> int:
        """Requests that can hold anything at a time."""
        return min(self.blocks_total, self.state_slots or self.blocks_total)

    @property
    def has_slot(self) -> bool:
        """Whether one more request can be held, if blocks are free."""
        return self.state_slots is None or len(self._holders) < self.state_slots

    def begin(self, request_id: int, shared_blocks: int) -> None:
        """Let a request that holds nothing begin with blocks of the cache."""
        if not self.has_slot:
            raise OutOfBlocks(f"request {request_id} needs a state slot, none is free")
        self._holders[request_id] = _Holder(shared=shared_blocks)

    def grow(self, request_id: int, tokens: int) -> None:
        """Let the request hold its first `tokens` tokens.

        Raises OutOfBlocks, and changes nothing, when too few blocks are free, or no slot for a new
        request.
        """
        if request_id not in self._holders and not self.has_slot:
            raise OutOfBlocks(f"request {request_id} needs a state slot, none is free")
        missing = self.blocks_missing(request_id, tokens)
        if missing and missing > self.blocks_free:
            raise OutOfBlocks(
                f"request {request_id} needs {missing} more blocks, {self.blocks_free} are free"
            )
        self._holders.setdefault(request_id, _Holder()).own += missing
        self.blocks_free -= missing

    def blocks_of(self, request_id: int) -> int:
        """Blocks that a request holds, shared ones too."""
        return self.own_blocks(request_id) + self.shared_blocks(request_id)

    def own_blocks(self, request_id: int) -> int:
        """Blocks of a request that nobody else uses."""
        holder = self._holders.get(request_id)
        return 0 if holder is None else holder.own

    def shared_blocks(self, request_id: int) -> int:
        """Blocks of a request that are the cache's."""
        holder = self._holders.get(request_id)
        return 0 if holder is None else holder.shared

    def keep(self, request_id: int, blocks: int) -> None:
        """Give so many of a request's own blocks to the cache."""
        holder = self._holders[request_id]
        assert blocks <= holder.own, "only a request's own blocks are cached anew"
        holder.own -= blocks
        holder.shared += blocks
        self.blocks_cached += blocks

    def adopt(self, request_id: int, cached_blocks: int) -> None:
        """All blocks of a request are the cache's from now on, as are others up to its first
        `cached_blocks`."""
        self.keep(request_id, self.own_blocks(request_id))
        self._holders[request_id].shared = cached_blocks

    def blocks_to_fold(self, request_id: int, blocks: int, into: int) -> int:
        """Free blocks that `fold` would take: where the cache's stay as they are, others have to
        take what was in them."""
        return max(0, into - (blocks - self.shared_blocks(request_id)))

    def fold(self, request_id: int, blocks: int, into: int) -> None:
        """Let a request have its first blocks, all of the cache's among them, in fewer ones of its
        own.

        Raises OutOfBlocks, and changes nothing, when too few blocks are free.
        """
        holder, needed = self._holders[request_id], self.blocks_to_fold(request_id, blocks, into)
        if needed > self.blocks_free:
            raise OutOfBlocks(
                f"request {request_id} needs {needed} blocks to be folded, "
                f"{self.blocks_free} are free"
            )
        given_back = blocks - holder.shared - into
        self.blocks_free += given_back
        self._holders[request_id] = _Holder(holder.own - given_back, spared=blocks - into)

    def folded_blocks(self, blocks: int) -> int:
        """Blocks into which so many can be folded."""
        return -(-blocks // self.folds)

    def spared_blocks(self, request_id: int) -> int:
        """Blocks that a request holds no more because its first ones were folded."""
        holder = self._holders.get(request_id)
        return 0 if holder is None else holder.spared

    def drop(self, blocks: int) -> None:
        """The cache gives up blocks that no request uses."""
        assert blocks <= self.blocks_cached, "more blocks are dropped than were cached"
        self.blocks_cached -= blocks
        self.blocks_free += blocks

    def bring_back(self, blocks: int) -> None:
        """Give so many free blocks to the cache.

        Raises OutOfBlocks, and changes nothing, when too few blocks are free.
        """
        if blocks and blocks > self.blocks_free:
            raise OutOfBlocks(f"{blocks} blocks come back, {self.blocks_free} are free")
        self.blocks_free -= blocks
        self.blocks_cached += blocks

    def release(self, request_id: int) -> None:
        """Give the request's own blocks back; a request that holds none is fine."""
        self.blocks_free += self._holders.pop(request_id, _Holder()).own

    @property
    def holders_count(self) -> int:
        """How many requests hold blocks."""
        return len(self._holders)

    def holders(self) -> frozenset[int]:
        """Requests that hold blocks."""
        return frozenset(self._holders)
