"""What a hostile neighbour's bytes may become: refused by kind, size and memory before they are."""

import tracemalloc

import msgpack
import pytest

from molink.errors import FrameError
from molink.wire.chunks import (
    LINK_FRAME_BYTES_MAX,
    OPEN_TRANSFERS_MAX,
    ChunkHeader,
    Reassembly,
    decode_link_frame,
)
from molink.wire.elements import TensorHeader
from molink.wire.frames import (
    FROM_COORDINATOR,
    FROM_STAGE,
    FROM_TAIL,
    HEADER_BYTES_MAX,
    HEADERS_BYTES_MAX,
    SAMPLED,
    SAMPLES_MAX,
    SUBMIT,
    Activations,
    BlocksFetched,
    Cancel,
    ChangeCache,
    FinishReason,
    Forget,
    Sampled,
    SetCodec,
    Submit,
    TokenSample,
    decode_message,
    encode_message,
)
from molink.wire.headers import ARRAYS_MAX
from molink.wire.protocol import PROTOCOL_VERSION
from molink_scheduler.batch import (
    ADMITTED_BULK_BYTES_MAX,
    Admission,
    Batch,
    BatchClass,
    Release,
    Span,
)
from molink_scheduler.kv.changes import Fetched, RetainBlocks
from molink_scheduler.request import (
    GRAMMAR_CHARS_MAX,
    LOGIT_BIAS_BYTES,
    LOGIT_BIAS_COUNT_MAX,
    LOGPROBS_MAX,
    Request,
    SamplingParams,
)
from molink_scheduler.stage.book import MESSAGE_ROWS_MAX
from molink_scheduler.token_ids import token_bytes

MEMORY_PER_BYTE = 26
"""Two bytes of msgpack may be an integer of 32 bytes and its place in an array of pointers."""

MEMORY_OF_NESTING = 80 * 2**20
"""msgpack takes room for some 8,000 values at each of its 1,024 levels before it looks further."""

SAMPLING = SamplingParams(max_tokens=8)
BATCH = Batch(1, BatchClass.DECODE, 0, (Span(1, 0, 1, True),))
SENT_BY = {
    FROM_COORDINATOR: [Submit(Request(1, token_bytes((1,)), SAMPLING)), Cancel(1), SetCodec("raw")],
    FROM_STAGE: [
        Activations(BATCH, TensorHeader("bfloat16", 1, 4), bytes(8)),
        Forget(Release(1)),
    ],
    FROM_TAIL: [Sampled(BatchClass.DECODE, 0, (), (TokenSample(1, 2),))],
}


