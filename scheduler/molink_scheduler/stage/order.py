"""In which order does a stage compute what has arrived? Decode first, prefill in what is left.

A decode batch is small and its users wait for the next token; a prefill span is large and only its
own user waits. So decode goes first, in order of arrival. Prefill goes in order of arrival too, as
many rows as fit before the next decode step is due: spans that came one after the other are laid
together, a long one is cut. After a run of decode batches prefill gets one turn, or a ring that is
full of decode would never admit anyone.

A step of prefill takes long; decode that arrives meanwhile need not wait for its end: between two
layers the stage asks `next_decode`. What a step in progress waits for is bounded like what a span
waits for that has not begun.

Pure: the work that belongs to a batch (its activations) is carried along, never looked at.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from molink_scheduler.batch import DECODE, Batch
from molink_scheduler.stage.batch_pieces import cut_rows
from molink_scheduler.timing.prefill_budget import PrefillBudget

__all__ = ["DECODES_BEFORE_PREFILL_MAX", "Piece", "StageOrder"]

Work = TypeVar("Work")

DECODES_BEFORE_PREFILL_MAX = 8
"""Decode batches that may pass a waiting span in a row."""


class Piece(NamedTuple, Generic[Work]):
    """Rows [start, end) of one batch's work, and the batch that they make."""

    batch: Batch
    work: Work
    start: int
    end: int


@dataclass(slots=True)
class StageOrder(Generic[Work]):
    """Work that has arrived at a stage and waits for its device."""

    budget: PrefillBudget
    _decode: deque[tuple[Batch, Work]] = field(init=False, default_factory=deque)
    _prefill: deque[tuple[Batch, Work]] = field(init=False, default_factory=deque)
    _first_rows_done: int = field(init=False, default=0)
    """Rows of the first prefill batch that were computed before."""
    _decodes_in_a_row: int = field(init=False, default=0)

    def __len__(self) -> int:
        return len(self._decode) + len(self._prefill)

    @property
    def prefill_tokens_waiting(self) -> int:
        """Rows of prefill that have arrived and are not computed."""
        return sum(batch.tokens for batch, _ in self._prefill) - self._first_rows_done

    @property
    def decode_waits(self) -> bool:
        """Whether decode has arrived and is not computed."""
        return bool(self._decode)

    @property
    def prefill_waits(self) -> bool:
        """The same of prefill."""
        return bool(self._prefill)

    def push(self, batch: Batch, work: Work, now: float) -> None:
        """Add a batch that has arrived."""
        if batch.batch_class is DECODE:
            self.budget.clock.seen(batch.micro_batch, now)
            self._decode.append((batch, work))
        else:
            self._prefill.append((batch, work))

    def next_pieces(self, now: float) -> list[Piece[Work]]:
        """What to compute now, in one step; empty when nothing is there or it had better wait."""
        prefill_due = self._decodes_in_a_row >= DECODES_BEFORE_PREFILL_MAX and self._prefill
        if self._decode and not prefill_due:
            self._decodes_in_a_row = self._decodes_in_a_row + 1 if self._prefill else 0
            batch, work = self._decode.popleft()
            return [Piece(batch, work, 0, batch.tokens)]
        if not self._prefill:
            return []
        self._decodes_in_a_row = 0
        return self._take_rows(self.budget.rows_now(now))

    def take_at_once(self, batch: Batch, now: float) -> None:
        """`push` and `next_pieces` of decode that finds the device free and nobody waiting."""
        assert not self._decode and not self._prefill
        self.budget.clock.seen(batch.micro_batch, now)
        self._decodes_in_a_row = 0

    def next_decode(self) -> list[Piece[Work]]:
        """What may interrupt a prefill step that is under way; empty when no decode waits."""
        if not self._decode or self._decodes_in_a_row >= DECODES_BEFORE_PREFILL_MAX:
            return []
        self._decodes_in_a_row += 1
        batch, work = self._decode.popleft()
        return [Piece(batch, work, 0, batch.tokens)]

    @property
    def wait_until(self) -> float | None:
        """When to ask again although nothing arrived; None when there is nothing to wait for."""
        return self.budget.wait_until if self._prefill else None

    def _take_rows(self, rows: int) -> list[Piece[Work]]:
        pieces: list[Piece[Work]] = []
        while rows > 0 and self._prefill:
            batch, work = self._prefill[0]
            start = self._first_rows_done
            end = min(batch.tokens, start + rows)
            pieces.append(Piece(cut_rows(batch, start, end), work, start, end))
            rows -= end - start
            self._first_rows_done = end
            if end == batch.tokens:
                self._prefill.popleft()
                self._first_rows_done = 0
        return pieces
