"""Whatever a neighbour sends as rows becomes rows of this model, or is refused."""

import math
from dataclasses import replace

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.engine.device.elements import elements_of, tensor_of
from molink.errors import FrameError
from molink.stage.packing import Packing
from molink.wire.codecs import CODECS
from molink.wire.elements import ELEMENT_BYTES, TensorHeader
from molink.wire.frames import Activations, decode_message, encode_message
from molink_scheduler.batch import Batch, BatchClass, Refusal, RowFault, Span

HIDDEN = 40
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def message(header: TensorHeader, buffer: bytes) -> Activations:
    return Activations(Batch(1, BatchClass.PREFILL, -1, (Span(1, 0, 3, False),)), header, buffer)


def rows_or_refused(header: TensorHeader, buffer: bytes) -> torch.Tensor | None:
    """What a stage makes of a message; anything else than FrameError is a failure."""
    try:
        frames = encode_message(message(header, buffer), epoch=1)
        received, _ = decode_message([bytes(frame) for frame in frames])
        return tensor_of(Packing(HIDDEN).unpack(received))
    except FrameError:
        return None


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ELEMENT_BYTES)
def test_rows_come_back_in_their_shape(codec, dtype):
    packing = Packing(HIDDEN)
    hidden = torch.linspace(-1, 1, 3 * HIDDEN).view(3, HIDDEN).to(DTYPES[dtype])
    received = tensor_of(packing.unpack(message(*packing.pack(elements_of(hidden), codec))))
    assert received.dtype == hidden.dtype
    assert torch.allclose(received.float(), hidden.float(), atol=0.07)


@pytest.mark.parametrize("ids, good", [((0, 9, 5), True), ((0, 10, 5), False), (None, False)])
def test_token_ids_come_with_rows_where_layers_read_them(ids, good):
    packing = Packing(HIDDEN, token_ids_below=10)
    header, buffer = packing.pack(np.zeros((3, HIDDEN), np.float32), "raw")
    sent = replace(message(header, buffer), token_ids=ids)
    received, _ = decode_message([bytes(frame) for frame in encode_message(sent, epoch=1)])
    assert Packing(HIDDEN).token_ids(received) == ()
    if good:
        assert packing.token_ids(received) == ids
        return
    with pytest.raises(FrameError, match="without the ids of their tokens"):
        packing.token_ids(received)


@pytest.mark.parametrize("ids", [b"", bytes(8), bytes(16), [1, 2, 3], None])
def test_ids_that_are_not_those_of_the_rows_are_refused(ids):
    header, buffer = Packing(HIDDEN).pack(np.zeros((3, HIDDEN), np.float32), "raw")
    first, rest = encode_message(message(header, buffer), epoch=1)
    version, kind, epoch, fields = msgpack.unpackb(first)
    for more in ([ids], [bytes(12), ids]):
        frames = [msgpack.packb([version, kind, epoch, [*fields, *more]]), bytes(rest)]
        with pytest.raises(FrameError):
            decode_message(frames)


@pytest.mark.parametrize("drafts", [[5] * 17, [-1], ["x"], [5] * 20, None, [[5]]])
def test_a_span_with_drafts_that_cannot_be_is_refused(drafts):
    rows = np.zeros((20, HIDDEN), np.float32)
    header, buffer = Packing(HIDDEN).pack(rows, "raw")
    spans = (Span(1, 4, 24, True, (7,)),)
    sent = Activations(Batch(1, BatchClass.DECODE, 0, spans), header, buffer)
    first, rest = encode_message(sent, epoch=1)
    fields = msgpack.unpackb(first)
    (span,) = fields[3][0][3]
    assert span[4] == [7]
    span[4] = drafts
    with pytest.raises(FrameError):
        decode_message([msgpack.packb(fields), bytes(rest)])


