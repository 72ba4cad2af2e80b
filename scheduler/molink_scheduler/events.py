"""What happens to the head (facts, past tense) and what it then wants done (commands): two closed
unions."""

from dataclasses import dataclass

from molink_scheduler.batch import Batch, BatchClass, Release, Span
from molink_scheduler.request import Request
from molink_scheduler.timing.round_tracker import StageStamp

__all__ = [
    "BatchReturned",
    "HeadEvent",
    "RequestCancelled",
    "RequestSubmitted",
    "RunBatch",
    "SampledToken",
    "SendRelease",
]


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """A user's request reached the head."""

    request: Request


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The user went away, or the coordinator gave up on the request; unknown ids are ignored."""

    request_id: int


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What the tail decided for one sequence."""

    request_id: int
    token_id: int
    finished: bool
    """True when this token ends the sequence (stop token, stop string or length)."""


@dataclass(frozen=True, slots=True)
class BatchReturned:
    """The tail finished a batch; prefill returns too, often with nothing sampled.

    Prefill is accounted for by spans, not by batches: a stage on the way may compute what the head
    sent as one batch in several steps, or several together.
    """

    batch_class: BatchClass
    micro_batch: int
    spans: tuple[Span, ...]
    sampled: tuple[SampledToken, ...]
    stamps: tuple[StageStamp, ...] = ()


HeadEvent = RequestSubmitted | RequestCancelled | BatchReturned


@dataclass(frozen=True, slots=True)
class SendRelease:
    """Command: tell every stage, the head's own included, to forget a request's KV."""

    release: Release


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Command: compute this batch on the head's stage and send it down the ring."""

    batch: Batch
    token_ids: tuple[int, ...]
    """The batch's input, one id per row."""
