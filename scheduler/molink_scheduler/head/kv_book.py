"""The head's book of the ring's KV: who holds how much of it, and what is cached.

Blocks of a request are cached once all of it up to them has come out of the tail: then every stage
has computed them. What is cached where stands in the ring's table (`kv.ring_cache`); what it gives
up counts as free, and is never the reason for a preemption.

A request that begins like another one whose prompt is under way had better wait for that than
compute the same again (`awaits`). What lies in lower tiers comes back when a request begins with it
(`fetches`). Where layers keep states, a request begins only where a snapshot of them was kept
(`snapshots`).

Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from molink_scheduler.batch import KeptState, Span
from molink_scheduler.head.fetches import Fetches, prompt_of
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.head.snapshots import NoSnapshots, Snapshots
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.changes import CacheChange, FoldBlocks, KeepBlocks, KeptBlocks
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.prefix_tree import CachedPrefix
from molink_scheduler.kv.ring_cache import RingCache
from molink_scheduler.kv.tiers import CACHE_RUNS_MAX
from molink_scheduler.number_runs import named_runs
from molink_scheduler.token_ids import TOKEN_BYTES, common_blocks

BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES

NO_SNAPSHOTS = NoSnapshots()


@dataclass(slots=True)
class KvBook:
    """Book of one ring's KV."""

    ledger: KvLedger
    cache: RingCache
    """Table of what is cached."""
    fetches: Fetches
    """Fetches of blocks from lower tiers."""
    snapshots: Snapshots | NoSnapshots
    """Snapshots of layers that keep states."""
    refills: bool = False
    """Whether a fresh stage may lack cached blocks. It is sent those that a batch's newcomer begins
    with before that batch, so two such newcomers do not share one."""

    @classmethod
    def of(
        cls, ring: RingTerms, before: RingCache | None = None, *, chains_stay: bool = False
    ) -> "KvBook":
        """Book of a ring in which nothing is held or cached. `chains_stay`: what was cached
        `before`, in the ring's epoch before, may stay."""
        ledger = KvLedger(blocks_for(ring.kv_tokens_capacity), ring.slots, ring.folds)
        ledger.blocks_most = blocks_for(ring.tokens_most)
        cache = RingCache.of(
            ledger,
            ring.tiers,
            RingCache.chains_of(before) if chains_stay else None,
            is_on=ring.prefix_cache and ring.caches_states,
            states_max=None if ring.state_slots is None else ring.state_snapshots,
        )
        snapshots = NO_SNAPSHOTS if cache.states is None else Snapshots(cache.states)
        return cls(ledger, cache, Fetches(cache), snapshots, refills=cache.before is not None)

    @property
    def blocks_available(self) -> int:
        """Blocks that a request could get."""
        return self.ledger.blocks_free + self.cache.blocks_droppable

    def room_is_away(self, sequence: Sequence) -> bool:
        """Whether a request that waits may grow beyond what the ring counts with now. It would be
        preempted and admitted again without end, so it waits until more places are back."""
        needed = blocks_for(sequence.request.tokens_max)
        return needed > self.ledger.blocks_total and not sequence.is_kept

    def prefix(self, sequence: Sequence) -> CachedPrefix | None:
        """The cached beginning of a request that holds nothing. At least its last token is left to
        compute, and all of a prompt whose own tokens are to be scored."""
        if not _may_begin_cached(sequence):
            return None
        found = self.cache.match(*prompt_of(sequence))
        return found if found.blocks else None

    def fits(self, sequence: Sequence, headroom_blocks: int) -> bool:
        """Whether a request that holds nothing can hold its known tokens, and leave some room."""
        needed, left = blocks_for(len(sequence.known)), self.blocks_available
        if (prefix := self.prefix(sequence)) is not None:
            needed -= prefix.blocks
            left = self.ledger.blocks_free + self.cache.blocks_beside(prefix)
        return self.ledger.has_slot and needed + headroom_blocks <= left

    def shared_blocks(self, sequence: Sequence, holding: Iterable[Sequence]) -> int:
        """Blocks that are counted more than once where each request is counted for itself: those
        of a request that holds nothing yet, and of all that do."""
        tree = self.cache.tree
        counted = sum(self.ledger.shared_blocks(one.request_id) for one in holding)
        prefix = self.prefix(sequence)
        again = 0 if prefix is None else prefix.blocks - tree.unheld_blocks(prefix)
        return max(0, counted - tree.blocks_held) + again

    def begin(self, sequence: Sequence, under_way: Iterable[Sequence] = ()) -> None:
        """Let a request hold its known tokens, the first ones in blocks that are cached; prompts
        `under_way` are being computed."""
        prefix = self.prefix(sequence)
        partings = self._partings(sequence, under_way)
        numbers: list[range] = []
        if prefix is not None:
            numbers = self.cache.tree.numbers(prefix)
            shared = named_runs(numbers[:CACHE_RUNS_MAX])
            sequence.begin_cached(shared, self.cache.tree.pin(prefix))
            self.ledger.begin(sequence.request_id, sequence.cached_blocks)
        self.snapshots.begin(sequence, numbers[-1][-1] if numbers else None, partings)
        self.grow(sequence, len(sequence.known))

    def _partings(self, sequence: Sequence, under_way: Iterable[Sequence]) -> Iterator[int]:
        """Blocks behind which a prompt parts from what is cached, and from prompts under way."""
        others = [one for one in under_way if one is not sequence]
        beside = [one for one in others if one.group == sequence.group and one.is_cached]
        yield self.cache.tree.find(*prompt_of(sequence)).blocks
        for other in beside:
            yield _common_blocks(sequence, other)

    def states_kept(
        self, spans: Iterable[Span], sequences: Mapping[int, Sequence]
    ) -> tuple[KeptState, ...]:
        """States that stages keep behind the spans that leave now."""
        return self.snapshots.ordered(spans, sequences)

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Let a request hold its first `tokens` tokens, for which there is room."""
        missing = self.ledger.blocks_missing(sequence.request_id, tokens)
        self.cache.make_room(missing, sequence.owner)
        self.ledger.grow(sequence.request_id, tokens)

    def clear(self, sequences: Iterable[Sequence]) -> None:
        """Drop all that no request uses, and let nobody find the rest: it goes with the last of the
        `sequences` that uses it. Of those that hold KV no more is cached."""
        self.cache.clear()
        for sequence in sequences:
            sequence.is_cached = not (sequence.admitted or sequence.kept_tokens)

    def computed(self, sequence: Sequence) -> list[CacheChange]:
        """Cache what has come out of the tail, in whole blocks, and the states behind them."""
        changes = self._cache(sequence)
        if sequence.pinned is not None:
            self.cache.tree.wish(sequence.pinned, sequence.request.wishes)
        self.snapshots.returned(sequence)
        if sequence.states:
            blocks = sequence.cached_blocks if sequence.is_cached else 0
            tree = self.cache.tree
            found = tree.find(sequence.request.cache_salt, sequence.packed, blocks)
            self.snapshots.settle(sequence, [*chain.from_iterable(tree.numbers(found))])
        return [*changes, *self._fold(sequence)]

    def _fold(self, sequence: Sequence) -> list[CacheChange]:
        """Give back what a request needs no more that was cut and is all computed, so that nothing
        of it waits anywhere. Where room has to be made for that, stages hear of it first."""
        request_id, blocks = sequence.request_id, sequence.cut.whole_blocks
        into = self.ledger.folded_blocks(blocks)
        if into >= blocks or not sequence.is_computed or sequence.stopping:
            return []
        needed = self.ledger.blocks_to_fold(request_id, blocks, into)
        if sequence.spared_tokens or needed > self.blocks_available:
            return []
        self.cache.make_room(needed, sequence.owner)
        changes = [*self.cache.take_changes(), FoldBlocks(request_id, blocks, into)]
        self.ledger.fold(request_id, blocks, into)
        self._unpin(sequence)  # What is dropped by that follows.
        sequence.spared_tokens, sequence.is_cached = BLOCK_TOKENS * (blocks - into), False
        return changes

    def _unpin(self, sequence: Sequence) -> None:
        """A request uses what is cached of it no more."""
        if sequence.pinned is not None:
            self.cache.leave(sequence.pinned, forget=not sequence.is_cached)
            sequence.pinned = None

    def _cache(self, sequence: Sequence) -> list[CacheChange]:
        blocks = min(sequence.returned_tokens, sequence.shared_tokens) // BLOCK_TOKENS
        if not (self.cache.is_on and sequence.admitted) or blocks <= sequence.cached_blocks:
            return []
        if not sequence.is_cached or sequence.returned_tokens <= sequence.kept_tokens:
            return []  # Rows that were replayed have come out of no tail.
        salt, tokens = sequence.request.cache_salt, sequence.packed[: blocks * BLOCK_BYTES]
        if (kept_chain := self.cache.keep(salt, tokens, sequence.pinned)) is None:
            return []
        sequence.pinned, numbers = kept_chain
        sequence.cached_blocks = blocks
        if not numbers:
            return []
        self.ledger.keep(sequence.request_id, len(numbers))
        first = blocks - len(numbers)
        kept = KeptBlocks(sequence.request_id, first, numbers.start, len(numbers))
        return [KeepBlocks((kept,))]

    def release(self, sequence: Sequence) -> list[CacheChange]:
        """Take back what a request holds; what of it is computed stays cached."""
        changes = self.computed(sequence)
        self.snapshots.release(sequence)
        self._unpin(sequence)
        self.ledger.release(sequence.request_id)
        self.fetches.pace.forget(sequence.request_id)
        self.fetches.answers.request_ended()
        return changes

    def begin_fetch(self, sequence: Sequence, now: float) -> bool:
        """Begin to bring back the blocks of a request that would be admitted now, if some are away
        and that is sooner than computing them."""
        if sequence.was_fetched or self.fetches.is_full or not _may_begin_cached(sequence):
            return False
        near = self.prefix(sequence) or CachedPrefix()
        if self.snapshots is NO_SNAPSHOTS and self.fetches.take(sequence, near, now):
            return True
        return self.fetches.begin(sequence, near, now)

    # -- the same at once -----------------------------------------------------------------------

    def awaits(self, sequence: Sequence, under_way: Iterable[Sequence]) -> bool:
        """Whether a prompt under way is about to be cached further than the request's beginning
        is now."""
        if not self.cache.is_on or _needs_own_rows(sequence):
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
        return self.snapshots.coming_blocks(other, _common_blocks(sequence, other))


def _may_begin_cached(sequence: Sequence) -> bool:
    return not (_needs_own_rows(sequence) or sequence.kept_tokens)


def _needs_own_rows(sequence: Sequence) -> bool:
    """Whether all of its prompt is to be computed, as each token's probability is asked for."""
    return sequence.request.sampling.prompt_logprobs is not None


def _common_blocks(sequence: Sequence, other: Sequence) -> int:
    """Whole blocks of a waiting request that one under way is to compute as well."""
    tokens = min(len(sequence.known) - 1, sequence.shared_tokens, other.shared_tokens)
    blocks = tokens // BLOCK_TOKENS
    return common_blocks(sequence.packed[: blocks * BLOCK_BYTES], other.packed, BLOCK_BYTES)