@pytest.mark.parametrize("codec", CODECS)
@given(
    dtype=st.sampled_from(tuple(ELEMENT_BYTES)),
    rows=st.sampled_from([3, 3, 3, 0, -1, 2, 2**31, 2**62]),
    width=st.sampled_from([HIDDEN, HIDDEN, HIDDEN, 0, -1, 1, 41, 2**16, 2**62]),
    buffer=st.binary(max_size=600),
)
@settings(max_examples=150)
def test_noise_becomes_rows_or_is_refused(codec, dtype, rows, width, buffer):
    hidden = rows_or_refused(TensorHeader(dtype, rows, width, codec), buffer)
    assert hidden is None or (hidden.shape, hidden.dtype) == ((3, HIDDEN), DTYPES[dtype])


@pytest.mark.parametrize("codec", CODECS)
@given(
    dtype=st.sampled_from(tuple(ELEMENT_BYTES)),
    seed=st.integers(0, 2**32),
    damage=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 4),
)
@settings(max_examples=150)
def test_damage_becomes_rows_or_is_refused(codec, dtype, seed, damage, cut):
    values = np.random.default_rng(seed).standard_normal((3, HIDDEN))
    rows = elements_of(torch.tensor(values).to(DTYPES[dtype]))
    header, packed = Packing(HIDDEN).pack(rows, codec)
    buffer = bytearray(packed)
    for place, byte in damage:
        buffer[place % len(buffer)] = byte
    hidden = rows_or_refused(header, bytes(buffer[: len(buffer) - cut]))
    assert hidden is None or (hidden.shape, hidden.dtype) == ((3, HIDDEN), DTYPES[dtype])


@pytest.mark.parametrize("codec", CODECS)
def test_rows_of_another_model_are_refused(codec):
    packed = Packing(HIDDEN + 1).pack(np.ones((3, HIDDEN + 1), np.float32), codec)
    with pytest.raises(FrameError, match="41 where this model's have 40"):
        Packing(HIDDEN).unpack(message(*packed))


def test_figures_are_of_the_present_codec():
    packing = Packing(HIDDEN)
    packing.pack(np.zeros((3, HIDDEN), np.float32), "raw")
    assert (packing.packed.codec, packing.packed.raw_bytes, packing.bytes_saved) == ("raw", 480, 0)
    for _ in range(2):
        _, buffer = packing.pack(np.zeros((3, HIDDEN), np.float32), "int8")
    packed = packing.packed
    assert (packed.codec, packed.raw_bytes, packed.packed_bytes) == ("int8", 960, 2 * len(buffer))
    assert packing.bytes_saved == 960 - 2 * len(buffer)


# -- rows that are no numbers ---------------------------------------------------------------------

THREE = Batch(1, BatchClass.DECODE, 0, tuple(Span(one, 4, 5, True) for one in (1, 2, 3)))


def rows_of_three(value: float = 1.0) -> np.ndarray:
    return np.array([[0.5, 1.0], [value, 1.0], [1.5, 2.0]], np.float32)


def test_rows_that_fit_are_handed_on_as_they_are():
    rows = rows_of_three()
    batch, same = Packing(2).fit(THREE, rows, "float32", received=True)
    assert batch is THREE and same is rows


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_a_bad_row_refuses_its_request_and_leaves_the_others_alone(lost):
    packing = Packing(2)
    for _ in range(2):  # However often it comes, the neighbour is complained about once.
        batch, fit = packing.fit(THREE, rows_of_three(lost), "float32", received=True)
        assert batch.refused == (Refusal(2, RowFault.RECEIVED),)
        assert fit.tolist() == [[0.5, 1.0], [0.0, 0.0], [1.5, 2.0]]
    assert packing.complaints == 1 and packing.refused == {2}


def test_the_own_overflow_is_no_complaint():
    packing = Packing(2)
    batch, _ = packing.fit(THREE, rows_of_three(math.inf), "float32")
    assert batch.refused == (Refusal(2, RowFault.OVERFLOWN),)
    beyond, _ = packing.fit(THREE, rows_of_three(7e4), "float16", received=True)
    assert beyond.refused == (Refusal(2, RowFault.OVERFLOWN),), "a wider format may hold it"
    assert packing.complaints == 0
