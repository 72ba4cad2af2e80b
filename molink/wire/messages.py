"""Every message between the processes of a ring, as plain values: one closed union.

    coordinator -> head    Submit, Cancel, SetCodec
    stage -> next stage    Activations, Forget
    tail -> head           Sampled
    tail -> coordinator    Sampled, with the log-probabilities that users asked for

Requests, batches and spans are the core's own values; here they only get a kind and, for
activations, a buffer.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from molink.wire.schema import TAIL
from molink_scheduler.batch import Batch, BatchClass, Release, Span
from molink_scheduler.request import Request
from molink_scheduler.timing.round_tracker import StageStamp

__all__ = [
    "Activations",
    "Cancel",
    "FinishReason",
    "Forget",
    "Message",
    "Sampled",
    "SetCodec",
    "Submit",
    "TensorHeader",
    "TokenSample",
]


class FinishReason(IntEnum):
    """Reason for which a sequence ended with a token."""

    NONE = 0
    STOP = 1
    LENGTH = 2


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Layout of the buffer behind an Activations header: row-major [rows, width] of one element
    type."""

    dtype: str
    """"float32", "bfloat16" or "float16"."""
    rows: int
    width: int
    codec: str = "raw"
    """How the buffer is packed (`codecs`); raw is the elements as they lie in memory."""

    @property
    def raw_bytes(self) -> int:
        """Size of the unpacked buffer."""
        return self.rows * self.width * ELEMENT_BYTES[self.dtype]


ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Element types that may cross the wire, with their size."""


@dataclass(frozen=True, slots=True)
class Submit:
    """A new request for the head."""

    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancellation of a request; nothing happens when it has ended."""

    request_id: int


@dataclass(frozen=True, slots=True)
class SetCodec:
    """Order that the head's batches carry their activations in this codec from now on."""

    codec: str


@dataclass(frozen=True, slots=True)
class Activations:
    """A batch on its way down the ring, with the residual stream of its rows."""

    batch: Batch
    tensor: TensorHeader
    buffer: memoryview | bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """A release on its way down the ring."""

    release: Release


@dataclass(frozen=True, slots=True)
class TokenSample:
    """Token that was sampled. On the way to the head it has no log-probabilities: the head does not
    need them."""

    request_id: int
    token_id: int
    finish: FinishReason = FinishReason.NONE
    logprob: Annotated[float | None, TAIL] = None
    top: tuple[tuple[int, float], ...] = ()
    """(token id, logprob), most likely first."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A batch came out of the tail."""

    batch_class: BatchClass
    micro_batch: int
    spans: tuple[Span, ...]
    """What the batch computed; empty on the way to the coordinator."""
    tokens: tuple[TokenSample, ...]
    stamps: tuple[StageStamp, ...] = ()
    """Of a decode batch, one from each stage; empty on the way to the coordinator."""


Message = SetCodec | Submit | Cancel | Activations | Forget | Sampled
