"""Which KV block belongs to whom: bookkeeping only, the tensors live in the executor.

Memory is cut into blocks of 16 tokens, as in vLLM, so that sequences grow without being moved.
Our attention kernels read blocks wherever they are; torch on a CPU, where they do not suit, is
fastest over one contiguous piece (a view, no gather). So a new sequence is placed in the smallest
free run that fits all it may come to hold, and claims that run: others keep out of it while there
is room elsewhere. A claim is only a wish. Under pressure claimed blocks are given away, and the
sequence continues in any block, there merely slower. A buddy allocator was rejected: it rounds
every sequence up to a power of two.

How many KV blocks each request holds, where nobody asks which: the head's book.

The head admits and preempts by numbers; which block is whose, every stage decides for itself
(`KvBlocks`). Placing blocks in the head too cost a search over all free ones, a millisecond for
every prompt and for every block that a growing sequence took out of order.

Layers that keep a state instead of KV need the same room for every request, however long: a slot.
Who holds blocks holds a slot, so the ledger counts both.
"""

from array import array
from dataclasses import dataclass, field

__all__ = ["BLOCK_TOKENS", "KvBlocks", "KvLedger", "OutOfBlocks", "blocks_for"]

BLOCK_TOKENS = 16
"""vLLM's default: small enough that half a block of waste per sequence does not matter, large
enough for views."""


class OutOfBlocks(Exception):
    """Raised when a stage's blocks run out; the head admits so that this does not happen."""


def blocks_for(tokens: int) -> int:
    """Blocks that `tokens` tokens occupy."""
    return -(-tokens // BLOCK_TOKENS)


@dataclass(slots=True)
class KvBlocks:
    """The blocks of one stage, and for each live request its table: block numbers in token
    order."""

    blocks_total: int
    _free: set[int] = field(init=False)
    _tables: dict[int, "array[int]"] = field(init=False, default_factory=dict)
    _reserved: dict[int, range] = field(init=False, default_factory=dict)
    _strays: set[int] = field(init=False, default_factory=set)
    """Blocks that somebody holds outside of what it claims."""

    def __post_init__(self) -> None:
        if self.blocks_total < 1:
            raise ValueError(f"a stage needs at least one KV block, got {self.blocks_total}")
        self._free = set(range(self.blocks_total))

    @property
    def blocks_free(self) -> int:
        """Blocks that belong to nobody."""
        return len(self._free)

    @property
    def tokens_used(self) -> int:
        """Tokens in blocks that belong to somebody, the unused rest of last blocks included."""
        return (self.blocks_total - len(self._free)) * BLOCK_TOKENS

    @property
    def tokens_capacity(self) -> int:
        """Tokens that all blocks hold."""
        return self.blocks_total * BLOCK_TOKENS

    def blocks_missing(self, request_id: int, tokens: int) -> int:
        """Blocks that `grow` would take from the free ones."""
        return max(0, blocks_for(tokens) - len(self._tables.get(request_id, ())))

    def grow(self, request_id: int, tokens: int, tokens_expected: int = 0) -> None:
        """Let the request hold its first `tokens` tokens; `tokens_expected` guides where a new one
        is placed.

        Raises OutOfBlocks, and changes nothing, when too few blocks are free.
        """
        missing = self.blocks_missing(request_id, tokens)
        if missing > len(self._free):
            raise OutOfBlocks(
                f"request {request_id} needs {missing} more blocks, {self.blocks_free} are free"
            )
        table = self._tables.setdefault(request_id, array("i"))
        if not table and missing:
            start = self._place(blocks_for(max(tokens, tokens_expected)))
            self._reserved[request_id] = range(start, start + blocks_for(tokens_expected))
        for _ in range(missing):
            block = self._next_block(request_id)
            self._free.remove(block)
            table.append(block)
            if block not in self._reserved[request_id]:
                self._strays.add(block)

    def release(self, request_id: int) -> None:
        """Give the request's blocks back; a request that holds none is fine."""
        table = self._tables.pop(request_id, array("i"))
        self._free.update(table)
        self._strays.difference_update(table)
        self._reserved.pop(request_id, None)

    def shrink(self, request_id: int, tokens: int) -> None:
        """Let the request hold no more than its first `tokens` tokens."""
        table = self._tables.get(request_id, array("i"))
        given_back = table[blocks_for(tokens) :]
        del table[blocks_for(tokens) :]
        self._free.update(given_back)
        self._strays.difference_update(given_back)

    def table(self, request_id: int) -> "array[int]":
        """Block numbers of the request in token order, a copy: 32 bits each, as kernels read
        them."""
        return self._tables[request_id][:]

    def holders(self) -> frozenset[int]:
        """Requests that hold blocks."""
        return frozenset(self._tables)

    def _next_block(self, request_id: int) -> int:
        table = self._tables[request_id]
        wanted = table[-1] + 1 if table else self._reserved[request_id].start
        return wanted if wanted in self._free else self._place(1)

    def _place(self, blocks_wanted: int) -> int:
        """Start of the smallest unclaimed free run that fits, else of the largest, else any free
        block."""
        runs = self._unclaimed_runs()
        fitting = [run for run in runs if run[1] >= blocks_wanted]
        if fitting:
            return min(fitting, key=lambda run: (run[1], run[0]))[0]
        if runs:
            return max(runs, key=lambda run: (run[1], -run[0]))[0]
        return min(self._free)

    def _unclaimed_runs(self) -> list[tuple[int, int]]:
        """Maximal runs of free blocks that nobody claims, as (first block, length), ascending:
        what lies between claims. To look at each free block would take 5 ms for 16,000."""
        claims = [(claim.start, claim.stop) for claim in self._reserved.values() if claim]
        strays = [(block, block + 1) for block in self._strays]
        runs, end = [], 0
        for start, stop in sorted([*claims, *strays, (self.blocks_total, self.blocks_total)]):
            if start > end:
                runs.append((end, start - end))
            end = max(end, stop)
        return runs


@dataclass(slots=True)
class KvLedger:
    """The counting half of `KvBlocks`."""

    blocks_total: int
    state_slots: int | None = None
    """Requests whose states there is room for at a time; None: requests have no states."""
    blocks_free: int = field(init=False)
    """Blocks that belong to nobody."""
    _held: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.blocks_total < 1:
            raise ValueError(f"a ring needs at least one KV block, got {self.blocks_total}")
        if self.state_slots is not None and self.state_slots < 1:
            raise ValueError(f"a ring needs at least one state slot, got {self.state_slots}")
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

    @property
    def requests_max(self) -> int:
        """Requests that can hold anything at a time."""
        return min(self.blocks_total, self.state_slots or self.blocks_total)

    @property
    def has_slot(self) -> bool:
        """Whether one more request can be held, if blocks are free."""
        return self.state_slots is None or len(self._held) < self.state_slots

    def grow(self, request_id: int, tokens: int) -> None:
        """Let the request hold its first `tokens` tokens.

        Raises OutOfBlocks, and changes nothing, when too few blocks are free, or no slot for a new
        request.
        """
        if request_id not in self._held and not self.has_slot:
            raise OutOfBlocks(f"request {request_id} needs a state slot, none is free")
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
