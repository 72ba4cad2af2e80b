"""What `GET /cluster` tells of a link, from the side that sends."""

from dataclasses import dataclass

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.pacer import LinkSnapshot
from molink_scheduler.link.sender import LinkSender

__all__ = ["LinkStatistics"]


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """What has left, and what the link is like now."""

    name: str
    messages_sent: int
    bytes_sent: int
    waiting: tuple[int, int]
    """Transfers of each class that wait, decode first."""
    queued_bytes: tuple[int, int]
    """Their bytes."""
    chunk_bytes: int
    pacer: LinkSnapshot

    @classmethod
    def of(
        cls, name: str, messages_sent: int, bytes_sent: int, sender: LinkSender
    ) -> "LinkStatistics":
        """A snapshot."""
        queue, decode, prefill = sender.queue, BatchClass.DECODE, BatchClass.PREFILL
        return cls(
            name,
            messages_sent,
            bytes_sent,
            (queue.waiting_count(decode), queue.waiting_count(prefill)),
            (queue.queued_bytes(decode), queue.queued_bytes(prefill)),
            queue.chunk_bytes_now,
            sender.pacer.snapshot(),
        )
