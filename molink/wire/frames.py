"""Messages to frames and back: a msgpack header of a fixed schema, then at most one raw buffer.

A header is the array `[version, kind, epoch, fields]`; `fields` are positional, so that a decode
batch of eight rows is some 100 bytes. Every value from a peer passes the constructors of plain
dataclasses behind an explicit table: nothing is looked up by a name that came over the wire, and
sizes are compared before anything is allocated. Protocol buffers were rejected: a build step for a
dozen small arrays.

Every message between the processes of a ring, as plain values: one closed union. A link carries
only what its sender has to say (`LinkRole`):

    coordinator -> head    Submit, Cancel, SetCodec, ClearCache, ChangeCache, SetCapacity
    stage -> next stage    Activations, Forget, ChangeCache, SetCapacity, BlocksFetched
    tail -> head           Sampled, BlocksFetched
    tail -> coordinator    Sampled, with the log-probabilities that users asked for

A header is measured before it is decoded, by its kind, because a byte of msgpack may become dozens
in memory: maps and extensions, which no message has, are refused, and of arrays there are no more
than a message needs. What is left is honest: 24 bytes for a byte at most, where a prompt's own ids
take 16. Requests, batches and spans are the core's own values; here they only get a kind and, for
activations, a buffer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, assert_never

import msgpack
import numpy as np

from molink.errors import FrameError
from molink.wire import protocol
from molink.wire.codecs import codec_named, packed_bytes_max
from molink.wire.elements import TensorHeader
from molink.wire.headers import unpacked
from molink.wire.kinds import Kinds
from molink.wire.schema import TAIL, Rules, Schema
from molink_scheduler.batch import Batch, BatchClass, Release, Span
from molink_scheduler.kv.capacity import RingCapacity
from molink_scheduler.kv.changes import (
    CacheChange,
    DropBlocks,
    FetchBlocks,
    Fetched,
    FoldBlocks,
    KeepBlocks,
    LowerBlocks,
    RetainBlocks,
    TakeBlocks,
)
from molink_scheduler.request import Request
from molink_scheduler.timing.round_tracker import StageStamp


class FinishReason(IntEnum):
    """Reason for which a sequence ended with a token."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    GRAMMAR_FAILED = 3
    """The sequence's grammar can be followed no further; this token is not part of the answer."""
    REFUSED = 4
    """A stage was sent rows of it that are no numbers; it has no token, as where they overflow."""
    OVERFLOWN = 5


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

    def __post_init__(self) -> None:
        codec_named(self.codec)


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Order that nothing of what the ring has cached until now is found again."""


@dataclass(frozen=True, slots=True)
class Activations:
    """A batch on its way down the ring, with the residual stream of its rows."""

    batch: Batch
    tensor: TensorHeader
    buffer: memoryview | bytes
    token_ids: tuple[int, ...] | None = None
    """Token ids of the rows, where the model's layers read them; four bytes each."""


@dataclass(frozen=True, slots=True)
class Forget:
    """A release on its way down the ring."""

    release: Release


@dataclass(frozen=True, slots=True)
class ChangeCache:
    """A change of what all stages cache, on its way down the ring."""

    change: CacheChange


@dataclass(frozen=True, slots=True)
class SetCapacity:
    """Capacity with which the head is to count, and does count where it goes down the ring."""

    capacity: RingCapacity


@dataclass(frozen=True, slots=True)
class BlocksFetched:
    """Cached blocks are back on every stage so far."""

    fetched: Fetched


@dataclass(frozen=True, slots=True)
class TokenSample:
    """Token that was sampled; without log-probabilities on the way to the head."""

    request_id: int
    token_id: int
    finish: FinishReason = FinishReason.NONE
    logprob: Annotated[float | None, TAIL] = None
    top: tuple[tuple[int, float], ...] = ()
    """Most likely tokens as (token id, logprob), most likely first."""


@dataclass(frozen=True, slots=True)
class PromptScore:
    """How likely the model finds one token of a prompt."""

    request_id: int
    position: int
    """Position of the token in its prompt; the first, at 0, has no score."""
    logprob: float
    rank: int
    """Rank of the token at its place; 1: no token was likelier there."""
    top: tuple[tuple[int, float], ...] = ()
    """Most likely tokens as (token id, logprob), most likely first."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A batch came out of the tail."""

    batch_class: BatchClass
    micro_batch: int
    spans: tuple[Span, ...]
    """Spans that the batch computed; empty on the way to the coordinator."""
    tokens: tuple[TokenSample, ...]
    stamps: tuple[StageStamp, ...] = ()
    """Stamps of a decode batch, one from each stage; empty on the way to the coordinator."""
    waits: tuple[tuple[int, float, int], ...] = ()
    """Requests whose first token is in the message: seconds for which each had waited on the head,
    and its cached tokens; empty on the way there."""
    scores: tuple[PromptScore, ...] = ()
    """Scores of prompts' tokens, where users asked for them; empty on the way to the head."""
    drafted: tuple[tuple[int, int], ...] = ()
    """Requests of which drafts were verified, and how many; empty on the way to the head."""
    drafts: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Drafts of the tail as (request, token ids): what may come behind these tokens; empty on the
    way to the coordinator."""
    forced: tuple[int, ...] = ()
    """Requests of which these are what a grammar allows alone; empty on the way there, too."""


Order = Submit | Cancel | SetCodec | ClearCache | ChangeCache | SetCapacity
Message = Order | Activations | Forget | BlocksFetched | Sampled

HEADER_BYTES_MAX = 4 * 2**20
"""A prompt of 500,000 tokens fits: nobody's model is longer yet."""

