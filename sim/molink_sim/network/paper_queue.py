"""Queue of the paper's Algorithm 1 (MoLink, Findings of EMNLP 2025), to the letter, for any link.

    both queues wait: W += 1
    decode waits and W < N: send the oldest decode whole
    else prefill waits: send all that is left of the oldest if W >= N, else chunk(.) of it; W = 0

with N = 30 and chunk(.) = T_a x Band, without a bound. The product's `PriorityQueues` differs as
docs/scheduling.md says, and makes room for decode steps (`PrefillPause`), which the paper does not.

What was decided leaves whole: a link takes at most `PIECE_BYTES_MAX` at once and an upload cap may
allow less, so the rest follows in further pieces with nothing in between. The paper does not say
what T_a <= 0 means, nor what the chunk is before any iteration: then it is the least chunk and one
quantum, as for the product's rule.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.link.facts import CHUNK_BYTES_MIN
from molink_scheduler.link.priority_queues import (
    DECISIONS_MAX,
    JUST_IN_TIME_BYTES_MAX,
    quantum,
)
from molink_scheduler.link.transmission import Chunk, LinkView, TransmissionQueue, Waiting

PIECE_BYTES_MAX = JUST_IN_TIME_BYTES_MAX
"""A receiver takes no larger chunk (`molink.transport.link.inbound`)."""


@dataclass(slots=True)
class PaperQueue(TransmissionQueue):
    """Line of decode (vq1) and of prefill (vq2) of one link, as the paper serves them."""

    decode_first: ClassVar[bool] = True
    decisions_max: int = DECISIONS_MAX
    """N."""
    decisions: int = field(init=False, default=0)
    """W: decisions for which both waited."""
    _leaving: Waiting | None = field(init=False, default=None)
    """Transfer of which a decided part has not been handed out."""
    _leaving_bytes: int = field(init=False, default=0)

    def next_chunk(self, now: float, link: LinkView) -> Chunk | None:
        """What to send now; None when nothing waits."""
        if self._leaving is None:
            self._decide(now, link)
        if (leaving := self._leaving) is None:
            return None
        chunk = self._take(leaving, min(self._leaving_bytes, PIECE_BYTES_MAX), link)
        self._leaving_bytes -= chunk.size_bytes
        if not self._leaving_bytes:
            self._leaving = None
        return chunk

    def _decide(self, now: float, link: LinkView) -> None:
        """Lines 9 to 24 of the algorithm."""
        decode, prefill = self._oldest(DECODE), self._oldest(PREFILL)
        if decode is not None and prefill is not None:
            self.decisions += 1
        is_over = self.decisions >= self.decisions_max
        if decode is not None and (prefill is None or not is_over):
            self._leaving, self._leaving_bytes = decode, decode.left_bytes
        elif prefill is not None:
            wanted = prefill.left_bytes if is_over else chunk_bytes(now, link)
            self._leaving, self._leaving_bytes = prefill, min(wanted, prefill.left_bytes)
            self.chunk_bytes_now, self.decisions = wanted, 0


def chunk_bytes(now: float, link: LinkView) -> int:
    """chunk(.) of the paper: T_a x Band."""
    if link.next_decode_due_at is None:
        return quantum(now, link)
    wanted = (link.next_decode_due_at - now) * link.rate_bytes_per_s
    return max(1, round(wanted)) if wanted > 0 else CHUNK_BYTES_MIN
