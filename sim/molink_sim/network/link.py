"""What a stage sees of the link that leaves it, whoever decides what it carries next."""

from typing import Any, Protocol

from molink_scheduler.batch import BatchClass

__all__ = ["Deliver", "Link"]


class Deliver(Protocol):
    """Called with each message that has arrived whole."""

    def __call__(self, message: Any, /) -> None:
        """Take it."""


class Link(Protocol):
    """One directed link, from the side that sends."""

    decode_due_at: float | None
    """When the stage expects to want this link for decode; the just-in-time rule asks."""
    decode_ready_at: float
    """When the result of the decode step under way is expected; prefill makes room for it."""
    deliver: Deliver

    @property
    def rate_bytes_per_s(self) -> float:
        """The rate as the sender knows it."""

    def offer(self, message: Any, batch_class: BatchClass, size_bytes: int, rows: int) -> None:
        """Send a message as soon as the link's order lets it."""
