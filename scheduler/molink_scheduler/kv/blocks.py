"""KV blocks, and whose each is: bookkeeping only, the tensors live in the executor.

Memory is cut into blocks of 16 tokens, as in vLLM, so that sequences grow without being moved.
Our attention kernels read blocks wherever they are; torch on a CPU, where they do not suit, is
fastest over one contiguous piece (a view, no gather). So a new sequence claims the smallest free
run that fits all that it may come to hold: others keep out of it while there is room elsewhere. A
claim is only a wish. Under pressure claimed blocks are given away, and the sequence continues in
any block, there merely slower. A buddy allocator was rejected: it rounds every sequence up to a
power of two.

A request whose prompt was cut may be *folded*: its first blocks, which some layers alone still
read, have room in the whole memory of fewer. In those layers block b has further numbers then: b,
and `fold_step` more for each further block that lies in it.

A block may have several users: requests that begin alike, and the cache, which holds blocks by the
numbers that the head gave them (`prefix_tree`). It is free again when the last user has gone. The
head alone decides what is cached; a stage does as it is told.

The head admits and preempts by numbers (`kv.ledger`); which block is whose, every stage decides for
itself. To place blocks in the head too cost a millisecond for every prompt.

Pure.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from molink_scheduler.kv.free_runs import FreeRuns
from molink_scheduler.number_runs import join_runs, number_runs

BLOCK_TOKENS = 16
"""vLLM's default: small enough that half a block of waste per sequence does not matter, large
enough for views."""


class OutOfBlocks(Exception):
    """Raised when a stage's blocks run out; the head admits so that this does not happen."""


