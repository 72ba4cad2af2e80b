"""What every policy keeps: the transfers that wait, in order of offer within each class.

Picture two lines at a counter, one for decode and one for prefill. A policy differs from the others
only in whom it serves next and how much of him at once; joining, leaving early and being counted
are the same for all and live here, so that no policy can lose a byte in a way of its own.

A line is an ordered dictionary from id to transfer: its front, its end and a drop out of the middle
are all O(1). A deque was rejected because a drop either scans it or leaves a tombstone to skip. A
plain dictionary was too: finding its first key scans over all that were deleted before it.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.transfer import Chunk, Transfer

__all__ = ["Backlog", "Waiting"]


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


def _two_lines() -> tuple[OrderedDict[int, Waiting], OrderedDict[int, Waiting]]:
    return OrderedDict(), OrderedDict()


@dataclass(slots=True)
class Backlog:
    """Transfers that wait for one link; a policy adds `next_chunk`."""

    chunk_bytes_now: int = field(init=False, default=0)
    """Most bytes of prefill that the last decision would have handed out; 0 before the first."""
    _lines: tuple[OrderedDict[int, Waiting], OrderedDict[int, Waiting]] = field(
        init=False, default_factory=_two_lines
    )
    """By class, each in order of offer."""
    _queued_bytes: list[int] = field(init=False, default_factory=lambda: [0] * len(BatchClass))
    _offers: int = field(init=False, default=0)

    def offer(self, transfer: Transfer, now: float) -> None:
        """Let a transfer wait. Raises ValueError when one of this id already does.

        No policy looks at `now` yet; it is here so that one that orders by age can be added.
        """
        if self._find(transfer.transfer_id) is not None:
            raise ValueError(f"transfer {transfer.transfer_id} is already waiting")
        waiting = Waiting(transfer, self._offers)
        self._offers += 1
        self._lines[transfer.batch_class][transfer.transfer_id] = waiting
        self._queued_bytes[transfer.batch_class] += transfer.size_bytes

    def drop(self, transfer_id: int) -> None:
        """Forget what is left of a transfer; an unknown one is fine."""
        if (waiting := self._find(transfer_id)) is not None:
            self._remove(waiting)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        decode, prefill = self._lines
        return not decode and not prefill

    def queued_bytes(self, batch_class: BatchClass) -> int:
        """Bytes of a class that have not been handed out."""
        return self._queued_bytes[batch_class]

    def waiting_count(self, batch_class: BatchClass) -> int:
        """Transfers of a class of which something is left."""
        return len(self._lines[batch_class])

    def _find(self, transfer_id: int) -> Waiting | None:
        decode, prefill = self._lines
        return decode.get(transfer_id) or prefill.get(transfer_id)

    def _oldest(self, batch_class: BatchClass) -> Waiting | None:
        line = self._lines[batch_class]
        return next(iter(line.values())) if line else None

    def _take(self, waiting: Waiting, bytes_max: int) -> Chunk:
        """Hand out the next piece of a transfer; it leaves its line with the last one."""
        transfer, offset = waiting.transfer, waiting.sent_bytes
        size = min(bytes_max, waiting.left_bytes)
        assert size >= 1, "a piece holds at least one byte"
        last = size == waiting.left_bytes
        if last:
            self._remove(waiting)
        else:
            waiting.sent_bytes += size
            self._queued_bytes[transfer.batch_class] -= size
        return Chunk(transfer.transfer_id, offset, size, last, transfer.batch_class)

    def _remove(self, waiting: Waiting) -> None:
        transfer = waiting.transfer
        del self._lines[transfer.batch_class][transfer.transfer_id]
        self._queued_bytes[transfer.batch_class] -= waiting.left_bytes
