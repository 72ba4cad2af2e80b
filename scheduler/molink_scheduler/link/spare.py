"""Turn of a link that takes only what others leave: it sends while nothing waits on any of them.

Links of one node leave over one line, and each knows only what it has under way itself. A shadow's
rows are in no hurry, so their link looks at the others before each chunk, and waits until what all
have sent is off the line: decode or prefill that comes then finds at most one chunk before it, as
it does on its own link. A share of the rate was rejected: on a home line that
is busy, any share is too much, and on an idle one too little.

Pure: asked with the time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

LOOK_AGAIN_S = 0.01
"""While others have something waiting: a line that was left for so long costs a shadow nothing."""


class Other(Protocol):
    """Sending end of another link."""

    @property
    def sent_bytes(self) -> int:
        """All that has left there, since it began."""

    @property
    def is_waiting(self) -> bool:
        """Whether anything has not left."""


@dataclass(slots=True)
class SpareTurn:
    """Turn of a link that gives way to others, chunk by chunk."""

    others: Sequence[Other]
    _free_at: float = field(init=False, default=-math.inf)
    """When all that has left is off the line."""
    _others_bytes: int = field(init=False)
    """Bytes that the other links had sent at the last look."""

    def __post_init__(self) -> None:
        self._others_bytes = self._sum()

    def until(self, rate_bytes_per_s: float, now: float) -> float | None:
        """Time to ask again, on a line of such a rate; None: a chunk may leave now."""
        before, self._others_bytes = self._others_bytes, self._sum()
        if self._others_bytes > before:
            self.sent(self._others_bytes - before, rate_bytes_per_s, now)
        if any(other.is_waiting for other in self.others):
            return max(self._free_at, now + LOOK_AGAIN_S)
        return self._free_at if now < self._free_at else None

    def sent(self, size_bytes: int, rate_bytes_per_s: float, now: float) -> None:
        """So much has left."""
        self._free_at = max(self._free_at, now) + size_bytes / rate_bytes_per_s

    def _sum(self) -> int:
        return sum(other.sent_bytes for other in self.others)
