"""Decode first, prefill in pieces, and neither starved: the paper's Algorithm 1.

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

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.link.facts import CHUNK_BYTES_MIN
from molink_scheduler.link.transmission import Chunk, LinkView, TransmissionQueue, Waiting

DECISIONS_MAX = 30
"""The paper's N. It bounds bursts of tiny messages, which neither bytes nor time see."""

DECODE_BYTES_MAX = 512 * 2**10
"""On fast links, where pieces are 64 KB, prefill keeps about a ninth of what is sent."""

PREFILL_WAIT_S_MAX = 0.1
"""On slow links, where pieces last 8 ms, prefill keeps about 7 % of the time, and decode loses no
more than that."""


JUST_IN_TIME_BYTES_MAX = 4 * 2**20
"""The paper's largest chunk is 1.9 MB at 100 Mbps; a forecast on a faster link, or a wrong one,
must not hand out more than twice that."""

ChunkRule = Callable[[float, LinkView], int]
"""Size of the next piece of prefill `now`, at least one byte; it is cut to what is left.

What has been handed to the link cannot be called back, so a decode that arrives a moment later
waits for it. Small pieces make that wait short and cost a header and a decision each. Rejected:
sizing pieces by the bytes that are left, which says nothing about what else may come. Measured on a
20 Mbps, 30 ms link: docs/scheduling.md."""


def quantum(now: float, link: LinkView) -> int:
    """A few milliseconds of the measured rate, whatever is expected: a wait of 8 ms does no harm,
    and it needs no forecast that could be wrong."""
    return link.chunk_bytes


def just_in_time(now: float, link: LinkView) -> int:
    """The paper's rule: fill the link until the next decode is due, T_a x Band.

    A smallest chunk when the decode is overdue, so that the link never idles; a quantum without a
    forecast, because the first decode after a prompt comes unannounced. Over home links its pieces
    come to 80 KB up to 1.9 MB, and what arrives ahead of the forecast waits for all of one.
    """
    if link.next_decode_due_at is None:
        return quantum(now, link)
    wanted = (link.next_decode_due_at - now) * link.rate_bytes_per_s
    return round(min(max(wanted, CHUNK_BYTES_MIN), JUST_IN_TIME_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class StarvationLimits:
    """Limits of how long prefill may have to wait for decode; the first one reached counts."""

    decisions_max: int = DECISIONS_MAX
    """N: the decision at which prefill has its turn; N - 1 go to decode before it."""
    decode_bytes_max: int = DECODE_BYTES_MAX
    wait_s_max: float = PREFILL_WAIT_S_MAX

    def __post_init__(self) -> None:
        if self.decisions_max < 2:
            raise ValueError(f"N under 2 lets decode never go first, got {self.decisions_max}")
        if self.decode_bytes_max < 1 or not self.wait_s_max > 0:
            raise ValueError("prefill must be held back for at least a byte and a moment")


@dataclass(slots=True)
class StarvationGuard:
    """Counter of what decode has taken since prefill last moved.

    Strict priority alone would starve prefill on a link that decode fills. The paper counts: W goes
    up with every decision for which both classes wait, and at N = 30 prefill gets a turn. Counting
    was found not to suffice. Over home links only as many decode batches can queue as there are
    micro-batches, each comes back after a whole round, and every prefill chunk sets W to 0, so that
    W never nears 30; and thirty batches may be thirty kilobytes or fifteen megabytes. So two more
    limits stand beside N: bytes of decode that went past, and milliseconds since the first of them
    did. The first limit reached gives prefill one quantum. Time counts from the first decode that
    went past and not from the last prefill chunk: otherwise a slow chunk would have earned the next
    one while it was on its way, and decode would wait for two.
    """

    limits: StarvationLimits
    decisions: int = field(init=False, default=0)
    """W: decisions for which both classes waited."""
    decode_bytes: int = field(init=False, default=0)
    since: float | None = field(init=False, default=None)
    """When decode first went past prefill that waited."""

    def both_wait(self, now: float) -> None:
        """A decision is due for which both classes wait."""
        self.decisions += 1
        if self.since is None:
            self.since = now

    def decode_passed(self, size_bytes: int) -> None:
        """Decode of this size went past prefill that waits."""
        self.decode_bytes += size_bytes

    def reset(self) -> None:
        """Start afresh: prefill has moved."""
        self.decisions, self.decode_bytes, self.since = 0, 0, None

    def is_over(self, now: float) -> bool:
        """Whether prefill has waited for as long as it may."""
        return (
            self.decisions >= self.limits.decisions_max
            or self.decode_bytes >= self.limits.decode_bytes_max
            or (self.since is not None and now - self.since >= self.limits.wait_s_max)
        )


@dataclass(slots=True)
class PriorityQueues(TransmissionQueue):
    """Priority queue of one link: decode (the paper's vq1) before prefill (vq2)."""

    decode_first: ClassVar[bool] = True
    makes_room: ClassVar[bool] = True
    chunk_rule: ChunkRule = quantum
    """Size of a piece while no decode waits."""
    turn_rule: ChunkRule = quantum
    """Size of a piece that prefill gets although decode waits."""
    limits: StarvationLimits = StarvationLimits()
    starvation: StarvationGuard = field(init=False)
    """The waiting weight W and its companions."""

    def __post_init__(self) -> None:
        self.starvation = StarvationGuard(self.limits)

    def next_chunk(self, now: float, link: LinkView) -> Chunk | None:
        """What to send now; None when nothing waits."""
        decode = self._oldest(DECODE)
        prefill = self._oldest(PREFILL)
        if prefill is None:
            return None if decode is None else self._continue(decode, now, link)
        if decode is None:
            return self._advance(prefill, self.chunk_rule, now, link)
        if not decode.sent_bytes:
            self.starvation.both_wait(now)
            if self.starvation.is_over(now):
                return self._advance(prefill, self.turn_rule, now, link)
            self.starvation.decode_passed(decode.left_bytes)
        return self._continue(decode, now, link)

    def _continue(self, decode: Waiting, now: float, link: LinkView) -> Chunk:
        """The next piece of decode; nothing goes between the pieces of one message.

        What many users' rows make leaves in pieces, each acknowledged by itself. Sent whole, a
        message of more than a bandwidth-delay product closed the window until its only
        acknowledgement came: links that decode filled to two thirds were believed to have half
        their rate and no delay, and messages waited for up to two seconds. Pieces of 16 KB at least
        did the same below 16 Mbps (5 Mbps, 16 ms, half full: 0.54 of the rate, 62 ms late; 6 Mbps,
        5 ms, 85 % full: 0.95 s late); a few rows leave at once in several pieces as in one.
        """
        return self._take(decode, self.turn_rule(now, link), link)

    def _advance(self, prefill: Waiting, rule: ChunkRule, now: float, link: LinkView) -> Chunk:
        self.starvation.reset()
        self.chunk_bytes_now = min(rule(now, link), link.chunk_bytes_max)
        return self._take(prefill, self.chunk_bytes_now, link)