def blocks_for(tokens: int) -> int:
    """Blocks that `tokens` tokens occupy."""
    return -(-tokens // BLOCK_TOKENS)


def folded_numbers(hosts: Sequence[int], blocks: int, step: int) -> "array[int]":
    """Numbers of so many folded blocks in the layers that read them, by those that they lie in."""
    numbers = [hosts[place % len(hosts)] + place // len(hosts) * step for place in range(blocks)]
    return array("i", numbers)


@dataclass(slots=True)
class KvBlocks:
    """The blocks of one stage, and for each live request its table: block numbers in token
    order."""

    blocks_total: int
    """Blocks that may be held at a time: all that there are, or fewer (`resize`)."""
    fold_step: int = 0
    """From one number of a block to its next, in layers that read folded ones."""
    blocks_free: int = field(init=False)
    """Blocks that belong to nobody and may be held."""
    _free: FreeRuns = field(init=False, default_factory=FreeRuns)
    """Blocks that nobody claims."""
    _tables: dict[int, "array[int]"] = field(init=False, default_factory=dict)
    _claims: dict[int, range] = field(init=False, default_factory=dict)
    """Free blocks that a request goes on in."""
    _users: "array[int]" = field(init=False)
    """Number of users of each block."""
    _cached: dict[int, int] = field(init=False, default_factory=dict)
    """Blocks that the cache holds, by its numbers."""
    _is_cached: bytearray = field(init=False)
    """Flag of each block: 1 when it is cached, else 0."""
    _idle: int = field(init=False, default=0)
    """Blocks that only the cache uses."""
    _folded: dict[int, tuple[int, int]] = field(init=False, default_factory=dict)
    """First blocks of each request that was folded, and in how many blocks it has them."""
    _lost: list[range] = field(init=False, default_factory=list)
    """Blocks whose place is gone for good."""

    def __post_init__(self) -> None:
        if self.blocks_total < 1:
            raise ValueError(f"a stage needs at least one KV block, got {self.blocks_total}")
        self.blocks_free = self.blocks_total
        self._free.add(range(self.blocks_total))
        self._users = array("i", bytes(4 * self.blocks_total))
        self._is_cached = bytearray(self.blocks_total)

    @property
    def tokens_used(self) -> int:
        """Tokens in blocks that requests use, the unused rest of last blocks included."""
        return (self.blocks_total - self.blocks_free - self._idle) * BLOCK_TOKENS

    @property
    def tokens_cached(self) -> int:
        """Tokens in blocks that the cache holds, in use or not."""
        return len(self._cached) * BLOCK_TOKENS

    @property
    def tokens_capacity(self) -> int:
        """Tokens that all blocks hold."""
        return self.blocks_total * BLOCK_TOKENS

    def resize(self, blocks: int) -> None:
        """Let so many blocks be held at a time. Those beyond all that there were are a further
        range of numbers, free ones; of fewer any may be in use.

        Raises ValueError, and changes nothing, where more are held.
        """
        if (held := self.blocks_total - self.blocks_free) > blocks:
            raise ValueError(f"{held} KV blocks are held, which are not to be given back")
        if further := range(len(self._users), blocks):
            self._free.add(further)
            self._users.extend(bytes(len(further)))
            self._is_cached.extend(bytes(len(further)))
        self.blocks_free, self.blocks_total = blocks - held, blocks

    def lose(self, blocks: range) -> None:
        """The place of these blocks is gone for good, with what they held. Who uses one goes on
        only until it is released or dropped."""
        for request_id, claim in self._claims.items():
            self._free.add(claim)
            self._claims[request_id] = range(0)
        before = self._free.blocks
        for run in [*self._free.runs()]:
            if both := range(max(run.start, blocks.start), min(run.stop, blocks.stop)):
                self._free.take(run)
                self._free.add(range(run.start, both.start))
                self._free.add(range(both.stop, run.stop))
        self._lost.append(blocks)
        self.blocks_total -= len(blocks)
        self.blocks_free -= before - self._free.blocks

    def lost_requests(self) -> frozenset[int]:
        """Requests that hold blocks whose place is gone."""
        return frozenset(
            one for one, table in self._tables.items() if any(map(self._is_lost, table))
        )

    def _is_lost(self, block: int) -> bool:
        return any(block in blocks for blocks in self._lost)

    def blocks_missing(self, request_id: int, tokens: int) -> int:
        """Blocks that `grow` would take from the free ones."""
        held = len(self._tables.get(request_id, ())) + self._spared(request_id)
        return max(0, blocks_for(tokens) - held)

    def begin(self, request_id: int, numbers: Iterable[int]) -> None:
        """Let a request that holds nothing begin with cached blocks, its first ones.

        Raises KeyError, and changes nothing, for a number that the cache does not hold.
        """
        table = array("i", [self._cached[number] for number in numbers])
        for block in table:
            self._idle -= self._users[block] == 1
            self._users[block] += 1
        self._tables[request_id] = table

    def adopt(self, request_id: int, numbers: Iterable[int]) -> None:
        """Let a request go on from cached blocks that the cache had lacked: it holds their KV as
        its first blocks, which the cache holds under these numbers from now on. Raises KeyError
        where it lacks others behind them."""
        table = self._tables[request_id]
        for place, number in enumerate(numbers):
            if place >= len(table):
                block = self._cached[number]
                self._idle -= self._users[block] == 1
                self._users[block] += 1
                table.append(block)
            elif number not in self._cached:
                self.keep(request_id, place, range(number, number + 1))

    def grow(self, request_id: int, tokens: int, tokens_expected: int = 0) -> None:
        """Let the request hold its first `tokens` tokens; `tokens_expected` guides where a new one
        is placed.

        Raises OutOfBlocks, and changes nothing, when too few blocks are free.
        """
        missing = self.blocks_missing(request_id, tokens)
        if missing > self.blocks_free:
            raise OutOfBlocks(
                f"request {request_id} needs {missing} more blocks, {self.blocks_free} are free"
            )
        table = self._tables.setdefault(request_id, array("i"))
        if missing and request_id not in self._claims:
            self._claim(request_id, blocks_for(max(tokens, tokens_expected)) - len(table))
        for _ in range(missing):
            block = self._next_block(request_id, table)
            self._users[block] = 1
            table.append(block)
        self.blocks_free -= missing

    def fold(self, request_id: int, blocks: int, into: int) -> tuple["array[int]", "array[int]"]:
        """Let the request have its first blocks in fewer: those that it had, and those in which
        they lie from now on, its own as far as it has some.

        Raises OutOfBlocks, and changes nothing, when too few blocks are free.
        """
        table, before = self._tables[request_id], self._tables[request_id][:blocks]
        hosts = array("i", [block for block in before if self._users[block] == 1][:into])
        if (missing := into - len(hosts)) > self.blocks_free:
            raise OutOfBlocks(f"{missing} blocks are to take folded ones, too few are free")
        left = frozenset(before).difference(hosts)
        for _ in range(missing):
            hosts.append(block := self._next_block(request_id, hosts))
            self._users[block] = 1
        self.blocks_free -= missing
        self._leave(left)
        self._tables[request_id], self._folded[request_id] = hosts + table[blocks:], (blocks, into)
        return before, hosts

    def keep(self, request_id: int, first_block: int, numbers: range) -> None:
        """Cache blocks of a request, from its `first_block`-th on, under these numbers."""
        table = self._tables[request_id]
        for place, number in enumerate(numbers, first_block):
            block = self._cached[number] = table[place]
            self._is_cached[block] = 1
            self._users[block] += 1

    def drop(self, numbers: Iterable[int]) -> None:
        """Cache these no longer; whoever uses their blocks goes on with them.

        Raises KeyError for a number that the cache does not hold.
        """
        blocks = [self._cached.pop(number) for number in numbers]
        for block in blocks:
            self._is_cached[block] = 0
            self._idle -= self._users[block] == 1
        self._leave(blocks)

    def cached_numbers(self) -> frozenset[int]:
        """Numbers of all cached blocks whose place is not gone."""
        return frozenset(one for one, block in self._cached.items() if not self._is_lost(block))

    def has(self, number: int) -> bool:
        """Whether the cache holds a block under this number."""
        return number in self._cached

    def is_here(self, number: int) -> bool:
        """Whether a block that the cache holds can be copied out."""
        return number in self._cached

    def places(self, numbers: Iterable[int]) -> list[int]:
        """Blocks that the cache holds under these numbers.

        Raises KeyError for a number that the cache does not hold.
        """
        return [self._cached[number] for number in numbers]

    def bring_back(self, numbers: Iterable[int]) -> list[int]:
        """Let the cache hold a free block under each of these numbers, which it does not hold: the
        blocks, to be filled.

        Raises OutOfBlocks, and changes nothing, when too few blocks are free.
        """
        wanted = list(numbers)
        if len(wanted) > self.blocks_free:
            raise OutOfBlocks(f"{len(wanted)} blocks come back, {self.blocks_free} are free")
        blocks: list[int] = []
        while len(blocks) < len(wanted):
            run = self._free.fit(len(wanted) - len(blocks))[: len(wanted) - len(blocks)]
            self._free.take(run)
            blocks += run or [self._claimed_by_another()]
        for number, block in zip(wanted, blocks, strict=True):
            self._cached[number] = block
            self._users[block] = self._is_cached[block] = 1
        self.blocks_free -= len(blocks)
        self._idle += len(blocks)
        return blocks

    def drop_all(self) -> None:
        """Drop all cached blocks; who uses one goes on with it."""
        self.drop(list(self._cached))

    def release(self, request_id: int) -> None:
        """Give the request's blocks back; a request that holds none is fine."""
        self._folded.pop(request_id, None)
        claim = self._claims.pop(request_id, range(0))
        self._free.add(claim)
        self._leave(self._tables.pop(request_id, ()))

    def shrink(self, request_id: int, tokens: int) -> None:
        """Let the request hold no more than its first `tokens` tokens."""
        table = self._tables.get(request_id, array("i"))
        given_back = table[blocks_for(tokens) :]
        del table[blocks_for(tokens) :]
        self._leave(given_back)

    def table(self, request_id: int) -> "array[int]":
        """Block numbers of the request in token order, a copy: 32 bits each, as kernels read
        them."""
        return self._tables[request_id][:]

    def whole_table(self, request_id: int) -> "array[int]":
        """The same as layers read it that keep all tokens, also of a request that was folded."""
        table, (blocks, into) = self.table(request_id), self._folded.get(request_id, (0, 0))
        return folded_numbers(table[:into], blocks, self.fold_step) + table[into:]

    def written(self, request_id: int, start: int, end: int) -> "array[int]":
        """Blocks in which these tokens of a request stand, none of which was folded."""
        spared = self._spared(request_id)
        return self._tables[request_id][start // BLOCK_TOKENS - spared : blocks_for(end) - spared]

    def holders(self) -> frozenset[int]:
        """Requests that hold blocks."""
        return frozenset(self._tables)

    def free_runs(self) -> list[tuple[int, int]]:
        """Blocks that belong to nobody, as (first block, how many), ascending."""
        claims = (claim for claim in self._claims.values() if claim)
        runs = sorted((*self._free.runs(), *claims), key=lambda run: run.start)
        return [(run.start, len(run)) for run in join_runs(runs)]

    def _spared(self, request_id: int) -> int:
        blocks, into = self._folded.get(request_id, (0, 0))
        return blocks - into

    def _claim(self, request_id: int, blocks: int) -> None:
        """The smallest run that fits, else the largest."""
        self._claims[request_id] = claim = self._free.fit(blocks)
        self._free.take(claim)

    def _next_block(self, request_id: int, table: "array[int]") -> int:
        if claim := self._claims[request_id]:
            self._claims[request_id] = claim[1:]
            return claim.start
        if not self._free.blocks:
            return self._claimed_by_another()
        behind = table[-1] + 1 if table else -1
        block = behind if self._free.starts_at(behind) else self._free.fit(1).start
        self._free.take(range(block, block + 1))
        return block

    def _claimed_by_another(self) -> int:
        """The last block of the largest claim."""
        holder = max(self._claims, key=lambda one: len(self._claims[one]))
        claim = self._claims[holder]
        self._claims[holder] = claim[:-1]
        return claim[-1]

    def _leave(self, blocks: Iterable[int]) -> None:
        """Take one user off each of these blocks."""
        free = []
        for block in blocks:
            self._users[block] -= 1
            if not self._users[block]:
                free += [] if self._is_lost(block) else [block]
            elif self._users[block] == 1:
                self._idle += self._is_cached[block]
        self.blocks_free += len(free)
        for run in number_runs(sorted(free)):
            self._add_free(run)

    def _add_free(self, run: range) -> None:
        """Take back blocks that nobody uses any more."""
        self._free.add(run)
