"""When the head has a request's states kept, and where a prompt is cut for that.

States are kept behind multiples of STATE_CHUNK_TOKENS, where prompts are cut in any case:

- behind the last one before a prompt's last token, where the next turn of a chat finds it, and
  the same prompt again;
- where a prompt parts from what is cached, or from another one under way, and nothing was kept:
  who comes third with the same system prompt begins there;
- behind each multiple that an answer passes, up to which alone it is drafted. A request has one
  snapshot for that, which each replaces: the last stays, for the next turn.

The order is in the batch whose span ends there, because a stage computes several spans of a prompt
as one. The snapshot is of use once the span is back from the tail.

Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from molink_scheduler.batch import DRAFTS_MAX, KeptState, Span
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import STATE_CHUNK_TOKENS
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.snapshots import SnapshotDirectory


@dataclass(frozen=True, slots=True)
class NoSnapshots:
    """Snapshots of a ring whose layers keep no states: a request begins behind any cached block."""

    def begin(self, sequence: Sequence, last_block: int | None, partings: Iterable[int]) -> None:
        """A request is admitted; it needs none."""

    def ordered(
        self, spans: Iterable[Span], sequences: Mapping[int, Sequence]
    ) -> tuple[KeptState, ...]:
        """Orders to keep states: none, because layers keep none."""
        return ()

    def drafts_most(self, known: int) -> int:
        """Any drafts may follow so many known tokens."""
        return DRAFTS_MAX

    def coming_blocks(self, other: Sequence, blocks: int) -> int:
        """All blocks of a prompt under way are of use."""
        return blocks

    def returned(self, sequence: Sequence) -> None:
        """Rows of a request have come out of the tail."""

    def settle(self, sequence: Sequence, numbers: list[int]) -> None:
        """Blocks are cached of a request."""

    def release(self, sequence: Sequence) -> None:
        """Forget a request, which has no snapshots."""


@dataclass(slots=True)
class Snapshots:
    """Snapshots of a ring's requests, from the order to the cache."""

    directory: SnapshotDirectory

    def begin(self, sequence: Sequence, last_block: int | None, partings: Iterable[int]) -> None:
        """A request is admitted, which begins behind the cached block `last_block`; it parts from
        others behind so many blocks."""
        if last_block is not None:
            sequence.snapshot = self.directory.pin(last_block)
        ends = ((len(sequence.known) - 1) // BLOCK_TOKENS, *partings)
        tokens = {_chunked(blocks * BLOCK_TOKENS) for blocks in ends}
        # After a loss not every stage computes rows again that were kept.
        held = max(sequence.begun_tokens, sequence.kept_tokens)
        sequence.keep_at = sorted(one for one in tokens if one > held)

    def ordered(
        self, spans: Iterable[Span], sequences: Mapping[int, Sequence]
    ) -> tuple[KeptState, ...]:
        """Orders to keep the states behind spans that leave now."""
        orders = (self._order(sequences[one.request_id], one) for one in spans)
        return tuple(kept for kept in orders if kept is not None)

    def _order(self, sequence: Sequence, span: Span) -> KeptState | None:
        """Order to keep the states behind a span that leaves now; None: nothing is kept."""
        end = span.known_end
        is_wanted = end in sequence.keep_at
        if is_wanted:
            sequence.keep_at.remove(end)
        elif not (sequence.decoding and end % STATE_CHUNK_TOKENS == 0):
            return None
        number = self._place(sequence)
        if number is None:
            return None
        sequence.states[end] = number
        return KeptState(sequence.request_id, end, number)

    def drafts_most(self, known: int) -> int:
        """Most drafts behind so many known tokens: one span is to end where states are kept next,
        as far as it is known."""
        return STATE_CHUNK_TOKENS - 1 - known % STATE_CHUNK_TOKENS

    def coming_blocks(self, other: Sequence, blocks: int) -> int:
        """How many of the first `blocks` blocks of a prompt under way will end with a snapshot."""
        ends = [tokens // BLOCK_TOKENS for tokens in (*other.keep_at, *other.states)]
        return max((end for end in ends if end <= blocks), default=0)

    def returned(self, sequence: Sequence) -> None:
        """Rows of a request have come out of the tail: every stage has begun it."""
        if sequence.snapshot is not None and sequence.returned_tokens > sequence.begun_tokens:
            self.directory.unpin(sequence.snapshot)
            sequence.snapshot = None

    def settle(self, sequence: Sequence, numbers: list[int]) -> None:
        """The blocks of these numbers are cached of a request: snapshots behind them, if they have
        been made, are of use from now on."""
        for tokens in [one for one in sequence.states if one <= sequence.returned_tokens]:
            number = sequence.states.pop(tokens)
            if tokens > len(numbers) * BLOCK_TOKENS:
                self.directory.give_back(number)
            else:
                self.directory.settle(number, numbers[tokens // BLOCK_TOKENS - 1])

    def release(self, sequence: Sequence) -> None:
        """Forget a request of which nothing is under way and no more is kept."""
        if sequence.snapshot is not None:
            self.directory.unpin(sequence.snapshot)
        for number in sequence.states.values():
            self.directory.give_back(number)
        sequence.snapshot, sequence.keep_at = None, []
        sequence.states.clear()

    def _place(self, sequence: Sequence) -> int | None:
        """Snapshot for a request's states; its own answer's last ones make room for the next."""
        if not sequence.is_cached:
            return None
        if sequence.decoding and sequence.states:
            return sequence.states.popitem()[1]
        return self.directory.take()


def _chunked(tokens: int) -> int:
    return tokens // STATE_CHUNK_TOKENS * STATE_CHUNK_TOKENS
