"""Report of a hand-over of KV between two rings, as `GET /cluster` has it, and its metrics."""

from dataclasses import dataclass

from molink.report.capability import Figure, StageCapability


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


PAIR_FIGURES = (
    Figure("molink_handover_linked", "linked", "1 while the other end is there."),
    Figure("molink_handover_blocks_total", "blocks", "Blocks handed over."),
    Figure("molink_handover_bytes_total", "size_bytes", "Bytes of these."),
    Figure("molink_handover_seconds_total", "seconds", "Spent on sending, or waiting for blocks."),
    Figure("molink_handover_used_blocks_total", "used", "Blocks that the other ring has taken."),
    Figure("molink_handover_lost_blocks_total", "lost", "Blocks that were computed instead."),
    Figure("molink_handover_held_bytes", "held_bytes", "Bytes that wait to be sent or taken."),
    Figure("molink_handover_held_byte_seconds_total", "held_byte_s", "Their size times time."),
)

PAIRS = StageCapability(
    "pair",
    figures=PAIR_FIGURES,
    label="end",
    label_value=lambda pair: "sent" if pair.sends else "taken",
)
