"""Interface of the link that leaves a stage, whatever decides what it carries next."""

from typing import Any, NamedTuple, Protocol

from molink_scheduler.batch import BatchClass


class Sent(NamedTuple):
    """Message of one epoch of a ring; whoever is in a later one drops it."""

    epoch: int
    what: Any
    """An event of a stage, or the tokens of a copy for the coordinator."""


class Deliver(Protocol):
    """Receiver of each message that has arrived whole."""

    def __call__(self, message: Any, /) -> None:
        """Take the message."""


class Link(Protocol):
    """Sending end of a directed link."""

    deliver: Deliver

    @property
    def rate_bytes_per_s(self) -> float:
        """The rate as the sender knows it."""

    def set_next_decode_due(self, due_at: float | None) -> None:
        """Tell when the stage expects to want this link for decode: the just-in-time rule asks."""

    def set_decode_result_due(self, due_at: float) -> None:
        """Tell when the begun decode step's result is expected; prefill makes room."""

    def offer(self, message: Any, batch_class: BatchClass, size_bytes: int, rows: int) -> None:
        """Send a message as soon as the link's order lets it."""


class ForecastIgnored:
    """Base of the links whose order asks for no forecast of decode."""

    __slots__ = ()

    def set_next_decode_due(self, due_at: float | None) -> None:
        """Ignore the forecast of this link's next decode."""

    def set_decode_result_due(self, due_at: float) -> None:
        """Ignore the forecast of a decode step's result."""
