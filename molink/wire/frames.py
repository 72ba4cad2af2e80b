"""Messages to frames and back: a msgpack header of a fixed schema, then at most one raw buffer.

A header is the array `[version, kind, epoch, fields]`; `fields` are positional, so that a decode
batch of eight rows is some 100 bytes. Every value from a peer passes the constructors of plain
dataclasses behind an explicit table: nothing is looked up by a name that came over the wire, and
sizes are compared before anything is allocated. Protocol buffers were rejected: a build step for a
dozen small arrays.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from molink.errors import FrameError
from molink.wire.codecs import codec_named, packed_bytes_max
from molink.wire.messages import (
    Activations,
    Cancel,
    FinishReason,
    Forget,
    Message,
    Sampled,
    SetCodec,
    Submit,
    TensorHeader,
    TokenSample,
)
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.timing.round_tracker import StageStamp

__all__ = [
    "BUFFER_BYTES_MAX",
    "HEADER_BYTES_MAX",
    "PROTOCOL_VERSION",
    "decode_message",
    "encode_message",
]

PROTOCOL_VERSION = 1
"""Raised with every change of the schema; peers of another version are refused."""

HEADER_BYTES_MAX = 4 * 2**20
"""A prompt of 500,000 tokens fits: nobody's model is longer yet."""

BUFFER_BYTES_MAX = 256 * 2**20
"""A span of 4,096 tokens of a 16,384-wide model in fp32."""

SUBMIT, CANCEL, ACTIVATIONS, FORGET, SAMPLED, SET_CODEC = range(1, 7)

Fields = Sequence[Any]


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
        message = _DECODERS[kind](fields, frames[1:])
    except FrameError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise FrameError(f"malformed frame: {error}") from error
    return message, _integer(epoch)


def _fields_of(message: Message) -> tuple[int, Fields, list[bytes | memoryview]]:
    match message:
        case Activations(batch, tensor, buffer):
            header = (tensor.dtype, tensor.rows, tensor.width, tensor.codec)
            return ACTIVATIONS, (_batch_fields(batch), header), [buffer]
        case Sampled(batch_class, micro_batch, spans, tokens, stamps):
            samples = [_sample_fields(token) for token in tokens]
            spans_fields, stamps_fields = _spans_fields(spans), _stamps_fields(stamps)
            fields = (int(batch_class), micro_batch, spans_fields, samples, stamps_fields)
            return SAMPLED, fields, []
        case SetCodec(codec):
            return SET_CODEC, (codec,), []
        case Submit(request):
            sampling = _sampling_fields(request.sampling)
            return SUBMIT, (request.request_id, request.prompt, sampling, request.output), []
        case Cancel(request_id):
            return CANCEL, (request_id,), []
        case Forget(release):
            return FORGET, (release.request_id,), []


# -- fields of the core's values ----------------------------------------------------------------


def _batch_fields(batch: Batch) -> Fields:
    admissions = [
        (
            a.request_id,
            a.prompt_tokens,
            a.tokens_expected,
            _sampling_fields(a.sampling),
            a.prompt,
            a.output,
        )
        for a in batch.admissions
    ]
    spans = _spans_fields(batch.spans)
    return (
        batch.batch_id,
        int(batch.batch_class),
        batch.micro_batch,
        spans,
        admissions,
        batch.codec,
        _stamps_fields(batch.stamps),
    )


def _batch(fields: Fields) -> Batch:
    batch_id, batch_class, micro_batch, spans, admissions, codec, stamps = fields
    return Batch(
        _integer(batch_id),
        BatchClass(batch_class),
        _integer(micro_batch),
        tuple(_span(span) for span in spans),
        tuple(_admission(admission) for admission in admissions),
        codec_named(_text(codec)).name,
        _stamps(stamps),
    )


def _stamps_fields(stamps: Sequence[StageStamp]) -> Fields:
    return [(stamp.step_s, stamp.wire_bytes_per_s) for stamp in stamps]


def _stamps(fields: Fields) -> tuple[StageStamp, ...]:
    return tuple(StageStamp(float(step_s), float(rate)) for step_s, rate in fields)


def _spans_fields(spans: Sequence[Span]) -> Fields:
    return [(span.request_id, span.start, span.end, span.samples) for span in spans]


def _span(fields: Fields) -> Span:
    request_id, start, end, samples = fields
    return Span(_integer(request_id), _integer(start), _integer(end), bool(samples))