BUFFER_BYTES_MAX = 256 * 2**20
"""A span of 4,096 tokens of a 16,384-wide model in fp32."""

SUBMIT, CANCEL, ACTIVATIONS, FORGET, SAMPLED, SET_CODEC, CHANGE_CACHE = range(1, 8)
FETCHED, CLEAR_CACHE, SET_CAPACITY = 8, 9, 10
HEADERS_BYTES_MAX = {
    SUBMIT: HEADER_BYTES_MAX,
    ACTIVATIONS: HEADER_BYTES_MAX,  # The prompts of newcomers, where their sampling needs them.
    SAMPLED: 256 * 2**10,
    CHANGE_CACHE: 32 * 2**10,
    SET_CAPACITY: 8 * 2**10,  # A number of each of the `STAGES_MAX` stages.
    **dict.fromkeys((CANCEL, FORGET, SET_CODEC, FETCHED, CLEAR_CACHE), 64),
}
"""Most bytes of each kind of header. A batch of 4,096 rows that returns takes 130 KB, `SAMPLES_MAX`
tokens with all their log-probabilities 200 KB."""

SAMPLES_MAX = 512
"""Tokens in one message to the coordinator: each has up to 20 log-probabilities beside it."""

FOUR_FIELDS = 0x94
"""How every header begins: an array of version, kind, epoch and fields."""

PREFIX_BYTES = 3
"""Bytes of a header up to its kind."""

TOKEN_ID = np.dtype("<u4")
"""Type of a row's token id, in one string of bytes: numbers of msgpack would take five."""

RULES = Rules(arrays=True)
"""A number may be infinite, as the rate of a link that nothing has left yet."""

_BATCH, _TENSOR = Schema(Batch, RULES), Schema(TensorHeader, RULES)
_REQUEST, _RELEASE = Schema(Request, RULES), Schema(Release, RULES)
_FETCHED, _CAPACITY = Schema(Fetched, RULES), Schema(RingCapacity, RULES)
_CHANGE = Kinds[CacheChange](
    {
        "keep": KeepBlocks,
        "drop": DropBlocks,
        "lower": LowerBlocks,
        "fetch": FetchBlocks,
        "retain": RetainBlocks,
        "fold": FoldBlocks,
        "take": TakeBlocks,
    },
    RULES,
)
_CANCEL, _SAMPLED = Schema(Cancel, RULES), Schema(Sampled, RULES)
_SET_CODEC, _CLEAR_CACHE = Schema(SetCodec, RULES), Schema(ClearCache, RULES)


def check_protocol(number: int) -> None:
    """Raise FrameError for a number of the protocol that this build does not speak."""
    if not protocol.PROTOCOL_MIN <= number <= protocol.PROTOCOL_VERSION:
        own = protocol.PROTOCOL_VERSION
        raise FrameError(f"peer speaks protocol {number}, this is {own}: update")


def encode_message(message: Message, epoch: int) -> list[bytes | memoryview]:
    """The frames of one message: the header, and for activations the buffer."""
    kind, fields, buffers = _fields_of(message)
    return [msgpack.packb([protocol.PROTOCOL_VERSION, kind, epoch, fields]), *buffers]


@dataclass(frozen=True, slots=True)
class LinkRole:
    """Part of one link's sender in a ring: what it may send, and how much of it at a time."""

    sender: str
    """Name of the sender, as a person calls it."""
    kinds: frozenset[int]
    message_bytes_max: int = field(init=False)
    """Most bytes of a header and its buffer together."""

    def __post_init__(self) -> None:
        header_bytes_max = max(HEADERS_BYTES_MAX[kind] for kind in self.kinds)
        buffer_bytes_max = BUFFER_BYTES_MAX if ACTIVATIONS in self.kinds else 0
        object.__setattr__(self, "message_bytes_max", header_bytes_max + buffer_bytes_max)


