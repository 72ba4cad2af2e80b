"""Report of a hand-over of KV between two rings, as `GET /cluster` has it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PairReport:
    """A stage's end of the hand-over of KV between two rings, since it was paired."""

    sends: bool
    """Whether it hands over; else it takes."""
    linked: bool
    """Whether the other end is there."""
    blocks: int
    """Blocks of 16 tokens that it has sent, or that have come."""
    size_bytes: int
    """Bytes of these."""
    seconds: float
    """Seconds spent on sending, or on waiting for blocks that were asked for."""
    used: int
    """Blocks of those that have come which its ring has taken."""
    lost: int
    """Blocks that could not be sent, or had not come when they were asked for."""
    held_bytes: int
    """Bytes that wait here, to be sent or to be taken."""
    held_byte_s: float
    """Bytes times seconds for which they have waited."""
    why: str
    """Why the other end takes nothing; empty: it does."""
