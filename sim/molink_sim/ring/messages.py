"""What travels between stages, without the bytes: only their number counts.

The sizes are those of `molink.wire.frames`, fitted to what it encodes for 1 to 32 sequences.
"""

from dataclasses import dataclass, field

from molink_scheduler.batch import Batch
from molink_scheduler.events import BatchReturned, RequestSubmitted, SendRelease
from molink_scheduler.timing.round_tracker import StageStamp

__all__ = [
    "FORGET_BYTES",
    "SUBMIT_BYTES",
    "Activations",
    "Message",
    "activations_bytes",
    "sampled_bytes",
]

HEADER_BYTES = 35
SPAN_BYTES = 11
STAMP_BYTES = 19
ADMISSION_BYTES = 35
"""With sampling settings of the usual kind."""

SAMPLED_HEADER_BYTES = 10
SAMPLE_BYTES = 8
"""A token of the vocabulary, its request and whether it ended."""

FORGET_BYTES = 8
SUBMIT_BYTES = 3
"""Per token of the prompt."""

CODEC_RATIO = {"raw": 1.0, "lossless": 0.7, "int8": (64 + 2 + 2) / 128, "fp8": (64 + 2) / 128}
"""Packed bytes over raw ones (16 bits a value, groups of 64): docs/scheduling.md; lossless packs
bfloat16 activations to about 70 %."""


@dataclass(slots=True, eq=False)
class Activations:
    """A batch between two stages, and what every stage would else count anew."""

    batch: Batch
    rows: int
    kv_tokens: int
    """Keys that the batch's rows attend to, in sum over its sequences."""
    stamps: list[StageStamp] = field(default_factory=list)
    """One list for all of a trip: each stage appends to it."""


Message = Activations | SendRelease | BatchReturned | RequestSubmitted


def activations_bytes(message: Activations, row_bytes: float) -> int:
    """Of the message, with so many bytes for each row."""
    batch = message.batch
    header = HEADER_BYTES + SPAN_BYTES * len(batch.spans) + STAMP_BYTES * len(message.stamps)
    return int(header + ADMISSION_BYTES * len(batch.admissions) + message.rows * row_bytes)


def sampled_bytes(message: BatchReturned) -> int:
    """Of what the tail tells the head."""
    spans, samples, stamps = len(message.spans), len(message.sampled), len(message.stamps)
    return SAMPLED_HEADER_BYTES + SPAN_BYTES * spans + SAMPLE_BYTES * samples + STAMP_BYTES * stamps