FROM_COORDINATOR = LinkRole(
    "the coordinator",
    frozenset({SUBMIT, CANCEL, SET_CODEC, CLEAR_CACHE, CHANGE_CACHE, SET_CAPACITY}),
)
FROM_STAGE = LinkRole(
    "the previous stage", frozenset({ACTIVATIONS, FORGET, CHANGE_CACHE, SET_CAPACITY, FETCHED})
)
FROM_TAIL = LinkRole("the ring's last stage", frozenset({SAMPLED, FETCHED}))
ANYBODY = LinkRole("a peer", frozenset(HEADERS_BYTES_MAX))


def decode_message(
    frames: Sequence[bytes | memoryview], role: LinkRole = ANYBODY
) -> tuple[Message, int]:
    """The message and its epoch.

    Raises FrameError for anything that does not follow the schema, exceeds a limit, or is not the
    sender's to say.
    """
    kind = _checked_kind(frames, role)
    try:
        _, _, epoch, fields = unpacked(frames[0])
        if type(epoch) is not int:
            raise FrameError(f"the epoch is a whole number, not {epoch!r:.40}")
        if kind == ACTIVATIONS:
            return _activations(fields, frames[1:]), epoch
        return _DECODERS[kind](fields), epoch
    except FrameError:
        raise
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise FrameError(f"malformed frame: {error}") from error


def _checked_kind(frames: Sequence[bytes | memoryview], role: LinkRole) -> int:
    """Kind of the message in the frames, before anything is decoded. Raises FrameError for a
    message that may not be."""
    if not 1 <= len(frames) <= 2 or len(frames[0]) <= PREFIX_BYTES:
        raise FrameError("a message is one header and at most one buffer")
    header = frames[0]
    if header[0] != FOUR_FIELDS:
        raise FrameError("malformed frame: no header of four fields")
    check_protocol(header[1])
    kind = header[2]
    if kind not in role.kinds:
        raise FrameError(f"{role.sender} does not send messages of kind {kind}")
    if len(header) > HEADERS_BYTES_MAX[kind]:
        raise FrameError(f"a header of {len(header)} bytes, {HEADERS_BYTES_MAX[kind]} is the most")
    if len(frames) == 2 and kind != ACTIVATIONS:
        raise FrameError(f"a message of kind {kind} has no buffer")
    return kind


def _fields_of(message: Message) -> tuple[int, Any, list[bytes | memoryview]]:
    match message:
        case Activations(batch, tensor, buffer, token_ids):
            ids = () if token_ids is None else (np.array(token_ids, TOKEN_ID).tobytes(),)
            return ACTIVATIONS, (_BATCH.write(batch), _TENSOR.write(tensor), *ids), [buffer]
        case Sampled():
            return SAMPLED, _SAMPLED.write(message), []
        case SetCodec():
            return SET_CODEC, _SET_CODEC.write(message), []
        case ClearCache():
            return CLEAR_CACHE, _CLEAR_CACHE.write(message), []
        case Submit(request):
            return SUBMIT, _REQUEST.write(request), []
        case Cancel():
            return CANCEL, _CANCEL.write(message), []
        case Forget(release):
            return FORGET, _RELEASE.write(release), []
        case ChangeCache(change):
            return CHANGE_CACHE, _CHANGE.write(change), []
        case SetCapacity(capacity):
            return SET_CAPACITY, _CAPACITY.write(capacity), []
        case BlocksFetched(fetched):
            return FETCHED, _FETCHED.write(fetched), []
        case _:
            assert_never(message)


def _activations(fields: Any, buffers: Sequence[bytes | memoryview]) -> Activations:
    batch_fields, tensor_fields, *ids = fields
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
    return Activations(batch, tensor, buffer, _token_ids(ids, batch.tokens))


def _token_ids(fields: Sequence[Any], rows: int) -> tuple[int, ...] | None:
    if not fields:
        return None
    (packed,) = fields
    if type(packed) is not bytes or len(packed) != rows * TOKEN_ID.itemsize:
        raise FrameError(f"token ids that are not those of {rows} rows")
    return tuple(np.frombuffer(packed, TOKEN_ID).tolist())


def _kind(fields: Any) -> tuple[Any, Any]:
    """Name of a kind, and its plain fields."""
    if type(fields) not in (list, tuple) or len(fields) != 2:
        raise FrameError("a change of the cache is a kind and its fields")
    return fields[0], fields[1]


_DECODERS: dict[int, Callable[[Any], Message]] = {
    SUBMIT: lambda fields: Submit(_REQUEST.read(fields)),
    CANCEL: _CANCEL.read,
    FORGET: lambda fields: Forget(_RELEASE.read(fields)),
    CHANGE_CACHE: lambda fields: ChangeCache(_CHANGE.read(*_kind(fields))),
    SET_CAPACITY: lambda fields: SetCapacity(_CAPACITY.read(fields)),
    FETCHED: lambda fields: BlocksFetched(_FETCHED.read(fields)),
    SAMPLED: _SAMPLED.read,
    SET_CODEC: _SET_CODEC.read,
    CLEAR_CACHE: _CLEAR_CACHE.read,
}
