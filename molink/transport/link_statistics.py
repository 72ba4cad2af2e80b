"""What `GET /cluster` tells of a link, from the side that sends."""

from dataclasses import dataclass

from molink_scheduler.link_pacer import LinkSnapshot

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
