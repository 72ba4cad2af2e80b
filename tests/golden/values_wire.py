"""What crosses the links of a ring: messages, packed activations, pieces of transfers."""

import struct

import zstandard

from molink.wire import codecs
from molink.wire.chunks import (
    Ack,
    ChunkHeader,
    LinkHello,
    Missing,
    Welcome,
    decode_link_frame,
    encode_ack,
    encode_hello,
    encode_missing,
    encode_welcome,
)
from molink.wire.elements import TensorHeader
from molink.wire.frames import (
    Activations,
    Cancel,
    ClearCache,
    FinishReason,
    Forget,
    PromptScore,
    Sampled,
    SetCapacity,
    SetCodec,
    Submit,
    TokenSample,
    decode_message,
    encode_message,
)
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.capacity import RingCapacity
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.timing.round_tracker import StageStamp
from molink_scheduler.token_ids import token_bytes
from tests.golden.codec import Codec, hexed, unhexed


def encode_frames(value):
    message, epoch = value
    return " ".join(bytes(frame).hex() for frame in encode_message(message, epoch))


def decode_frames(line):
    return decode_message([bytes.fromhex(frame) for frame in line.split(" ")])


FRAMES = Codec("wire-frames", encode_frames, decode_frames)

SAMPLING = SamplingParams(
    max_tokens=2**31,
    temperature=0.0,
    top_p=0.95,
    top_k=2**31,
    min_p=0.05,
    seed=2**64 - 1,
    frequency_penalty=-2.0,
    presence_penalty=2.0,
    repetition_penalty=1.1,
    stop=("\n\n", "конец", "🛑"),
    stop_token_ids=(0, 1, 2**31 - 1),
    logprobs=20,
    prompt_logprobs=20,
    skip_special_tokens=False,
    kv_budget=0.25,
    logit_bias=((0, -100.0), (2**31 - 1, 0.5)),
    grammar='{"grammars":[{"lark_grammar":"start: \\"да\\""}]}',
)


@FRAMES.value
def submit_smallest():
    return Submit(Request(0, token_bytes((0,)), SamplingParams(max_tokens=1))), 0


@FRAMES.value
def submit_with_everything():
    prompt, wishes = token_bytes((1, 128_255, 2**31)), ((1, 3600), (3, 300))
    return Submit(Request(2**53, prompt, SAMPLING, (5, 6), -7, "ours@anna", wishes)), 2**63


@FRAMES.value
def submit_of_no_logprobs_but_the_token():
    return Submit(Request(7, token_bytes((3, 4)), SamplingParams(max_tokens=16, logprobs=0))), 1


@FRAMES.value
def cancel():
    return Cancel(2**64 - 1), 3


@FRAMES.value
def forget():
    return Forget(Release(12)), 4


@FRAMES.value
def set_capacity():
    return SetCapacity(RingCapacity(2**40, (0, 3, 2**32))), 5


@FRAMES.value
def set_wire_raw():
    return SetCodec("raw"), 1


@FRAMES.value
def set_wire_lossless():
    return SetCodec("lossless"), 1


@FRAMES.value
def set_wire_int8():
    return SetCodec("int8"), 1


@FRAMES.value
def set_wire_fp8():
    return SetCodec("fp8"), 1


@FRAMES.value
def clear_cache():
    return ClearCache(), 4


@FRAMES.value
def sampled_to_the_head():
    spans = (Span(1, 8, 9, True), Span(2, 0, 512, True))
    tokens = (TokenSample(1, 42), TokenSample(2, 2, FinishReason.STOP))
    stamps = (StageStamp(0.0125, 1.25e9), StageStamp(0.5, 0.0))
    return Sampled(BatchClass.DECODE, 3, spans, tokens, stamps), 9


@FRAMES.value
def sampled_to_the_coordinator():
    top = ((42, -0.25), (7, -1.5), (9, float("-inf")))
    tokens = (
        TokenSample(1, 42, FinishReason.NONE, -0.25, top),
        TokenSample(2, 2, FinishReason.LENGTH, -0.0),
    )
    return Sampled(BatchClass.PREFILL, -1, (), tokens), 9


