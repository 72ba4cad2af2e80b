"""What all stages of a ring cache, as the head decides it: the ring's table of cached blocks.

All stages hold the same chains without ever talking about it: they do as the head's changes say,
which travel in the stream of releases. A block has a number, which is never given twice; each stage
knows where its block of a number is (`block_table`). What is cached and in nobody's use counts as
free. It is dropped when somebody needs room, or goes to a lower tier that has some, a tier at a
time. Stages are told in this order, and always of the lowest tier first: there is room for what
comes before it comes.

A ring that caches nothing has an empty table. Where layers keep states, a chain is of use only up
to a block behind which a snapshot of them was kept.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain, groupby

from molink_scheduler.kv.changes import (
    AwayBlocks,
    CacheChange,
    DropBlocks,
    FetchBlocks,
    LowerBlocks,
    RetainBlocks,
    Runs,
    TakeBlocks,
    cached_runs,
)
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.prefix_tree import CachedPrefix
from molink_scheduler.kv.snapshots import SnapshotDirectory
from molink_scheduler.kv.tiered_tree import TieredTree
from molink_scheduler.kv.tiers import CACHE_RUNS_MAX, DEVICE, FILE, HOST, CacheTiers
from molink_scheduler.number_runs import cut_runs, join_runs, named_runs

ROOM_AHEAD = 1 / 64
"""Least share of a full ring that is made free at once: else each block that an answer grows by is
a message to every stage of what was dropped for it, and lies apart from the one before."""


@dataclass(slots=True)
class RingCache:
    """Table of a ring's cached blocks."""

    ledger: KvLedger
    """Count of the blocks in device memory, of requests and of the cache."""
    tiers: CacheTiers = field(default_factory=CacheTiers)
    """Room below the devices' memory."""
    is_on: bool = True
    """Whether anything is cached at all."""
    states: SnapshotDirectory | None = None
    """Snapshots of states behind blocks; None: layers keep no states."""
    before: TieredTree | None = None
    """Chains of the ring's epoch before, until it is said what of them stays; None: nothing, or it
    was said."""
    tree: TieredTree = field(default_factory=TieredTree)
    """Chains that are cached."""
    _moves: list[tuple[int, list[range]]] = field(init=False, default_factory=list)
    """Blocks that go to a lower tier, and stages are not told of yet, in order: the tier, or
    DEVICE for those that are dropped, and their numbers."""
    _begun: list[FetchBlocks] = field(init=False, default_factory=list)
    """Fetches that stages are not told of yet."""

    @classmethod
    def of(
        cls,
        ledger: KvLedger,
        tiers: CacheTiers | None,
        before: TieredTree | None = None,
        *,
        is_on: bool = True,
        states_max: int | None = None,
    ) -> "RingCache":
        """Table of a ring in which nothing is cached yet. `before`: chains that may stay;
        `states_max`: snapshots that there is room for, where layers keep states."""
        if not is_on or states_max is not None:
            before = None
        states = None if states_max is None or not is_on else SnapshotDirectory(states_max)
        return cls(ledger, tiers or CacheTiers(), is_on, states, before)

    @staticmethod
    def chains_of(cache: "RingCache | None") -> TieredTree:
        """Chains of a ring that may stay in its next epoch; None: of a head that knows of none."""
        if cache is None:
            return TieredTree()
        return cache.tree if cache.before is None else cache.before

    def __post_init__(self) -> None:
        if self.before is not None:
            self.tree = self.before.retained(_none)  # No number is given twice.

    @property
    def blocks_droppable(self) -> int:
        """Blocks in device memory that may leave it."""
        return self.tree.blocks_droppable

    # -- what is there --------------------------------------------------------------------------

    def match(self, salt: str, tokens: bytes, blocks_max: int) -> CachedPrefix:
        """The cached beginning of some tokens, in device memory, that a request can begin with."""
        found = self.tree.find(salt, tokens, blocks_max)
        if self.states is None or not found.blocks:
            return found
        named = chain.from_iterable(self.tree.numbers(found)[:CACHE_RUNS_MAX])
        return self.tree.find(salt, tokens, self.states.blocks_usable([*named]))

    def away(self, salt: str, tokens: bytes, blocks_max: int) -> tuple[int, int]:
        """Blocks behind a beginning in device memory that are in host memory, and in the file;
        none where some are on their way already."""
        runs = self.tree.away(self.tree.find(salt, tokens, blocks_max, FILE))
        if any(is_fetched for _, _, is_fetched in runs):
            return 0, 0
        host, file = (sum(run[1] for run in runs if run[0] == tier) for tier in (HOST, FILE))
        return host, file

    def blocks_beside(self, prefix: CachedPrefix) -> int:
        """Blocks that may leave device memory while this prefix stays."""
        return self.tree.blocks_droppable - self.tree.unheld_blocks(prefix)

    # -- what comes and goes --------------------------------------------------------------------

    def keep(self, salt: str, tokens: bytes, pinned: int | None) -> tuple[int, range] | None:
        """Cache the chain of these tokens, whose beginning is `pinned`: the node to unpin later,
        and the new numbers of its last blocks. What lower tiers hold of it was computed again.
        None: the same comes back right now for another request."""
        again = range(0)
        if away := self.tree.away(self.tree.find(salt, tokens, lowest=FILE)):
            if any(is_fetched for _, _, is_fetched in away):
                return None
            old, again = self.tree.renew(salt, tokens)
            self._dropped(old)
        pinned, numbers = self.tree.extend(salt, tokens, pinned)
        return pinned, range(numbers.start - len(again), numbers.stop)

    def leave(self, pinned: int, *, forget: bool) -> None:
        """A request uses its chain no more; `forget` it with all that nobody else uses."""
        self.tree.unpin(pinned)
        if forget:
            dropped = self.tree.drop_chain(pinned)
            self.ledger.drop(sum(map(len, dropped)))
            self._dropped(dropped)

    def make_room(self, blocks: int, owner: str) -> None:
        """Have so many blocks free in device memory, as far as what is cached can leave it."""
        short = blocks - self.ledger.blocks_free
        if short <= 0:
            return
        before, ahead = self.tree.blocks, int(ROOM_AHEAD * self.ledger.blocks_total)
        self._moves += self.tree.put_down(self.tiers, DEVICE, max(short, ahead), owner)
        self.ledger.drop(before - self.tree.blocks)

    def clear(self) -> None:
        """Drop all that no request uses, and let nobody find the rest."""
        if self.before is not None:
            self.before = self.before.retained(_none)
        before = self.tree.blocks
        for tier in (FILE, HOST, DEVICE):
            self._dropped(self.tree.drop(self.tree.blocks_in[tier], tier))
        self.ledger.drop(before - self.tree.blocks)
        self.tree.hide()

    def retain(self, change: RetainBlocks) -> RetainBlocks | None:
        """Cache what all stages have kept from the epoch before, where the directory has it too,
        as far as there is room beside the requests that go on: what all stages are told. None: it
        was said before."""
        if self.before is None:
            return None
        tree, self.before = self.before.retained(change.keeps), None
        tree.drop(max(0, tree.blocks - self.ledger.blocks_free))
        for tier in (FILE, HOST):
            tree.drop(max(0, tree.blocks_in[tier] - self.tiers.capacity(tier)), tier)
        told = _all_of(tree, change.away.directory)
        while not told.names(sum(tree.blocks_in)):
            tree = tree.retained(told.keeps)
            told = _all_of(tree, change.away.directory)
        self.tree = tree
        self.ledger.bring_back(tree.blocks)
        return told

    def take_changes(self) -> list[CacheChange]:
        """Changes that stages must hear of before the room that was made is planned with."""
        changes: list[CacheChange] = []
        for tier, moved in groupby(self._moves, key=lambda move: move[0]):
            runs = named_runs(join_runs(run for _, some in moved for run in some))
            parts = range(0, len(runs), CACHE_RUNS_MAX)
            changes += [_moved(tier, runs[at : at + CACHE_RUNS_MAX]) for at in parts]
        changes += self._begun
        self._moves.clear()
        self._begun.clear()
        return changes

    # -- what comes back ------------------------------------------------------------------------

    def fetchable(
        self, salt: str, tokens: bytes, near_blocks: int, wanted: int
    ) -> tuple[CachedPrefix, list[range]]:
        """The chain up to `wanted` blocks behind those that are near, as far as one message names
        them, and the numbers of those that are away."""
        prefix = self.tree.find(salt, tokens, near_blocks + wanted, FILE)
        numbers = cut_runs(self.tree.numbers(prefix), near_blocks)[1][:CACHE_RUNS_MAX]
        blocks = sum(map(len, numbers))
        return self.tree.find(salt, tokens, near_blocks + blocks, FILE), numbers

    def fetch(self, prefix: CachedPrefix, change: FetchBlocks, owner: str) -> int:
        """Begin to bring back the blocks of a chain: the node that is held until they are there."""
        blocks, node = sum(count for _, count in change.runs), self.tree.pin(prefix)
        self.make_room(blocks, owner)
        self.ledger.bring_back(blocks)
        self._begun.append(change)
        return node

    def take(self, salt: str, tokens: bytes, change: TakeBlocks, owner: str) -> tuple[int, int]:
        """Begin to take over blocks of these tokens, all behind those in device memory, as a change
        says that names none yet: the node that is held until they are there, and how many."""
        node, numbers, dropped = self.tree.expect(salt, tokens)
        self._dropped(dropped)
        self.make_room(len(numbers), owner)
        self.ledger.bring_back(len(numbers))
        self._begun.append(replace(change, runs=((numbers.start, len(numbers)),)))
        return node, len(numbers)

    def arrived(self, node: int, blocks: int, asked: int) -> None:
        """So many blocks of a fetch are in device memory; the others that were asked for are
        lost."""
        if dropped := self.tree.fetched(node, blocks):
            self.ledger.drop(asked - blocks)
            self._moves.append((DEVICE, dropped))

    def _dropped(self, numbers: Iterable[range]) -> None:
        named = list(numbers)
        if named:
            self._moves.append((DEVICE, named))
        if self.states is not None:
            self.states.dropped(chain.from_iterable(named))


def _none(_: int, __: int) -> bool:
    return False


def _all_of(tree: TieredTree, directory: int) -> RetainBlocks:
    """All blocks of a tree, as far as one message names them."""
    near, host, file = (
        cached_runs(chain.from_iterable(tree.numbers_in(tier))) for tier in (DEVICE, HOST, FILE)
    )
    return RetainBlocks.of(near, AwayBlocks(host, file, directory))


def _moved(tier: int, runs: Runs) -> CacheChange:
    """Runs of blocks that go to a lower tier; DEVICE: nowhere."""
    return DropBlocks(runs) if tier == DEVICE else LowerBlocks(tier, runs)
