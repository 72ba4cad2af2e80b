"""Decode first, prefill in pieces, nobody starved: the paper's Algorithm 1.

Two lines at one counter. Decode is short and its users wait for the next token, so it is served
first and without a break. Prefill is served when no decode waits, one piece at a time, so that a
decode which comes in meanwhile waits for that piece only. When decode has gone past for long enough
(`StarvationGuard`) prefill gets a turn even so.

Three things differ from the paper, with reasons in docs/scheduling.md. A turn is one quantum, where
the paper then sends all that remains (up to 33 MB, 2.7 s: the very stall that this is to prevent).
Bytes and time bound the wait beside the count N, which alone is never reached. And the counters
start afresh when prefill has been dropped, so that a later one does not inherit its age. Rejected:
shares by weight (deficit round robin), which let prefill delay every decode a little, all the time,
to prevent what hardly ever happens.
"""

from dataclasses import dataclass, field

from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.link.backlog import Backlog, Waiting
from molink_scheduler.link.chunk_rules import ChunkRule, Quantum
from molink_scheduler.link.starvation_guard import HoldBackLimits, StarvationGuard
from molink_scheduler.link.transfer import Chunk, LinkView

__all__ = ["PriorityQueues"]

DECODE_PIECE_BYTES_MIN = 16 * 2**10
"""Two rows of a 4,096-wide model leave in one piece; what many users' rows make leaves in several,
each acknowledged by itself. Sent whole, a message of more than a bandwidth-delay product closed the
window until its only acknowledgement came: links that decode filled to two thirds were believed to
have half their rate and no delay, and messages waited for up to two seconds."""


@dataclass(slots=True)
class PriorityQueues(Backlog):
    """Decode (the paper's vq1) and prefill (vq2) that wait for one link."""

    chunk_rule: ChunkRule = field(default_factory=Quantum)
    """Size of a piece while no decode waits."""
    turn_rule: ChunkRule = field(default_factory=Quantum)
    """Size of a piece that prefill gets although decode waits."""
    limits: HoldBackLimits = field(default_factory=HoldBackLimits)
    held_back: StarvationGuard = field(init=False)
    """The waiting weight W and its companions."""

    def __post_init__(self) -> None:
        self.held_back = StarvationGuard(self.limits)

    @property
    def decode_first(self) -> bool:
        """True: that is the point."""
        return True

    def next_chunk(self, now: float, link: LinkView) -> Chunk | None:
        """What to send now; None when nothing waits."""
        decode = self._oldest(DECODE)
        prefill = self._oldest(PREFILL)
        if prefill is None:
            self.held_back.reset()
            return None if decode is None else self._continue(decode, now, link)
        if decode is None:
            return self._advance(prefill, self.chunk_rule.chunk_bytes(now, link))
        if not decode.sent_bytes:
            self.held_back.both_wait(now)
            if self.held_back.is_over(now):
                return self._advance(prefill, self.turn_rule.chunk_bytes(now, link))
            self.held_back.decode_passed(decode.left_bytes)
        return self._continue(decode, now, link)

    def _continue(self, decode: Waiting, now: float, link: LinkView) -> Chunk:
        """The next piece of decode; nothing goes between the pieces of one message."""
        piece_bytes = max(self.turn_rule.chunk_bytes(now, link), DECODE_PIECE_BYTES_MIN)
        return self._take(decode, piece_bytes)

    def _advance(self, prefill: Waiting, bytes_max: int) -> Chunk:
        self.held_back.reset()
        self.chunk_bytes_now = bytes_max
        return self._take(prefill, bytes_max)