@FRAMES.value
def scores_to_the_coordinator():
    scores = (PromptScore(1, 1, -0.25, 1, ((42, -0.25), (7, -1.5))), PromptScore(2, 9, -8.0, 99))
    return Sampled(BatchClass.PREFILL, -1, (), (), scores=scores), 9


@FRAMES.value
def submit_with_a_prediction():
    prediction = (0, 5, 128_255, 2**31)
    return Submit(Request(7, token_bytes((3,)), SAMPLING, prediction=prediction)), 1


@FRAMES.value
def sampled_drafts_to_the_coordinator():
    tokens = (TokenSample(1, 42), TokenSample(1, 7), TokenSample(2, 9, FinishReason.STOP))
    return Sampled(BatchClass.DECODE, 3, (), tokens, drafted=((1, 16), (2, 0))), 9


@FRAMES.value
def sampled_with_drafts_to_the_head():
    spans = (Span(1, 8, 9, True, wants=2), Span(2, 8, 9, True, wants=16))
    tokens, drafts = (TokenSample(1, 42), TokenSample(2, 7)), ((1, (5, 128_255)), (2, ()))
    return Sampled(BatchClass.DECODE, 3, spans, tokens, drafts=drafts), 9


@FRAMES.value
def sampled_of_nothing():
    return Sampled(BatchClass.PREFILL, -1, (), ()), 0


@FRAMES.value
def activations_of_no_rows():
    batch = Batch(0, BatchClass.DECODE, 0, ())
    return Activations(batch, TensorHeader("float32", 0, 1), b""), 0


@FRAMES.value
def activations_of_a_decode_batch():
    spans = (Span(1, 8, 9, True), Span(2**40, 2**31, 2**31 + 1, False))
    stamps = (StageStamp(0.001, 0.0), StageStamp(float("inf"), 7.5e5))
    batch = Batch(2**62, BatchClass.DECODE, 7, spans, codec="raw", stamps=stamps)
    return Activations(batch, TensorHeader("bfloat16", 2, 3), bytes(range(12))), 5


@FRAMES.value
def activations_with_drafts():
    spans = (Span(1, 8, 9, True), Span(2, 30, 47, True, tuple(range(0, 160, 10))))
    batch = Batch(9, BatchClass.DECODE, 0, spans)
    return Activations(batch, TensorHeader("bfloat16", 18, 1), bytes(36)), 5


@FRAMES.value
def activations_of_a_prefill_batch():
    admissions = (
        Admission(1, 3, 20, SAMPLING, prompt=(5, 6, 7), output=(8,)),
        Admission(2, 1, 2, SamplingParams(max_tokens=1)),
    )
    spans = (Span(1, 0, 3, False), Span(2, 0, 1, True))
    batch = Batch(6, BatchClass.PREFILL, -1, spans, admissions)
    return Activations(batch, TensorHeader("float16", 4, 2), bytes(range(16))), 5


@FRAMES.value
def activations_that_are_replayed():
    batch = Batch(6, BatchClass.PREFILL, -1, (Span(1, 0, 3, False),), replay=True)
    return Activations(batch, TensorHeader("float16", 3, 2), bytes(range(12))), 5


@FRAMES.value
def activations_after_what_was_kept():
    admission = Admission(1, 3, 20, SAMPLING, output=(8,), kept_tokens=3)
    batch = Batch(7, BatchClass.PREFILL, -1, (Span(1, 3, 4, True),), (admission,))
    return Activations(batch, TensorHeader("float16", 1, 2), bytes(range(4))), 6


@FRAMES.value
def activations_with_token_ids():
    batch = Batch(6, BatchClass.PREFILL, -1, (Span(1, 0, 3, True),))
    header = TensorHeader("float16", 3, 2)
    return Activations(batch, header, bytes(range(12)), (0, 262_143, 2**32 - 1)), 5


def packed_activations(codec: str, buffer: bytes):
    """The buffer is not looked into before it is unpacked."""
    batch = Batch(1, BatchClass.PREFILL, -1, (Span(1, 0, 2, True),), codec=codec)
    return Activations(batch, TensorHeader("float32", 2, 64, codec), buffer), 1


FRAMES.add(
    activations_packed_lossless=lambda: packed_activations("lossless", b"\x00\xff" * 9),
    activations_packed_int8=lambda: packed_activations("int8", bytes(range(100))),
    activations_packed_fp8=lambda: packed_activations("fp8", bytes(range(132))),
)

