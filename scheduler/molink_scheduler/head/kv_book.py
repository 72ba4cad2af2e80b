"""The head's book of the ring's KV: who holds how much of it, and what is cached.

Blocks of a request are cached once all of it up to them has come out of the tail: then every stage
has computed them. So all stages hold the same chains without ever talking about it; they do as the
head's orders say, which travel in the stream of releases. What is cached and in nobody's use counts
as free: it is dropped when somebody needs room, and never the reason for a preemption.

A request that begins like another one whose prompt is under way had better wait for that than
compute the same again (`awaits`).

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from molink_scheduler.batch import CACHE_RUNS_MAX, CacheChange, KeptBlocks
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvLedger, blocks_for, number_runs
from molink_scheduler.kv.prefix_tree import TOKEN_BYTES, CachedPrefix, PrefixTree

__all__ = ["KvBook"]

BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES


@dataclass(slots=True)
class KvBook:
    """Book of one ring's KV."""

    ledger: KvLedger
    tree: PrefixTree | None = None
    """Directory of what is cached; None: nothing is."""
    _dropped: list[int] = field(init=False, default_factory=list)
    """Numbers of blocks that stages are not told of yet."""

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
        found = self.tree.find(sequence.request.cache_salt, sequence.packed, blocks_max)
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
        counted = sum(one.cached_blocks for one in holding)
        prefix = self.prefix(sequence)
        again = 0 if prefix is None else prefix.blocks - self.tree.unheld_blocks(prefix)
        return max(0, counted - self.tree.blocks_held) + again

    def begin(self, sequence: Sequence) -> None:
        """Let a request hold its known tokens, the first ones in blocks that are cached."""
        prefix = self.prefix(sequence)
        if prefix is not None and self.tree is not None:
            runs = number_runs(self.tree.numbers(prefix))[:CACHE_RUNS_MAX]
            shared = tuple((run.start, len(run)) for run in runs)
            sequence.begin_cached(shared, self.tree.pin(prefix))
            self.ledger.begin(sequence.request_id, sequence.cached_blocks)
        self.grow(sequence.request_id, len(sequence.known))

    def grow(self, request_id: int, tokens: int) -> None:
        """Let a request hold its first `tokens` tokens, for which there is room."""
        short = self.ledger.blocks_missing(request_id, tokens) - self.ledger.blocks_free
        if short > 0 and self.tree is not None:
            self._note_dropped(self.tree.drop(short))
        self.ledger.grow(request_id, tokens)

    def clear(self, sequences: Iterable[Sequence]) -> None:
        """Drop all that no request uses, and let nobody find the rest: it goes with the last of the
        `sequences` that uses it. Of those that hold KV no more is cached."""
        if self.tree is not None:
            self._note_dropped(self.tree.drop(self.tree.blocks_droppable))
            self.tree.hide()
        for sequence in sequences:
            sequence.is_cached = not (sequence.admitted or sequence.kept_tokens)

    def _note_dropped(self, numbers: list[int]) -> None:
        self.ledger.drop(len(numbers))
        self._dropped += numbers

    def computed(self, sequence: Sequence) -> list[CacheChange]:
        """Cache what has come out of the tail, in whole blocks."""
        blocks = sequence.returned_tokens // BLOCK_TOKENS
        if self.tree is None or not sequence.admitted or blocks <= sequence.cached_blocks:
            return []
        if not sequence.is_cached:
            return []
        salt, tokens = sequence.request.cache_salt, sequence.packed[: blocks * BLOCK_BYTES]
        before, numbers = self.tree.extend(salt, tokens)
        pinned = self.tree.pin(self.tree.find(salt, tokens))
        if sequence.pinned is not None:
            self.tree.unpin(sequence.pinned)
        sequence.pinned, sequence.cached_blocks = pinned, blocks
        if not numbers:
            return []
        self.ledger.keep(sequence.request_id, len(numbers))
        kept = KeptBlocks(sequence.request_id, before, numbers.start, len(numbers))
        return [CacheChange((kept,))]

    def release(self, sequence: Sequence) -> list[CacheChange]:
        """Take back what a request holds; what of it is computed stays cached."""
        changes = self.computed(sequence)
        if sequence.pinned is not None and self.tree is not None:
            self.tree.unpin(sequence.pinned)
            if not sequence.is_cached:
                self._note_dropped(self.tree.drop_chain(sequence.pinned))
            sequence.pinned = None
        self.ledger.release(sequence.request_id)
        return changes

    def take_dropped(self) -> list[CacheChange]:
        """What stages must hear of before anything is planned with the room that was made."""
        runs = [(run.start, len(run)) for run in number_runs(self._dropped)]
        self._dropped.clear()
        parts = range(0, len(runs), CACHE_RUNS_MAX)
        return [CacheChange(drop=tuple(runs[at : at + CACHE_RUNS_MAX])) for at in parts]

    def awaits(self, sequence: Sequence, under_way: Iterable[Sequence]) -> bool:
        """Whether a prompt under way is about to be cached further than the request's beginning
        is now."""
        if self.tree is None or sequence.request.sampling.prompt_logprobs is not None:
            return False
        prefix = self.prefix(sequence)
        return any(
            _common_blocks(sequence, other) > (0 if prefix is None else prefix.blocks)
            for other in under_way
            if other.request.cache_salt == sequence.request.cache_salt
            and other.is_cached
            and not other.stopping
        )


def _common_blocks(sequence: Sequence, other: Sequence) -> int:
    """Whole blocks of a waiting request that one under way is to compute as well."""
    one, two = sequence.packed, other.packed
    blocks = min(len(sequence.known) - 1, len(other.known)) // BLOCK_TOKENS
    if one[: blocks * BLOCK_BYTES] == two[: blocks * BLOCK_BYTES]:
        return blocks
    low, high = 0, blocks
    while high - low > 1:
        middle = (low + high) // 2
        part = slice(low * BLOCK_BYTES, middle * BLOCK_BYTES)
        low, high = (middle, high) if one[part] == two[part] else (low, middle)
    return low
