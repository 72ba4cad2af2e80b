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

The transfers that wait for one link, and the chunks in which they leave.

A *transfer* is one batch on its way over one link. It leaves in *chunks*: what one send puts on the
network before the link is asked again what waits. The bytes themselves stay with the caller; only
their count is kept here, so the simulator needs no payload and no test allocates one.

A policy differs from the others in which transfer it serves next, and how much of it at once;
joining and being counted are the same for all and live in `TransmissionQueue`, so that no policy
can lose a byte in a way of its own. Each class waits in an ordered dictionary from id to transfer,
in which its front and its end are found at once; of a plain dictionary, finding the first key scans
over all that were deleted before it.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, NamedTuple

from molink_scheduler.batch import DECODE, PREFILL, BatchClass
from molink_scheduler.link.facts import CHUNK_BYTES_MIN
from molink_scheduler.link.upload_budget import UNLIMITED_BYTES

__all__ = [
    "Chunk",
    "ChunkRule",
    "LinkView",
    "PriorityQueues",
    "StarvationLimits",
    "Transfer",
    "TransmissionQueue",
    "Waiting",
    "fixed_quantum",
    "just_in_time",
    "quantum",
]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One batch that wants to cross a link."""

    transfer_id: int
    """Unique among the transfers that wait for this link."""
    batch_class: BatchClass
    size_bytes: int

    def __post_init__(self) -> None:
        if self.size_bytes < 1:
            raise ValueError(f"a transfer holds at least one byte, got {self.size_bytes}")


class Chunk(NamedTuple):
    """Command: send bytes [offset, offset + size_bytes) of a transfer now."""

    transfer_id: int
    offset: int
    size_bytes: int
    last: bool
    """True when nothing of the transfer is left after this chunk."""
    batch_class: BatchClass


@dataclass(frozen=True, slots=True)
class LinkView:
    """State of a link at the moment of a decision.

    It is passed in with every decision: rate and forecast change while transfers wait, and a copy
    that somebody must remember to refresh would be wrong half of the time.
    """

    rate_bytes_per_s: float
    """The measured delivery rate: the paper's Band_i of this link."""
    chunk_bytes: int
    """Size of a chunk at that rate, or at the upload cap where that is lower."""
    chunk_bytes_max: int = UNLIMITED_BYTES
    """What the upload cap lets go at once: no piece is longer."""
    next_decode_due_at: float | None = None
    """When the next decode micro-batch is predicted to want this link (`DecodeClock.due_at` and a
    step); None when nothing predicts one."""

    def __post_init__(self) -> None:
        if not 0 < self.rate_bytes_per_s < inf:
            raise ValueError(f"a link's rate must be finite and over 0: {self.rate_bytes_per_s}")
        if min(self.chunk_bytes, self.chunk_bytes_max) < 1:
            raise ValueError(f"a chunk holds at least one byte, got {self.chunk_bytes}")


@dataclass(slots=True)
class Waiting:
    """A transfer, and how much of it has been handed out."""

    transfer: Transfer
    number: int
    """Rising with every offer on this link."""
    sent_bytes: int = 0

    @property
    def left_bytes(self) -> int:
        """Bytes that have not been handed out."""
        return self.transfer.size_bytes - self.sent_bytes


@dataclass(slots=True)
class TransmissionQueue(ABC):
    """Transfers that wait for one link; a policy adds the order in which they leave.

    Of one class, transfers complete in order of offer under every policy, and the bytes of each
    leave in order.
    """

    decode_first: ClassVar[bool] = False
    """Whether decode that waits is what leaves next, so that it may overdraw the window."""
    chunk_bytes_now: int = field(init=False, default=0)
    """Most bytes of prefill that the last decision would have handed out; 0 before the first."""
    _lines: tuple[OrderedDict[int, Waiting], ...] = field(
        init=False, default_factory=lambda: tuple(OrderedDict() for _ in BatchClass)
    )
    """By class, each in order of offer."""
    _queued_bytes: list[int] = field(init=False, default_factory=lambda: [0] * len(BatchClass))
    _offers: int = field(init=False, default=0)

    @abstractmethod
    def next_chunk(self, now: float, link: LinkView) -> Chunk | None:
        """Commit to the piece to send now; None when nothing waits."""

    def offer(self, transfer: Transfer) -> None:
        """Let a transfer wait. Raises ValueError when one of this id already does."""
        if any(transfer.transfer_id in line for line in self._lines):
            raise ValueError(f"transfer {transfer.transfer_id} is already waiting")
        waiting = Waiting(transfer, self._offers)
        self._offers += 1
        self._lines[transfer.batch_class][transfer.transfer_id] = waiting
        self._queued_bytes[transfer.batch_class] += transfer.size_bytes

    @property
    def is_empty(self) -> bool:
        """Whether no transfer waits."""
        return not any(self._lines)

    def queued_bytes(self, batch_class: BatchClass) -> int:
        """Bytes of a class that have not been handed out."""
        return self._queued_bytes[batch_class]

    def waiting_count(self, batch_class: BatchClass) -> int:
        """Transfers of a class of which something is left."""
        return len(self._lines[batch_class])

    def _oldest(self, batch_class: BatchClass) -> Waiting | None:
        line = self._lines[batch_class]
        return next(iter(line.values())) if line else None

    def _take(self, waiting: Waiting, wanted_bytes: int, link: LinkView) -> Chunk:
        """Hand out the next piece of a transfer; the last piece removes it."""
        transfer, offset = waiting.transfer, waiting.sent_bytes
        size = min(wanted_bytes, link.chunk_bytes_max, waiting.left_bytes)
        assert size >= 1, "a piece holds at least one byte"
        last = size == waiting.left_bytes
        self._queued_bytes[transfer.batch_class] -= size
        if last:
            del self._lines[transfer.batch_class][transfer.transfer_id]
        else:
            waiting.sent_bytes += size
        return Chunk(transfer.transfer_id, offset, size, last, transfer.batch_class)


DECISIONS_MAX = 30
"""The paper's N. It bounds bursts of tiny messages, which neither bytes nor time see."""

DECODE_BYTES_MAX = 512 * 2**10
"""On fast links, where pieces are 64 KB, prefill keeps about a ninth of what is sent."""

PREFILL_WAIT_S_MAX = 0.1
"""On slow links, where pieces last 8 ms, prefill keeps about 7 % of the time, and decode loses no
more than that."""


FIXED_QUANTUM_BYTES = 16 * 2**10
"""Best p50 / p99 of decode at 20 Mbps: 37 / 41 ms, against 41 / 52 for 32 KB and 47 / 66 for 64."""

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


def fixed_quantum(now: float, link: LinkView) -> int:
    """The same in bytes, which is right for one rate only."""
    return FIXED_QUANTUM_BYTES


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
    chunk_rule: ChunkRule
    """Size of a piece while no decode waits."""
    turn_rule: ChunkRule
    """Size of a piece that prefill gets although decode waits."""
    limits: StarvationLimits
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