def array(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")


def header(kind: int, fields: bytes, size: int) -> bytes:
    """Of a message whose fields are an array of `fields`, as many as fit."""
    start = bytes([0x94, PROTOCOL_VERSION, kind, 1])
    count = (size - len(start) - 5) // len(fields)
    return start + array(count) + fields * count


def peak_of(call, *arguments) -> int:
    """Bytes of memory that a call takes which refuses its arguments."""
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            call(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("role", SENT_BY)
@pytest.mark.parametrize("sender", SENT_BY)
def test_a_link_carries_what_its_sender_has_to_say_and_nothing_else(role, sender):
    for message in SENT_BY[sender]:
        frames = encode_message(message, 1)
        if role is sender:
            assert decode_message(frames, role) == (message, 1)
            continue
        with pytest.raises(FrameError, match=f"{role.sender} does not send"):
            decode_message(frames, role)


def test_what_stays_cached_goes_from_the_coordinator_to_the_head_and_down_the_ring():
    message = ChangeCache(RetainBlocks(((1, 2), (7, 1))))
    for role in (FROM_COORDINATOR, FROM_STAGE):
        assert decode_message(encode_message(message, 1), role) == (message, 1)
    with pytest.raises(FrameError, match="does not send"):
        decode_message(encode_message(message, 1), FROM_TAIL)


def test_every_stage_says_what_is_back_and_the_coordinator_does_not():
    message = BlocksFetched(Fetched(1, 2))
    for role in (FROM_STAGE, FROM_TAIL):
        assert decode_message(encode_message(message, 1), role) == (message, 1)
    with pytest.raises(FrameError, match="does not send"):
        decode_message(encode_message(message, 1), FROM_COORDINATOR)


@pytest.mark.parametrize("kind", HEADERS_BYTES_MAX)
def test_each_kind_has_a_size_of_its_own(kind):
    frame = header(kind, b"\x01", HEADERS_BYTES_MAX[kind] + 100)
    assert peak_of(decode_message, [frame]) < 2**20


HOSTILE = {
    "empty maps": b"\x80",
    "extensions": b"\xd4\x05a",
    "timestamps": b"\xd6\xff\0\0\0\1",
    "small arrays": b"\x91\x01",
    "short texts": b"\xa2ab",
    "small numbers": b"\xd0\x80",
    "numbers": b"\xcd\x55\x55",
    "floats": b"\xca\x01\x01\x01\x01",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", [SUBMIT, SAMPLED])
def test_a_header_takes_little_more_memory_than_an_honest_one(name, kind):
    """16 MiB of empty maps once became 1.3 GiB."""
    size = HEADERS_BYTES_MAX[kind]
    assert peak_of(decode_message, [header(kind, HOSTILE[name], size)]) < MEMORY_PER_BYTE * size


@pytest.mark.parametrize("kind", [SUBMIT, SAMPLED])
def test_arrays_within_arrays_take_no_more_either(kind):
    size = HEADERS_BYTES_MAX[kind]
    nested = bytes([0x94, PROTOCOL_VERSION, kind, 1]) + array(size) * 1000
    frame = nested + b"\x01" * (size - len(nested))
    assert peak_of(decode_message, [frame]) < MEMORY_PER_BYTE * size + MEMORY_OF_NESTING


def test_the_largest_honest_messages_pass():
    rows = range(MESSAGE_ROWS_MAX)
    spans = tuple(Span(2**31 + row, 2**17, 2**17 + 1, True) for row in rows)
    tokens = tuple(TokenSample(2**31 + row, 2**17, FinishReason.NONE) for row in rows)
    returned = Sampled(BatchClass.DECODE, 63, spans, tokens)
    assert decode_message(encode_message(returned, 2**40), FROM_TAIL)[0] == returned
    top = tuple((2**17 + place, -0.1 * place) for place in range(LOGPROBS_MAX))
    full = tuple(TokenSample(2**31 + n, 2**17, FinishReason.NONE, -0.1, top) for n in rows)
    copy = Sampled(BatchClass.DECODE, 63, (), full[:SAMPLES_MAX])
    assert decode_message(encode_message(copy, 2**40), FROM_TAIL)[0] == copy
    admissions = tuple(Admission(2**31 + row, 5, 2**17, SAMPLING, (7,) * 5) for row in rows)
    batch = Batch(2**40, BatchClass.PREFILL, -1, spans, admissions)
    tensor = TensorHeader("bfloat16", len(spans), 4)
    whole = Activations(batch, tensor, bytes(tensor.raw_bytes))
    assert decode_message(encode_message(whole, 2**40), FROM_STAGE)[0] == whole
    prompt = Request(2**31, token_bytes((2**17,)) * 500_000, SAMPLING)
    assert decode_message(encode_message(Submit(prompt), 1), FROM_COORDINATOR)[0] == Submit(prompt)
    assert 8 * MESSAGE_ROWS_MAX + ADMITTED_BULK_BYTES_MAX // LOGIT_BIAS_BYTES < ARRAYS_MAX


def test_the_longest_grammars_and_the_most_biases_of_a_batch_pass():
    biases = tuple((token, -0.1) for token in range(LOGIT_BIAS_COUNT_MAX))
    for sampling in (
        SamplingParams(max_tokens=1, logit_bias=biases),
        SamplingParams(max_tokens=1, logit_bias=biases, grammar="\U0001f512" * GRAMMAR_CHARS_MAX),
    ):
        count = ADMITTED_BULK_BYTES_MAX // sampling.bulk_bytes
        spans = tuple(Span(row, 0, 1, True) for row in range(count))
        admissions = tuple(Admission(row, 1, 2, sampling) for row in range(count))
        batch = Batch(1, BatchClass.PREFILL, -1, spans, admissions)
        tensor = TensorHeader("bfloat16", count, 4)
        whole = Activations(batch, tensor, bytes(tensor.raw_bytes))
        assert decode_message(encode_message(whole, 1), FROM_STAGE)[0] == whole


def test_a_message_without_rows_has_no_buffer():
    with pytest.raises(FrameError, match="no buffer"):
        decode_message([*encode_message(Cancel(1), 1), b"more"])


def test_a_link_frame_is_measured_before_it_is_read():
    largest = ChunkHeader(2**63, 2**63, 2**20, 2**20, 2**20)
    assert len(largest.encode()) <= LINK_FRAME_BYTES_MAX
    maps = msgpack.packb((PROTOCOL_VERSION, 65, [{}] * 2**20))
    assert peak_of(decode_link_frame, maps) < 2**12


def test_transfers_that_never_begin_or_never_end_are_few():
    """A million of one byte with an empty first piece once took 209 MiB."""
    reassembly = Reassembly(FROM_TAIL.message_bytes_max)
    for number in range(1000):
        assert reassembly.take(ChunkHeader(number, number, 0, 1, 1), b"") is None
    assert reassembly.chunks_refused == 1000 and not reassembly._open
    for number in range(1000, 2000):
        assert reassembly.take(ChunkHeader(number, number, 0, 2, 1), b"x") is None
    assert len(reassembly._open) == OPEN_TRANSFERS_MAX


def test_a_link_announces_no_more_than_it_may_carry():
    size = FROM_TAIL.message_bytes_max
    reassembly = Reassembly(size)
    assert reassembly.take(ChunkHeader(0, 1, 0, size + 1, 9), b"too large") is None
    assert reassembly.chunks_refused == 1
    for number in range(1, 4):
        assert reassembly.take(ChunkHeader(number, number, 0, size, 9), b"as large") is None
    assert reassembly._open_bytes == 2 * size
    assert FROM_TAIL.message_bytes_max < FROM_COORDINATOR.message_bytes_max == HEADER_BYTES_MAX
