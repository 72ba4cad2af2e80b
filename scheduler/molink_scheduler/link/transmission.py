"""Interface between a link and whatever decides what the link sends next, and how much of it.

A *transfer* is one batch on its way over one link. It leaves in *chunks*: what one send puts on the
network before the link is asked again what waits. A stage offers its results; the link's driver
asks `next_chunk` each time that the link can take more, and sends what the answer says. The
decision is made at that moment and not when the transfer was offered: a priority given to bytes
that already sit in a socket's buffer is worth nothing. The driver in turn keeps few bytes in flight
(about one bandwidth-delay product and one chunk), or the queue would grow where no order can see
it.

The product has one order, `PriorityQueues`; what it is measured against stands in the simulator.
Orders differ in which transfer they serve next, and how much of it at once. Joining and being
counted are the same for all and live in `TransmissionQueue`, so that none can lose a byte in a way
of its own. Each class waits in an ordered dictionary from id to transfer, in which its front and
its end are found at once. In a plain dictionary, finding the first key scans over all that were
deleted before it.

Pure: `now` is an argument, nothing sleeps. The bytes themselves stay with the caller; only their
count is kept here, so the simulator needs no payload and no test allocates one.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, NamedTuple

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.upload_budget import UNLIMITED_BYTES


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
    """When decode is predicted to want this link next, t_c + T_a (`DecodeForecast`); None when
    nothing predicts it."""

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
    """Transfers that wait for one link; a subclass adds the order in which they leave.

    Of one class, transfers complete in order of offer whatever the order of the classes, and the
    bytes of each leave in order.
    """

    decode_first: ClassVar[bool] = False
    """Whether decode that waits is what leaves next, so that it may overdraw the window."""
    makes_room: ClassVar[bool] = False
    """Whether prefill pauses for the result of a decode step under way (`PrefillPause`)."""
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
