"""What the operator or the cost model chose for the head of a ring."""

from dataclasses import dataclass

__all__ = ["PREFILL_TOKENS_IN_FLIGHT_MAX", "HeadSettings"]

PREFILL_TOKENS_IN_FLIGHT_MAX = 2048
"""Prefill that may be under way at once: enough to keep every hop of a long ring busy, and a bound
on what can stand in front of a decode batch in a queue that knows no priority."""


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """What the operator or the cost model chose."""

    kv_tokens_capacity: int
    """The smallest on the ring, in tokens."""
    micro_batch_count: int | None = 1
    """How many decode micro-batches circle; None lets the measured round decide."""
    micro_batch_candidates: tuple[int, ...] = (1,)
    """Counts that may be chosen then."""
    row_bytes: int = 0
    """Bytes of one row on a link between stages, for the cost model."""
    span_tokens: int | None = None
    """Most prompt tokens per batch; fewer where decode is due sooner. None: as the link allows."""
    prefill_tokens_in_flight_max: int = PREFILL_TOKENS_IN_FLIGHT_MAX
