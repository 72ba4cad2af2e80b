"""What waits for a link, what leaves on it, and what is known of the link when that is decided.

A *transfer* is one batch on its way over one link. It leaves in *chunks*: what one send puts on
the wire, before somebody looks again at what is waiting. The bytes themselves stay with the
caller; here only their count travels, so the simulator needs no payload and no test allocates one.

`LinkView` is passed in with every decision instead of being kept: rate and forecast change while
transfers wait, and a copy that somebody must remember to refresh is wrong half of the time.
"""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from molink_scheduler.batch import BatchClass

__all__ = ["Chunk", "LinkView", "Transfer"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One batch that wants to cross a link."""

    transfer_id: int
    """Unique among the transfers that wait for this link."""
    batch_class: BatchClass
    size_bytes: int
    tokens: int
    """Rows of the batch (the paper's x or n); 0 for what carries no tensor."""

    def __post_init__(self) -> None:
        if self.size_bytes < 1:
            raise ValueError(f"a transfer holds at least one byte, got {self.size_bytes}")
        if self.tokens < 0:
            raise ValueError(f"a transfer cannot hold {self.tokens} tokens")


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
    """What is known of a link at the moment of a decision."""

    rate_bytes_per_s: float
    """The measured delivery rate: the paper's Band_i of this link."""
    rtt_s: float
    """Base round-trip time, twice the paper's Lat_i; no rule needs it yet, `/cluster` shows it."""
    decode_due_at: float | None = None
    """When the next decode micro-batch is predicted to want this link: t_s + T_d while one computes
    here, t_p + T_o + T_m otherwise (`DecodeOutlook.due_at`); None when nothing predicts one."""

    def __post_init__(self) -> None:
        if not 0 < self.rate_bytes_per_s < inf:
            raise ValueError(f"a link's rate must be finite and over 0: {self.rate_bytes_per_s}")
