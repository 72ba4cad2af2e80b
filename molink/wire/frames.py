"""Messages to frames and back: a msgpack header of a fixed schema, then at most one raw buffer.

A header is the array `[version, kind, epoch, fields]`; `fields` are positional, so that a decode
batch of eight rows is some 100 bytes. Every value from a peer passes the constructors of plain
dataclasses behind an explicit table: nothing is looked up by a name that came over the wire, and
sizes are compared before anything is allocated. Protocol buffers were rejected: a build step for a
dozen small arrays.

Every message between the processes of a ring, as plain values: one closed union.

    coordinator -> head    Submit, Cancel, SetCodec
    stage -> next stage    Activations, Forget
    tail -> head           Sampled
    tail -> coordinator    Sampled, with the log-probabilities that users asked for

Requests, batches and spans are the core's own values; here they only get a kind and, for
activations, a buffer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, assert_never

import msgpack

from molink.errors import FrameError
from molink.wire.codecs import codec_named, packed_bytes_max
from molink.wire.elements import TensorHeader
from molink.wire.schema import TAIL, Rules, Schema
from molink_scheduler.batch import Batch, BatchClass, Release, Span
from molink_scheduler.request import Request
from molink_scheduler.timing.round_tracker import StageStamp

__all__ = [
    "BUFFER_BYTES_MAX",
    "HEADER_BYTES_MAX",
    "PROTOCOL_VERSION",
    "Activations",
    "Cancel",
    "FinishReason",
    "Forget",
    "Message",
    "Sampled",
    "SetCodec",
    "Submit",
    "TokenSample",
    "decode_message",
    "encode_message",
]


class FinishReason(IntEnum):
    """Reason for which a sequence ended with a token."""

    NONE = 0
    STOP = 1
    LENGTH = 2


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


PROTOCOL_VERSION = 1
"""Raised with every change of the schema; peers of another version are refused."""

HEADER_BYTES_MAX = 4 * 2**20
"""A prompt of 500,000 tokens fits: nobody's model is longer yet."""

BUFFER_BYTES_MAX = 256 * 2**20
"""A span of 4,096 tokens of a 16,384-wide model in fp32."""

SUBMIT, CANCEL, ACTIVATIONS, FORGET, SAMPLED, SET_CODEC = range(1, 7)

RULES = Rules(arrays=True)
"""A number may be infinite, as the rate of a link that nothing has left yet."""

_BATCH, _TENSOR = Schema(Batch, RULES), Schema(TensorHeader, RULES)
_REQUEST, _RELEASE = Schema(Request, RULES), Schema(Release, RULES)
_CANCEL, _SAMPLED = Schema(Cancel, RULES), Schema(Sampled, RULES)
_SET_CODEC = Schema(SetCodec, RULES)


def encode_message(message: Message, epoch: int) -> list[bytes | memoryview]:
    """The frames of one message: the header, and for activations the buffer."""
    kind, fields, buffers = _fields_of(message)
    return [msgpack.packb([PROTOCOL_VERSION, kind, epoch, fields]), *buffers]


def decode_message(frames: Sequence[bytes | memoryview]) -> tuple[Message, int]:
    """The message and its epoch.

    Raises FrameError for anything that does not follow the schema or exceeds a limit.
    """
    if not 1 <= len(frames) <= 2 or len(frames[0]) > HEADER_BYTES_MAX:
        raise FrameError("a message is one header within its size limit and at most one buffer")
    try:
        version, kind, epoch, fields = msgpack.unpackb(frames[0], use_list=False)
        if version != PROTOCOL_VERSION:
            raise FrameError(f"peer speaks protocol {version}, this is {PROTOCOL_VERSION}: update")
        if type(epoch) is not int:
            raise FrameError(f"the epoch is a whole number, not {epoch!r:.40}")
        if kind == ACTIVATIONS:
            return _activations(fields, frames[1:]), epoch
        return _DECODERS[kind](fields), epoch
    except FrameError:
        raise
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise FrameError(f"malformed frame: {error}") from error


def _fields_of(message: Message) -> tuple[int, Any, list[bytes | memoryview]]:
    match message:
        case Activations(batch, tensor, buffer):
            return ACTIVATIONS, (_BATCH.write(batch), _TENSOR.write(tensor)), [buffer]
        case Sampled():
            return SAMPLED, _SAMPLED.write(message), []
        case SetCodec():
            return SET_CODEC, _SET_CODEC.write(message), []
        case Submit(request):
            return SUBMIT, _REQUEST.write(request), []
        case Cancel():
            return CANCEL, _CANCEL.write(message), []
        case Forget(release):
            return FORGET, _RELEASE.write(release), []
        case _:
            assert_never(message)


def _activations(fields: Any, buffers: Sequence[bytes | memoryview]) -> Activations:
    batch_fields, tensor_fields = fields
    batch, tensor = _BATCH.read(batch_fields), _TENSOR.read(tensor_fields)
    codec_named(batch.codec)
    (buffer,) = buffers
    bytes_max = packed_bytes_max(tensor.codec, tensor)
    exact = tensor.codec != "raw" or len(buffer) == bytes_max
    if len(buffer) > bytes_max or not exact or tensor.rows != batch.tokens:
        raise FrameError(
            f"{len(buffer)} bytes do not hold {tensor.rows} x {tensor.width} {tensor.dtype} "
            f"for {batch.tokens} tokens"
        )
    return Activations(batch, tensor, buffer)


def _set_codec(fields: Any) -> SetCodec:
    message = _SET_CODEC.read(fields)
    codec_named(message.codec)
    return message


_DECODERS: dict[int, Callable[[Any], Message]] = {
    SUBMIT: lambda fields: Submit(_REQUEST.read(fields)),
    CANCEL: _CANCEL.read,
    FORGET: lambda fields: Forget(_RELEASE.read(fields)),
    SAMPLED: _SAMPLED.read,
    SET_CODEC: _set_codec,
}