# -- packed buffers -------------------------------------------------------------------------------


def rows_of(dtype: str, rows: int, width: int) -> bytes:
    """Numbers of all sizes, an outlier in each row."""
    numbers = [((37 * i) % 101 - 50) / 2 ** (i % 11) for i in range(rows * width)]
    for row in range(rows):
        numbers[row * width + 5 * row % width] = 3000.0 + row
    if dtype == "float16":
        return struct.pack(f"<{len(numbers)}e", *numbers)
    whole = struct.pack(f"<{len(numbers)}f", *numbers)
    if dtype == "float32":
        return whole
    return b"".join(whole[at + 2 : at + 4] for at in range(0, len(whole), 4))


def tensor(codec: str, dtype: str, rows: int, width: int):
    return codec, TensorHeader(dtype, rows, width, codec), rows_of(dtype, rows, width)


def pack(value) -> bytes:
    codec, header, raw = value
    return bytes(codecs.encode(codec, header, raw))


def unpack(value) -> bytes:
    codec, header, _ = value
    return bytes(codecs.decode(codec, header, pack(value)))


PACKED = Codec("wire-packed", hexed(pack))
UNPACKED = Codec("wire-unpacked", hexed(unpack))
"""What arrives of the same tensors; for int8 and fp8 it is not what was packed."""

for codec_name in ("raw", "int8", "fp8"):
    for element in ("float32", "bfloat16", "float16"):
        for shape in ((1, 1), (2, 70)):
            key = f"{codec_name}_{element}_{shape[0]}x{shape[1]}"
            built = (codec_name, element, *shape)
            PACKED.add(**{key: lambda built=built: tensor(*built)})
            UNPACKED.add(**{key: lambda built=built: tensor(*built)})


ZSTD_RECORDED = (1, 5, 7)
"""Another release may find other, equally good frames for the same bytes."""

LOSSLESS = Codec(
    "wire-lossless",
    lambda value: f"{value[1].dtype} {pack(value).hex()}",
    lambda line: unpack_lossless(*line.split(" ")),
    comparable=zstandard.ZSTD_VERSION == ZSTD_RECORDED,
)


def unpack_lossless(dtype: str, packed: str):
    header = TensorHeader(dtype, 2, 640, "lossless")
    return "lossless", header, bytes(codecs.decode("lossless", header, bytes.fromhex(packed)))


LOSSLESS.add(
    float32=lambda: tensor("lossless", "float32", 2, 640),
    bfloat16=lambda: tensor("lossless", "bfloat16", 2, 640),
    float16=lambda: tensor("lossless", "float16", 2, 640),
)

# -- links ----------------------------------------------------------------------------------------


def encode_link_frame(frame) -> bytes:
    match frame:
        case ChunkHeader():
            return frame.encode()
        case Ack(sequences):
            return encode_ack(sequences)
        case LinkHello(stream):
            return encode_hello(stream)
        case Welcome(first):
            return encode_welcome(first)
        case Missing(first):
            return encode_missing(first)
    raise AssertionError(frame)


CHUNKS = Codec("wire-chunks", hexed(encode_link_frame), unhexed(decode_link_frame))

CHUNKS.add(
    hello=LinkHello,
    hello_of_a_sender=lambda: LinkHello(2**62 - 1),
    welcome_to_a_new_link=lambda: Welcome(0),
    welcome_back=lambda: Welcome(2**40),
    missing=lambda: Missing(17),
    ack_of_one=lambda: Ack((0,)),
    ack_of_several=lambda: Ack((1, 127, 128, 65_536, 2**63)),
    ack_of_none=lambda: Ack(()),
    chunk_smallest=lambda: ChunkHeader(0, 0, 0, 0, 0),
    chunk_first_of_several=lambda: ChunkHeader(5, 2, 0, 70_000, 120),
    chunk_largest=lambda: ChunkHeader(
        2**63, 2**32, 260 * 2**20 - 1, 260 * 2**20, header_bytes=4 * 2**20
    ),
)

CODECS = (FRAMES, PACKED, UNPACKED, LOSSLESS, CHUNKS)
