"""Facts, which happen to a stage (past tense), and decisions, which it then takes (imperative).

Two closed unions. A fact holds no tensor: the driver keeps the rows that arrive under a number of
its own, and a decision names them by it. So facts and decisions can be logged and played again.
"""

from dataclasses import dataclass
from typing import NamedTuple

from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.drafting.asks import AskDrafts, Drafted
from molink_scheduler.kv.capacity import RingCapacity
from molink_scheduler.kv.changes import CacheChange, Fetched
from molink_scheduler.request import Request
from molink_scheduler.timing.round_tracker import StageStamp

__all__ = [
    "BatchArrived",
    "BatchReturned",
    "BlocksRead",
    "BookOrder",
    "CacheChanged",
    "CacheCleared",
    "CapacityChosen",
    "CodecChosen",
    "Decision",
    "EventOrder",
    "FetchArrived",
    "HeadEvent",
    "KeepRows",
    "Piece",
    "Refuse",
    "RefuseRequest",
    "ReleaseArrived",
    "RequestCancelled",
    "RequestSubmitted",
    "RoomOffered",
    "RunBatch",
    "SampledToken",
    "SendCacheChange",
    "SendCapacity",
    "SendFetched",
    "SendRelease",
    "SendRows",
    "SendTokens",
    "StageEvent",
    "WaitUntil",
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
class CodecChosen:
    """Fact: from now on the head's batches carry their activations in this codec."""

    codec: str


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Fact: the operator wants no cached block to be found again."""


@dataclass(frozen=True, slots=True)
class CapacityChosen:
    """Fact: the ring counts with this capacity from now on; on the head by the coordinator, behind
    it by the stage before."""

    capacity: RingCapacity


@dataclass(frozen=True, slots=True)
class RoomOffered:
    """Fact: the stage offers so many blocks to its ring from now on; it has places for them."""

    blocks: int


@dataclass(frozen=True, slots=True)
class SampledToken:
    """Decision of the tail for one sequence."""

    request_id: int
    token_id: int
    finished: bool
    """True when this token ends the sequence (stop token, stop string or length)."""
    refused: bool = False
    """True when it stands for none: a stage has refused the sequence's rows, and it ends."""


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
    drafts: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Drafts of the tail as (request, token ids): what may come behind these tokens."""
    forced: tuple[int, ...] = ()
    """Requests of which these are what a grammar allows alone."""


class BatchArrived(NamedTuple):
    """A batch came from the previous stage, with a row for each of its tokens."""

    batch: Batch
    message: int = 0
    """The driver's number for the rows; `Piece` names them by it."""


@dataclass(frozen=True, slots=True)
class ReleaseArrived:
    """The previous stage has forgotten a request."""

    release: Release


@dataclass(frozen=True, slots=True)
class CacheChanged:
    """The previous stage's cache has changed."""

    change: CacheChange


@dataclass(frozen=True, slots=True)
class FetchArrived:
    """All stages before have their blocks of a fetch; on the head, all stages of the ring."""

    fetched: Fetched


@dataclass(frozen=True, slots=True)
class BlocksRead:
    """The stage itself has its blocks of a fetch, from the first up to the first that is lost."""

    fetched: Fetched


HeadEvent = (
    RequestSubmitted
    | RequestCancelled
    | CodecChosen
    | CacheCleared
    | BatchReturned
    | FetchArrived
    | Drafted
)
"""Events that the coordinator, the tail and its own drafters send to the head alone."""

StageEvent = (
    HeadEvent
    | BatchArrived
    | ReleaseArrived
    | CacheChanged
    | CapacityChosen
    | BlocksRead
    | RoomOffered
)


@dataclass(frozen=True, slots=True)
class SendRelease:
    """Decision: forget a request's KV here, and let the next stage know."""

    release: Release


@dataclass(frozen=True, slots=True)
class SendCacheChange:
    """Decision: change the cache here, and let the next stage know."""

    change: CacheChange


@dataclass(frozen=True, slots=True)
class SendCapacity:
    """Decision: keep places for so many blocks and give others back, and let the next stage know
    with which capacity the head counts from here on."""

    capacity: RingCapacity
    """What the next stage is told."""
    blocks: int


@dataclass(frozen=True, slots=True)
class SendFetched:
    """Decision: let the next stage know (the tail: the head) how much of a fetch is back."""

    fetched: Fetched


@dataclass(frozen=True, slots=True)
class Refuse:
    """Decision: drop the message, because it cannot be carried out here."""

    reason: str


@dataclass(frozen=True, slots=True)
class RefuseRequest(Refuse):
    """Decision: drop a request that cannot be computed here, and let the coordinator know."""

    request_id: int


class Piece(NamedTuple):
    """Rows [start, end) of one message that has arrived."""

    message: int
    start: int
    end: int


class RunBatch(NamedTuple):
    """Decision: compute this batch."""

    batch: Batch
    token_ids: tuple[int, ...] = ()
    """Input of the head: one id per row."""
    pieces: tuple[Piece, ...] = ()
    """Elsewhere, its input: the rows of these, laid end to end."""
    result_due_at: float | None = None
    """Time at which the result of a decode step will want the link, which makes room for it."""


class WaitUntil(NamedTuple):
    """Decision: compute nothing yet; ask again then, or when something arrives."""

    at: float


class SendRows(NamedTuple):
    """Decision: send the batch to the next stage, with the rows that were computed."""

    batch: Batch
    next_decode_due_at: float | None
    """Time at which the link will carry decode again; None when no decode is expected."""
    replays: tuple[Admission, ...] = ()
    """Requests whose rows, sent once to the stage that was replaced, go to the next one before."""


class KeepRows(NamedTuple):
    """Decision: send nothing; the replayed batch was computed for its KV alone."""

    batch: Batch


class SendTokens(NamedTuple):
    """Decision: the tail sends the drawn tokens to the head, then a copy to the coordinator."""

    batch: Batch


BookOrder = SendRelease | SendCacheChange | SendCapacity | SendFetched
"""Orders of the head's book to all stages about their KV, and the answers of stages."""

EventOrder = BookOrder | AskDrafts | Refuse
"""Decisions that follow from an event."""

Decision = RunBatch | WaitUntil | EventOrder
"""Decisions that follow from an event, or from a device that is free."""