def _admission(fields: Fields) -> Admission:
    request_id, prompt_tokens, tokens_expected, sampling, prompt, output = fields
    return Admission(
        _integer(request_id),
        _integer(prompt_tokens),
        _integer(tokens_expected),
        _sampling(sampling),
        _integers(prompt),
        _integers(output),
    )


def _sampling_fields(sampling: SamplingParams) -> Fields:
    return (
        sampling.max_tokens,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        sampling.seed,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        sampling.repetition_penalty,
        sampling.stop,
        sampling.stop_token_ids,
        sampling.logprobs,
    )


def _sampling(fields: Fields) -> SamplingParams:
    max_tokens, temperature, top_p, top_k, min_p, seed, *rest = fields
    frequency, presence, repetition, stop, stop_token_ids, logprobs = rest
    return SamplingParams(
        max_tokens=_integer(max_tokens),
        temperature=float(temperature),
        top_p=float(top_p),
        top_k=_integer(top_k),
        min_p=float(min_p),
        seed=_integer(seed),
        frequency_penalty=float(frequency),
        presence_penalty=float(presence),
        repetition_penalty=float(repetition),
        stop=tuple(_text(text) for text in stop),
        stop_token_ids=_integers(stop_token_ids),
        logprobs=None if logprobs is None else _integer(logprobs),
    )


def _sample_fields(token: TokenSample) -> Fields:
    if token.logprob is None:
        return (token.request_id, token.token_id, int(token.finish))
    return (token.request_id, token.token_id, int(token.finish), token.logprob, token.top)


def _sample(fields: Fields) -> TokenSample:
    request_id, token_id, finish, *rest = fields
    logprob, top = rest or (None, ())
    return TokenSample(
        _integer(request_id),
        _integer(token_id),
        FinishReason(finish),
        None if logprob is None else float(logprob),
        tuple((_integer(token), float(value)) for token, value in top),
    )


# -- messages -----------------------------------------------------------------------------------


def _submit(fields: Fields, buffers: Sequence[bytes | memoryview]) -> Submit:
    request_id, prompt, sampling, output = fields
    return Submit(
        Request(_integer(request_id), _integers(prompt), _sampling(sampling), _integers(output))
    )


def _cancel(fields: Fields, buffers: Sequence[bytes | memoryview]) -> Cancel:
    (request_id,) = fields
    return Cancel(_integer(request_id))


def _forget(fields: Fields, buffers: Sequence[bytes | memoryview]) -> Forget:
    (request_id,) = fields
    return Forget(Release(_integer(request_id)))


def _set_codec(fields: Fields, buffers: Sequence[bytes | memoryview]) -> SetCodec:
    (codec,) = fields
    return SetCodec(codec_named(_text(codec)).name)


def _sampled(fields: Fields, buffers: Sequence[bytes | memoryview]) -> Sampled:
    batch_class, micro_batch, spans, tokens, stamps = fields
    return Sampled(
        BatchClass(batch_class),
        _integer(micro_batch),
        tuple(_span(span) for span in spans),
        tuple(_sample(token) for token in tokens),
        _stamps(stamps),
    )


def _activations(fields: Fields, buffers: Sequence[bytes | memoryview]) -> Activations:
    batch_fields, (dtype, rows, width, codec) = fields
    tensor = TensorHeader(_text(dtype), _integer(rows), _integer(width), _text(codec))
    batch = _batch(batch_fields)
    (buffer,) = buffers
    bytes_max = packed_bytes_max(tensor.codec, tensor)
    exact = tensor.codec != "raw" or len(buffer) == bytes_max
    if len(buffer) > bytes_max or not exact or rows != batch.tokens:
        raise FrameError(
            f"{len(buffer)} bytes do not hold {tensor.rows} x {tensor.width} {tensor.dtype} "
            f"for {batch.tokens} tokens"
        )
    return Activations(batch, tensor, buffer)


_DECODERS: dict[int, Callable[[Fields, Sequence[bytes | memoryview]], Message]] = {
    SUBMIT: _submit,
    CANCEL: _cancel,
    ACTIVATIONS: _activations,
    FORGET: _forget,
    SAMPLED: _sampled,
    SET_CODEC: _set_codec,
}


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise FrameError(f"expected an integer, got {value!r:.40}")
    return value


def _integers(values: Any) -> tuple[int, ...]:
    return tuple(_integer(value) for value in values)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise FrameError(f"expected a string, got {value!r:.40}")
    return value
