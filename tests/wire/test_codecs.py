"""Codecs: what goes in comes out within the codec's error, and nothing a peer sends breaks one."""

import contextlib
import warnings

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.errors import FrameError
from molink.wire.codecs import (
    CODECS,
    UNPACKED_BYTES_MAX,
    decode,
    encode,
    packed_bytes_max,
)
from molink.wire.elements import ELEMENT_BYTES, TensorHeader

LOSSY = ("int8", "fp8")
DTYPES = tuple(ELEMENT_BYTES)
LARGEST = {"float32": 3.4e38, "bfloat16": 3.38e38, "float16": 65504}

dtypes = st.sampled_from(DTYPES)
headers = st.builds(TensorHeader, dtypes, st.integers(0, 5), st.integers(1, 200))


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def to_bytes(dtype, values):
    values = np.asarray(values, np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with np.errstate(all="ignore"):
        return values.astype(dtype).tobytes()


def to_values(header, buffer):
    if header.dtype == "bfloat16":
        values = (np.frombuffer(buffer, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(buffer, header.dtype)
    with np.errstate(all="ignore"):
        return values.reshape(header.rows, header.width).astype(np.float64)


def round_trip(codec, header, buffer):
    return decode(codec, header, encode(codec, header, buffer))


@st.composite
def bit_patterns(draw):
    """Any bits: infinities, nan payloads, subnormals."""
    header = draw(headers)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    return header, random.bytes(header.raw_bytes)


@st.composite
def tensors(draw):
    """Numbers of a residual stream: channels of different scale, a few of them massive."""
    header = draw(headers)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = 10.0 ** draw(st.integers(-6, 3))
    values = random.standard_normal((header.rows, header.width)) * scale
    for _ in range(draw(st.integers(0, 4))):
        values[:, draw(st.integers(0, header.width - 1))] *= draw(st.sampled_from([0, 3, 20, 200]))
    values = values.clip(-LARGEST[header.dtype], LARGEST[header.dtype])
    return header, to_bytes(header.dtype, values)


def scale_peaks(codec, values):
    """For each element the largest magnitude that may share its scale."""
    if codec == "fp8":
        return np.abs(values).max(axis=1, keepdims=True, initial=0) * np.ones_like(values)
    padded = np.pad(np.abs(values), ((0, 0), (0, -values.shape[1] % 64)))
    peaks = padded.reshape(len(values), padded.shape[1] // 64, 64).max(axis=2, initial=0)
    return np.repeat(peaks, 64, axis=1)[:, : values.shape[1]]


@pytest.mark.parametrize("codec", ["raw", "lossless"])
@given(tensor=bit_patterns() | tensors())
def test_every_bit_comes_back(codec, tensor):
    header, buffer = tensor
    assert bytes(round_trip(codec, header, buffer)) == buffer


ELEMENT_ERRORS = {"int8": 0.008, "fp8": 0.0625}
"""Largest error of a finite element, as a part of the largest magnitude that shares its scale: the
rest of its group without outliers for int8, its row for fp8. int8: half a step of 1/127 (0.004, the
scale rounded up included), and the result rounded to bfloat16 (as much again; a tenth of it in
float16). fp8: half a step of 1/8."""


@pytest.mark.parametrize("codec", LOSSY)
@given(tensor=tensors())
def test_the_error_is_within_what_the_codec_states(codec, tensor):
    header, buffer = tensor
    before, after = (to_values(header, b) for b in (buffer, round_trip(codec, header, buffer)))
    subnormal = 2.0**-24 if header.dtype == "float16" else 2.0**-100
    bound = ELEMENT_ERRORS[codec] * scale_peaks(codec, before) + subnormal
    assert (np.abs(after - before) <= bound).all()


@pytest.mark.parametrize("codec", CODECS)
@given(tensor=bit_patterns())
def test_any_bits_can_be_sent(codec, tensor):
    header, buffer = tensor
    before, after = (to_values(header, b) for b in (buffer, round_trip(codec, header, buffer)))
    bad_rows = ~np.isfinite(before).all(axis=1)
    assert (~np.isfinite(after).all(axis=1) == bad_rows).all()


@pytest.mark.parametrize("codec", CODECS)
@given(tensor=bit_patterns() | tensors(), cut=st.integers(0, 5))
def test_rows_do_not_depend_on_their_batch(codec, tensor, cut):
    header, buffer = tensor
    cut = min(cut, header.rows)
    at = cut * header.raw_bytes // max(header.rows, 1)
    pieces = [
        bytes(round_trip(codec, TensorHeader(header.dtype, rows, header.width), part))
        for rows, part in ((cut, buffer[:at]), (header.rows - cut, buffer[at:]))
    ]
    assert b"".join(pieces) == bytes(round_trip(codec, header, buffer))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_pieces_of_long_tensors(codec, dtype):
    values = np.random.default_rng(1).standard_t(3, (300, 1000))
    header, buffer = TensorHeader(dtype, 300, 1000), to_bytes(dtype, values)
    whole = bytes(round_trip(codec, header, buffer))
    row = header.raw_bytes // 300
    one = TensorHeader(dtype, 1, 1000)
    for at in range(0, len(buffer), row):
        alone = round_trip(codec, one, buffer[at : at + row])
        assert bytes(alone) == whole[at : at + row]


@pytest.mark.parametrize("codec", CODECS)
@given(tensor=bit_patterns() | tensors())
def test_sizes_are_as_announced(codec, tensor):
    header, buffer = tensor
    packed = encode(codec, header, buffer)
    assert len(packed) == memoryview(packed).nbytes <= packed_bytes_max(codec, header)
    assert len(decode(codec, header, packed)) == header.raw_bytes


@pytest.mark.parametrize(
    ("codec", "rows", "ratio"),
    [("int8", 8, 0.525), ("int8", 200, 0.525), ("fp8", 8, 0.502), ("lossless", 1, 0.75)],
)
def test_a_residual_stream_shrinks(codec, rows, ratio):
    random = np.random.default_rng(3)
    values = random.standard_normal((rows, 768)) * random.uniform(1, 4, 768)
    header = TensorHeader("bfloat16", rows, 768)
    assert len(encode(codec, header, to_bytes("bfloat16", values))) <= ratio * header.raw_bytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("massive", [(3, 11), (3, 700), tuple(range(64, 72))])
def test_massive_channels_spare_their_neighbours(dtype, massive):
    values = np.random.default_rng(4).standard_normal((64, 768))
    values[:, massive] *= 200
    header, buffer = TensorHeader(dtype, 64, 768), to_bytes(dtype, values)
    before, after = (to_values(header, b) for b in (buffer, round_trip("int8", header, buffer)))
    others = np.setdiff1d(np.arange(768), massive)
    error = np.sqrt(((after - before)[:, others] ** 2).mean() / (before[:, others] ** 2).mean())
    assert error < 0.01
    assert np.abs(after - before)[:, massive].max() <= 0.005 * np.abs(before).max()


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_broken_row_stays_broken_and_alone(codec, poison):
    values = np.ones((3, 128), np.float32)
    values[1, 5] = poison
    header = TensorHeader("bfloat16", 3, 128)
    after = to_values(header, round_trip(codec, header, to_bytes("bfloat16", values)))
    assert np.isnan(after[1, :64]).all()
    assert (np.abs(after[[0, 2]] - 1) < 0.01).all()


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_do_not_become_infinite(codec, dtype):
    values = np.full((2, 64), LARGEST[dtype], np.float32) * np.linspace(-1, 1, 64)
    header = TensorHeader(dtype, 2, 64)
    assert np.isfinite(to_values(header, round_trip(codec, header, to_bytes(dtype, values)))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_keeps_what_e4m3_can_hold(dtype):
    steps = np.concatenate(
        [np.arange(16) / 512, *(2.0**e * np.arange(8, 16) for e in range(-9, 6))]
    )
    held = np.concatenate([steps[steps <= 448], -steps[steps <= 448]])
    header = TensorHeader(dtype, 1, len(held))
    after = to_values(header, round_trip("fp8", header, to_bytes(dtype, held[np.newaxis])))
    assert (after[0] == held).all()


def test_fp8_takes_the_nearest():
    values = np.random.default_rng(5).uniform(-448, 448, (1, 4000)) ** 3 / 448**2
    values[0, 0] = 448
    header = TensorHeader("float32", 1, 4000)
    before = to_values(header, to_bytes("float32", values))[0]
    after = to_values(header, round_trip("fp8", header, to_bytes("float32", values)))[0]
    held = np.unique(np.concatenate([np.arange(8) / 512, np.unique(np.abs(after))]))
    nearest = np.abs(np.abs(before)[:, np.newaxis] - held).min(axis=1)
    assert np.allclose(np.abs(after - before), nearest, rtol=1e-6)


# -- what peers may send ------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@given(header=headers, packed=st.binary(max_size=400))
@settings(max_examples=200)
def test_noise_is_refused_or_read(codec, header, packed):
    with contextlib.suppress(FrameError):
        assert len(decode(codec, header, packed)) == header.raw_bytes


@pytest.mark.parametrize("codec", CODECS)
@given(tensor=tensors(), data=st.data())
@settings(max_examples=200)
def test_damage_is_refused_or_read(codec, tensor, data):
    header, buffer = tensor
    packed = bytearray(encode(codec, header, buffer))
    for _ in range(data.draw(st.integers(1, 3))):
        if packed:
            packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(packed)) | st.just(len(packed)))
    damaged = bytes(packed[:end]) + data.draw(st.binary(max_size=2))
    with contextlib.suppress(FrameError):
        assert len(decode(codec, header, damaged)) == header.raw_bytes


def lossless_with(*planes):
    sizes = np.array([len(plane) for plane in planes], np.uint32)
    return sizes.tobytes() + b"".join(planes)


@pytest.mark.parametrize("write_content_size", [True, False])
def test_a_bomb_is_refused_before_it_goes_off(write_content_size):
    compressor = zstandard.ZstdCompressor(write_content_size=write_content_size)
    bomb = compressor.compress(bytes(2**26))
    header = TensorHeader("bfloat16", 64, 4096)
    with pytest.raises(FrameError):
        decode("lossless", header, lossless_with(bytes(header.raw_bytes // 2), bomb))


def test_planes_that_are_not_ours_are_refused():
    header, half = TensorHeader("bfloat16", 8, 64), bytes(512)
    frame = zstandard.compress(half)
    assert bytes(decode("lossless", header, lossless_with(frame, half))) == bytes(1024)
    for planes in [(frame,), (frame, frame + b"x"), (frame, frame[:-1]), (half, half, half)]:
        with pytest.raises(FrameError):
            decode("lossless", header, lossless_with(*planes))


def test_an_outlier_beyond_the_row_is_refused():
    values = np.ones((1, 64), np.float32)
    values[0, 5] = 1000
    header = TensorHeader("bfloat16", 1, 64)
    packed = bytearray(encode("int8", header, to_bytes("bfloat16", values)))
    assert packed[-4:-2] == b"\x05\x00"
    packed[-4] = 64
    with pytest.raises(FrameError, match="column 64 of 64"):
        decode("int8", header, bytes(packed))


@pytest.mark.parametrize(
    "header",
    [
        TensorHeader("float64", 1, 8),
        TensorHeader("bfloat16", -1, 8),
        TensorHeader("bfloat16", 1, 0),
        TensorHeader("bfloat16", 1, 2**40),
        TensorHeader("float32", UNPACKED_BYTES_MAX, 8),
    ],
)
@pytest.mark.parametrize("codec", CODECS)
def test_impossible_tensors_are_refused(codec, header):
    for action in (lambda: packed_bytes_max(codec, header), lambda: decode(codec, header, b"")):
        with pytest.raises(FrameError):
            action()


def test_an_unknown_codec_is_refused():
    header = TensorHeader("bfloat16", 1, 8)
    with pytest.raises(FrameError, match="unknown codec 'zip'"):
        decode("zip", header, bytes(16))


def test_a_buffer_of_another_size_is_refused():
    header = TensorHeader("bfloat16", 1, 8)
    for codec in CODECS:
        with pytest.raises(FrameError):
            encode(codec, header, bytes(15))


def test_raw_is_not_copied():
    header, buffer = TensorHeader("bfloat16", 1, 8), bytes(16)
    assert encode("raw", header, buffer) is buffer
    assert decode("raw", header, buffer) is buffer
