"""The head's book of the ring's KV: who holds how much of it, and what is cached.

Blocks of a request are cached once all of it up to them has come out of the tail: then every stage
has computed them. So all stages hold the same chains without ever talking about it; they do as the
head's orders say, which travel in the stream of releases. What is cached and in nobody's use counts
as free: it is dropped when somebody needs room, and never the reason for a preemption.

A request that begins like another one whose prompt is under way had better wait for that than
compute the same again (`awaits`).

Where stages have room below their devices' memory, what is dropped goes there first, a tier at a
time, and comes back when a request begins with it (`fetches`). Stages are told in this order, and
always of the lowest tier first: there is room for what comes before it comes.

Where layers keep states, a request begins only where a snapshot of them was kept (`snapshots`).

Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby

from molink_scheduler.batch import KeptState, Span
from molink_scheduler.head.fetches import Fetch, Fetches
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.head.snapshots import Snapshots
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for, cut_runs, join_runs, named_runs
from molink_scheduler.kv.changes import (
    CacheChange,
    DropBlocks,
    FetchBlocks,
    Fetched,
    KeepBlocks,
    KeptBlocks,
    LowerBlocks,
    RetainBlocks,
    Runs,
)
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.prefix_tree import CachedPrefix, common_blocks
from molink_scheduler.kv.snapshots import SnapshotDirectory
from molink_scheduler.kv.tiered_tree import TieredTree
from molink_scheduler.kv.tiers import (
    CACHE_RUNS_MAX,
    DEVICE,
    FILE,
    HOST,
    CacheTiers,
    answer_s,
    blocks_worth_fetching,
)
from molink_scheduler.resume import cached_runs
from molink_scheduler.token_ids import TOKEN_BYTES

BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES

ROOM_AHEAD = 1 / 64
"""Least share of a full ring that is made free at once: else each block that an answer grows by is
a message to every stage of what was dropped for it, and lies apart from the one before."""


@dataclass(slots=True)
class KvBook:
    """Book of one ring's KV."""

    ledger: KvLedger
    tree: TieredTree | None = None
    """Directory of what is cached; None: nothing is."""
    fetches: Fetches = field(default_factory=lambda: Fetches(CacheTiers()))
    """Fetches of blocks from lower tiers."""
    snapshots: Snapshots | None = None
    """Snapshots of layers that keep states; None: there are none, or nothing is cached."""
    before: TieredTree | None = None
    """Directory of the ring's epoch before, until it is said what of it stays; None: nothing, or it
    was said."""
    refills: bool = False
    """Whether a fresh stage may lack cached blocks. It is sent those that a batch's newcomer begins
    with before that batch, so two such newcomers do not share one."""
    _moves: list[tuple[int, list[range]]] = field(init=False, default_factory=list)
    """Blocks that go to a lower tier, and stages are not told of yet, in order: the tier, or
    DEVICE for those that are dropped, and their numbers."""
    _begun: list[FetchBlocks] = field(init=False, default_factory=list)
    """Fetches that stages are not told of yet."""

    @classmethod
    def of(cls, ring: RingTerms, before: TieredTree | None = None) -> "KvBook":
        """Book of a ring in which nothing is held or cached, and `before` may stay."""
        ledger = KvLedger(blocks_for(ring.kv_tokens_capacity), ring.state_slots)
        fetches = Fetches(ring.tiers or CacheTiers())
        if not (ring.prefix_cache and ring.caches_states):
            return cls(ledger, None, fetches)
        if ring.state_slots is not None:
            snapshots = Snapshots(SnapshotDirectory(ring.state_snapshots))
            return cls(ledger, TieredTree(), fetches, snapshots)
        if before is None:
            return cls(ledger, TieredTree(), fetches)
        tree = before.retained(lambda number: False)  # No number is given twice.
        return cls(ledger, tree, fetches, before=before, refills=True)

    @property
    def directory(self) -> TieredTree | None:
        """Directory of the cached blocks that may stay in the next epoch."""
        return self.tree if self.before is None else self.before

    def retain(self, change: RetainBlocks) -> RetainBlocks | None:
        """Cache what all survivors have kept from the epoch before, as far as there is room beside
        the requests that go on: what all stages are told. None: it was said before."""
        if self.before is None:
            return None
        tree, self.before = self.before.retained(change.__contains__), None
        tree.drop(max(0, tree.blocks - self.ledger.blocks_free))
        while len(runs := cached_runs(chain.from_iterable(tree.all_numbers()))) == CACHE_RUNS_MAX:
            tree = tree.retained(RetainBlocks(runs[:-1]).__contains__)
        self.tree = tree
        self.ledger.bring_back(tree.blocks)
        return RetainBlocks(runs)

    @property
    def blocks_available(self) -> int:
        """Blocks that a request could get."""
        return self.ledger.blocks_free + (0 if self.tree is None else self.tree.blocks_droppable)

    def prefix(self, sequence: Sequence) -> CachedPrefix | None:
        """The cached beginning of a request that holds nothing. At least its last token is left to
        compute, and all of a prompt whose own tokens are to be scored."""
        if (
            self.tree is None
            or sequence.request.sampling.prompt_logprobs is not None
            or sequence.kept_tokens
        ):
            return None
        blocks_max = (len(sequence.known) - 1) // BLOCK_TOKENS
        salt, packed = sequence.request.cache_salt, sequence.packed
        found = self.tree.find(salt, packed, blocks_max)
        if self.snapshots is not None and found.blocks:
            named = chain.from_iterable(self.tree.numbers(found)[:CACHE_RUNS_MAX])
            usable = self.snapshots.directory.blocks_usable([*named])
            found = self.tree.find(salt, packed, usable)
        return found if found.blocks else None

    def fits(self, sequence: Sequence, headroom_blocks: int) -> bool:
        """Whether a request that holds nothing can hold its known tokens, and leave some room."""
        needed, left = blocks_for(len(sequence.known)), self.blocks_available
        if (prefix := self.prefix(sequence)) is not None and self.tree is not None:
            needed -= prefix.blocks
            left -= self.tree.unheld_blocks(prefix)
        return self.ledger.has_slot and needed + headroom_blocks <= left

    def shared_blocks(self, sequence: Sequence, holding: Iterable[Sequence]) -> int:
        """Blocks that are counted more than once where each request is counted for itself: those
        of a request that holds nothing yet, and of all that do."""
        if self.tree is None:
            return 0
        counted = sum(self.ledger.shared_blocks(one.request_id) for one in holding)
        prefix = self.prefix(sequence)
        again = 0 if prefix is None else prefix.blocks - self.tree.unheld_blocks(prefix)
        return max(0, counted - self.tree.blocks_held) + again

    def begin(self, sequence: Sequence, under_way: Iterable[Sequence] = ()) -> None:
        """Let a request hold its known tokens, the first ones in blocks that are cached; prompts
        `under_way` are being computed."""
        prefix = self.prefix(sequence)
        partings = self._partings(sequence, under_way)
        numbers: list[range] = []
        if prefix is not None and self.tree is not None:
            numbers = self.tree.numbers(prefix)
            shared = named_runs(numbers[:CACHE_RUNS_MAX])
            sequence.begin_cached(shared, self.tree.pin(prefix))
            self.ledger.begin(sequence.request_id, sequence.cached_blocks)
        if self.snapshots is not None:
            self.snapshots.begin(sequence, numbers[-1][-1] if numbers else None, partings)
        self.grow(sequence, len(sequence.known))

    def _partings(self, sequence: Sequence, under_way: Iterable[Sequence]) -> list[int]:
        """Blocks behind which a prompt parts from what is cached, and from prompts under way."""
        if self.tree is None or self.snapshots is None:
            return []
        others = [one for one in under_way if one is not sequence]
        beside = [one for one in others if one.group == sequence.group and one.is_cached]
        blocks_max = (len(sequence.known) - 1) // BLOCK_TOKENS
        cached = self.tree.find(sequence.request.cache_salt, sequence.packed, blocks_max).blocks
        return [cached, *(_common_blocks(sequence, other) for other in beside)]

    def states_kept(
        self, spans: Iterable[Span], sequences: Mapping[int, Sequence]
    ) -> tuple[KeptState, ...]:
        """States that stages keep behind the spans that leave now."""
        if self.snapshots is None:
            return ()
        ordered = (self.snapshots.ordered(sequences[one.request_id], one) for one in spans)
        return tuple(kept for kept in ordered if kept is not None)

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Let a request hold its first `tokens` tokens, for which there is room."""
        self._make_room(self.ledger.blocks_missing(sequence.request_id, tokens), sequence.owner)
        self.ledger.grow(sequence.request_id, tokens)

    def clear(self, sequences: Iterable[Sequence]) -> None:
        """Drop all that no request uses, and let nobody find the rest: it goes with the last of the
        `sequences` that uses it. Of those that hold KV no more is cached."""
        if self.before is not None:
            self.before = self.before.retained(lambda number: False)
        if self.tree is not None:
            before = self.tree.blocks
            for tier in (FILE, HOST, DEVICE):
                self._note_dropped(self.tree.drop(self.tree.blocks_in[tier], tier))
            self.ledger.drop(before - self.tree.blocks)
            self.tree.hide()
        for sequence in sequences:
            sequence.is_cached = not (sequence.admitted or sequence.kept_tokens)

    def _note_dropped(self, numbers: list[range]) -> None:
        if numbers:
            self._moves.append((DEVICE, numbers))
        if self.snapshots is not None:
            self.snapshots.directory.dropped(chain.from_iterable(numbers))

    def computed(self, sequence: Sequence) -> list[CacheChange]:
        """Cache what has come out of the tail, in whole blocks, and the states behind them."""
        changes = self._cache(sequence)
        if self.snapshots is not None and self.tree is not None:
            self.snapshots.returned(sequence)
            if sequence.states:
                blocks = sequence.cached_blocks if sequence.is_cached else 0
                found = self.tree.find(sequence.request.cache_salt, sequence.packed, blocks)
                self.snapshots.settle(sequence, [*chain.from_iterable(self.tree.numbers(found))])
        return changes

    def _cache(self, sequence: Sequence) -> list[CacheChange]:
        blocks = sequence.returned_tokens // BLOCK_TOKENS
        if self.tree is None or not sequence.admitted or blocks <= sequence.cached_blocks:
            return []
        if not sequence.is_cached or sequence.returned_tokens <= sequence.kept_tokens:
            return []  # Rows that were replayed have come out of no tail.
        salt, tokens = sequence.request.cache_salt, sequence.packed[: blocks * BLOCK_BYTES]
        again = range(0)
        if away := self.tree.away(self.tree.find(salt, tokens, lowest=FILE)):
            if any(is_fetched for _, _, is_fetched in away):
                return []  # The same comes back for another one.
            old, again = self.tree.renew(salt, tokens)
            self._note_dropped(old)
        sequence.pinned, numbers = self.tree.extend(salt, tokens, sequence.pinned)
        numbers, sequence.cached_blocks = range(numbers.start - len(again), numbers.stop), blocks
        if not numbers:
            return []
        self.ledger.keep(sequence.request_id, len(numbers))
        before, count = blocks - len(numbers), len(numbers)
        kept = KeptBlocks(sequence.request_id, before, numbers.start, count)
        return [KeepBlocks((kept,))]

    def release(self, sequence: Sequence) -> list[CacheChange]:
        """Take back what a request holds; what of it is computed stays cached."""
        changes = self.computed(sequence)
        if self.snapshots is not None:
            self.snapshots.release(sequence)
        if sequence.pinned is not None and self.tree is not None:
            self.tree.unpin(sequence.pinned)
            if not sequence.is_cached:
                dropped = self.tree.drop_chain(sequence.pinned)
                self.ledger.drop(sum(map(len, dropped)))
                self._note_dropped(dropped)
            sequence.pinned = None
        self.ledger.release(sequence.request_id)
        self.fetches.pace.forget(sequence.request_id)
        self.fetches.answers.request_ended()
        return changes

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

    # -- tiers ----------------------------------------------------------------------------------

    def begin_fetch(self, sequence: Sequence, now: float) -> bool:
        """Begin to bring back the blocks of a request that would be admitted now, if some are away
        and that is sooner than computing them."""
        if self.tree is None or sequence.was_fetched or self.fetches.is_full:
            return False
        near = self.prefix(sequence) or CachedPrefix()
        wanted, from_file = self._worth_fetching(sequence)
        if not wanted or wanted > self.ledger.blocks_free + self._unheld_beside(near):
            return False
        salt, packed = sequence.request.cache_salt, sequence.packed
        prefix = self.tree.find(salt, packed, near.blocks + wanted, FILE)
        numbers = cut_runs(self.tree.numbers(prefix), near.blocks)[1][:CACHE_RUNS_MAX]
        blocks = sum(map(len, numbers))
        node = self.tree.pin(self.tree.find(salt, packed, near.blocks + blocks, FILE))
        self._make_room(blocks, sequence.owner)
        self.ledger.bring_back(blocks)
        sequence.was_fetched = True
        expected_s = answer_s(from_file, self.fetches.tiers, self.fetches.pace.trip_s or 0.0)
        from_file = max(0, from_file - wanted + blocks)
        fetch = Fetch(sequence, node, blocks, from_file, now, expected_s)
        self._begun.append(self.fetches.begin(fetch, named_runs(numbers)))
        return True

    def fetched(self, fetched: Fetched, now: float) -> str | None:
        """So many blocks of a fetch are sure on every stage; why that cannot be, None: it can."""
        fetch = self.fetches.awaited(fetched.fetch_id)
        if fetch is None or fetched.blocks > fetch.blocks or self.tree is None:
            return f"nothing was to come back as fetch {fetched.fetch_id}, or less of it"
        if self.fetches.late.pop(fetched.fetch_id, None) is None:
            self._end_fetch(fetched, now)
        return None

    def give_up_fetches(self, now: float) -> bool:
        """Have those that are overdue computed instead; whether there were any."""
        under_way = self.fetches.under_way
        overdue = [one for one, fetch in under_way.items() if fetch.due_at <= now]
        for fetch_id in overdue:
            self.fetches.late[fetch_id] = under_way[fetch_id]
            self._end_fetch(Fetched(fetch_id, 0), now)
        return bool(overdue)

    def _end_fetch(self, fetched: Fetched, now: float) -> None:
        """End a fetch: so many of its blocks are cached in device memory, the others no more."""
        fetch = self.fetches.end(fetched.fetch_id, fetched.blocks, now)
        assert self.tree is not None, "nothing comes back where nothing is cached"
        if dropped := self.tree.fetched(fetch.node, fetched.blocks):
            self.ledger.drop(fetch.blocks - fetched.blocks)
            self._moves.append((DEVICE, dropped))

    def _worth_fetching(self, sequence: Sequence) -> tuple[int, int]:
        """Blocks behind a request's cached beginning that had better be brought back, and how many
        of them are in the file."""
        if (
            self.tree is None
            or sequence.request.sampling.prompt_logprobs is not None
            or sequence.kept_tokens
        ):
            return 0, 0
        blocks_max = (len(sequence.known) - 1) // BLOCK_TOKENS
        salt, packed = sequence.request.cache_salt, sequence.packed
        away = self.tree.away(self.tree.find(salt, packed, blocks_max, FILE))
        if any(is_fetched for _, _, is_fetched in away):
            return 0, 0
        host, file = (
            sum(blocks for where, blocks, _ in away if where == tier) for tier in (HOST, FILE)
        )
        fetches = self.fetches
        found = blocks_worth_fetching(host, file, fetches.tiers, fetches.pace, fetches.answers)
        return found, max(0, found - host)

    def _unheld_beside(self, prefix: CachedPrefix) -> int:
        """Cached blocks that may leave device memory while this prefix stays."""
        if self.tree is None:
            return 0
        return self.tree.blocks_droppable - self.tree.unheld_blocks(prefix)

    def _make_room(self, blocks: int, owner: str) -> None:
        """Have so many blocks free in device memory, as far as what is cached can leave it."""
        short = blocks - self.ledger.blocks_free
        if short <= 0 or self.tree is None:
            return
        before, ahead = self.tree.blocks, int(ROOM_AHEAD * self.ledger.blocks_total)
        self._moves += self.tree.put_down(self.fetches.tiers, DEVICE, max(short, ahead), owner)
        self.ledger.drop(before - self.tree.blocks)

    # -- the same at once -----------------------------------------------------------------------

    def awaits(self, sequence: Sequence, under_way: Iterable[Sequence]) -> bool:
        """Whether a prompt under way is about to be cached further than the request's beginning
        is now."""
        if self.tree is None or sequence.request.sampling.prompt_logprobs is not None:
            return False
        prefix = self.prefix(sequence)
        coming = [one.sequence for one in self.fetches.under_way.values()]
        return self.fetches.waits(sequence) or any(
            self._coming_blocks(sequence, other) > (0 if prefix is None else prefix.blocks)
            for other in [*coming, *(one for one in under_way if not one.stopping)]
            if other.group == sequence.group and other.is_cached
        )

    def _coming_blocks(self, sequence: Sequence, other: Sequence) -> int:
        """How many of its first blocks a request could begin with once another one is computed."""
        common = _common_blocks(sequence, other)
        return common if self.snapshots is None else self.snapshots.coming_blocks(other, common)


def _moved(tier: int, runs: Runs) -> CacheChange:
    """Runs of blocks that go to a lower tier; DEVICE: nowhere."""
    return DropBlocks(runs) if tier == DEVICE else LowerBlocks(tier, runs)


def _common_blocks(sequence: Sequence, other: Sequence) -> int:
    """Whole blocks of a waiting request that one under way is to compute as well."""
    blocks = min(len(sequence.known) - 1, len(other.known)) // BLOCK_TOKENS
    return common_blocks(sequence.packed[: blocks * BLOCK_BYTES], other.packed, BLOCK_BYTES)
