"""Frames: what goes in comes out, and nothing malformed gets through as anything but FrameError."""

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.errors import FrameError
from molink.wire.elements import TensorHeader
from molink.wire.frames import (
    HEADER_BYTES_MAX,
    Activations,
    Message,
    decode_message,
    encode_message,
)
from molink.wire.protocol import PROTOCOL_VERSION
from molink_scheduler.batch import Batch, BatchClass, Span


@settings(max_examples=200)
@given(data=st.data(), epoch=st.integers(0, 2**31))
def test_a_message_comes_back_as_it_was(messages, data, epoch):
    message = data.draw(messages)
    decoded, decoded_epoch = decode_message(encode_message(message, epoch))
    assert decoded == message
    assert decoded_epoch == epoch


@settings(max_examples=200)
@given(data=st.data(), position=st.integers(0, 10**6), value=st.integers(0, 255))
def test_an_altered_header_is_a_message_or_a_frame_error(messages, data, position, value):
    header, *buffers = encode_message(data.draw(messages), 1)
    altered = bytearray(header)
    altered[position % len(altered)] = value
    try:
        message, _ = decode_message([bytes(altered), *buffers])
    except FrameError:
        return
    assert isinstance(message, Message)


@given(st.binary(max_size=60), st.lists(st.binary(max_size=8), max_size=2))
def test_noise_is_refused(header, buffers):
    with pytest.raises(FrameError):
        decode_message([header, *buffers])


def a_batch(rows: int = 2) -> Batch:
    return Batch(1, BatchClass.PREFILL, -1, (Span(1, 0, rows, True),))


@pytest.mark.parametrize(
    "tensor, size",
    [
        (TensorHeader("bfloat16", 2, 8), 31),
        (TensorHeader("bfloat16", 3, 8), 48),
        (TensorHeader("float32", 2, -8), 0),
        (TensorHeader("bfloat16", 2, 8, codec="pickle"), 32),
    ],
)
def test_a_buffer_that_is_not_what_its_header_says_is_refused(tensor, size):
    frames = encode_message(Activations(a_batch(), tensor, bytes(size)), 1)
    with pytest.raises(FrameError):
        decode_message(frames)


@pytest.mark.parametrize("dtype", ["float64", "object", "", 3])
def test_an_unknown_element_type_is_refused(dtype):
    header = [PROTOCOL_VERSION, 3, 1, [[1, 1, -1, [[1, 0, 2, True]], []], [dtype, 2, 8, "raw"]]]
    with pytest.raises(FrameError):
        decode_message([msgpack.packb(header), bytes(32)])


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [msgpack.packb([PROTOCOL_VERSION + 1, 2, 1, [5]])],
        [msgpack.packb([PROTOCOL_VERSION, 99, 1, [5]])],
        [msgpack.packb([PROTOCOL_VERSION, 2, 1, ["5"]])],
        [msgpack.packb([PROTOCOL_VERSION, 2, "1", [5]])],
        [msgpack.packb([PROTOCOL_VERSION, 2, 1, [True]])],
        [msgpack.packb([PROTOCOL_VERSION, 4, 1, []])],
        [bytes(HEADER_BYTES_MAX + 1)],
        [b"\x90", b"", b""],
    ],
)
def test_frames_off_the_schema_are_refused(frames):
    with pytest.raises(FrameError):
        decode_message(frames)


def test_a_decode_header_is_small():
    spans = tuple(Span(i, 100, 101, True) for i in range(8))
    batch = Batch(1000, BatchClass.DECODE, 0, spans)
    tensor = TensorHeader("bfloat16", 8, 768)
    header, _ = encode_message(Activations(batch, tensor, bytes(tensor.raw_bytes)), 1)
    assert len(header) < 150
