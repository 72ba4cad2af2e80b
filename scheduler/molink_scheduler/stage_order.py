"""In which order does a stage compute what has arrived? Decode first, prefill in what is left.

A decode batch is small and its users wait for the next token; a prefill span is large and only its
own user waits. So decode goes first, in order of arrival, and spans follow in theirs (a sequence's
spans must not overtake one another). After a run of decode batches a waiting span gets one turn,
or a ring that is full of decode would never admit anyone.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from molink_scheduler.batch import BatchClass

__all__ = ["StageOrder"]

Work = TypeVar("Work")

DECODES_BEFORE_PREFILL_MAX = 8
"""Decode batches that may pass a waiting span in a row."""


@dataclass(slots=True)
class StageOrder(Generic[Work]):
    """Work that has arrived at a stage and waits for its device."""

    _decode: deque[Work] = field(init=False, default_factory=deque)
    _prefill: deque[Work] = field(init=False, default_factory=deque)
    _decodes_in_a_row: int = field(init=False, default=0)

    def __len__(self) -> int:
        return len(self._decode) + len(self._prefill)

    def push(self, batch_class: BatchClass, work: Work) -> None:
        """Add work of one batch."""
        (self._decode if batch_class is BatchClass.DECODE else self._prefill).append(work)

    def pop(self) -> Work | None:
        """The work to compute now; None when nothing has arrived."""
        prefill_due = self._decodes_in_a_row >= DECODES_BEFORE_PREFILL_MAX and self._prefill
        if self._decode and not prefill_due:
            self._decodes_in_a_row = self._decodes_in_a_row + 1 if self._prefill else 0
            return self._decode.popleft()
        self._decodes_in_a_row = 0
        return self._prefill.popleft() if self._prefill else None
