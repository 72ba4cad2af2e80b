"""Sizes of what travels between stages: the core's events, without their bytes.

The sizes are those of `molink.wire.frames`, fitted to what it encodes for 1 to 32 sequences.
"""

from collections.abc import Sequence

from molink_scheduler.batch import Batch, Span
from molink_scheduler.events import BatchReturned
from molink_scheduler.kv.changes import CacheChange, FoldBlocks, KeepBlocks

HEADER_BYTES = 35
SPAN_BYTES = 11
STAMP_BYTES = 19
DRAFT_BYTES = 5
"""Bytes of a draft in a span's description; its row counts as any other."""

ADMISSION_BYTES = 35
"""Bytes of an admission with sampling settings of the usual kind."""

SAMPLED_HEADER_BYTES = 10
SAMPLE_BYTES = 8
"""A token of the vocabulary, its request and whether it ended."""

FORGET_BYTES = 8
RUN_BYTES = 20
"""Bytes of a run of blocks in a change of the cache."""

CODEC_RATIO = {"raw": 1.0, "lossless": 0.7, "int8": (64 + 2 + 2) / 128, "fp8": (64 + 2) / 128}
"""Packed bytes over raw ones (16 bits a value, groups of 64): docs/scheduling.md; lossless packs
bfloat16 activations to about 70 %."""


def activations_bytes(batch: Batch, row_bytes: float) -> int:
    """Size of a batch between two stages, with so many bytes for each row."""
    header = HEADER_BYTES + spans_bytes(batch.spans) + STAMP_BYTES * len(batch.stamps)
    return int(header + ADMISSION_BYTES * len(batch.admissions) + batch.tokens * row_bytes)


def sampled_bytes(message: BatchReturned) -> int:
    """Size of what the tail sends to the head."""
    spans, samples, stamps = message.spans, len(message.sampled), len(message.stamps)
    drafts = sum([len(token_ids) for _, token_ids in message.drafts])
    header = SAMPLED_HEADER_BYTES + spans_bytes(spans) + DRAFT_BYTES * drafts
    return header + SAMPLE_BYTES * samples + STAMP_BYTES * stamps


def spans_bytes(spans: Sequence[Span]) -> int:
    """Size of the description of some spans."""
    drafts = sum([len(span.drafts) for span in spans if span.drafts])
    return SPAN_BYTES * len(spans) + DRAFT_BYTES * drafts


def change_bytes(change: CacheChange) -> int:
    """Size of a change of the cache."""
    if isinstance(change, FoldBlocks):
        return FORGET_BYTES + RUN_BYTES
    runs = len(change.kept) if isinstance(change, KeepBlocks) else len(change.runs)
    return FORGET_BYTES + RUN_BYTES * runs
