"""The elements of a residual stream as numpy arrays, bfloat16 among them.

numpy has no bfloat16. It is a float32 without its lower half, so shifting 16 bits turns one into
the other, and arithmetic in between is float32. Work goes row by row in pieces that stay in a
core's cache and share their working memory: numpy makes a new array at every step, and fresh arrays
of megabytes cost page faults, five times the arithmetic. The package ml_dtypes was rejected: one
more dependency for two shifts, and it does not cut the work into pieces.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Layout of the buffer behind an Activations header: row-major [rows, width] of one element
    type."""

    dtype: str
    """Format of the elements: "float32", "bfloat16" or "float16"."""
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


Elements = npt.NDArray[Any]
"""Elements in the type that they have on the wire; bfloat16 as uint16."""

Floats = npt.NDArray[np.float32]

PIECE_ELEMENTS = 64 * 1024
"""256 KB of float32: three such arrays fit an L2 cache of 1 MB. With half of it numpy's fixed cost
for each call is paid twice as often, which is a third more time."""

_STORAGE: dict[str, type] = {
    "float32": np.float32,
    "bfloat16": np.uint16,
    "float16": np.float16,
}

_LARGEST = {
    "float32": np.finfo(np.float32).max,
    "bfloat16": np.float32(2.0**128 - 2.0**120),
    "float16": np.float32(65504.0),
}
"""Largest finite value of each type, in float32."""


_NAMES = {np.dtype(storage).char: name for name, storage in _STORAGE.items()}
"""Names of element types, by numpy's letter for what holds them."""


def element_name(elements: Elements) -> str:
    """The name of their type on the wire."""
    return _NAMES[elements.dtype.char]


def as_elements(header: TensorHeader, buffer: bytes | bytearray | memoryview) -> Elements:
    """[rows, width] over the buffer, not copied."""
    flat: Elements = np.frombuffer(buffer, dtype=_STORAGE[header.dtype])
    return flat.reshape(header.rows, header.width)


def new_elements(header: TensorHeader) -> Elements:
    """[rows, width], not yet filled."""
    return np.empty((header.rows, header.width), dtype=_STORAGE[header.dtype])


def piece_rows(header: TensorHeader) -> int:
    """Rows of one piece; the last may be shorter."""
    return max(1, min(header.rows, PIECE_ELEMENTS // header.width))


def row_pieces(header: TensorHeader) -> Iterator[slice]:
    """Slices of rows that cover the tensor, each small enough for the cache."""
    step = piece_rows(header)
    return (slice(start, min(start + step, header.rows)) for start in range(0, header.rows, step))


def to_float32(elements: Elements, out: Floats) -> None:
    """Copy into `out`, exactly."""
    if elements.dtype == np.uint16:
        bits = out.view(np.uint32)
        bits[...] = elements
        bits <<= 16
    else:
        out[...] = elements


def store(values: Floats, header: TensorHeader, out: Elements) -> None:
    """Round `values` into `out`; beyond the largest finite value they saturate, nan stays nan.

    Overwrites `values`.
    """
    largest = _LARGEST[header.dtype]
    np.clip(values, -largest, largest, out=values)
    out[...] = float32_to_bfloat16(values) if header.dtype == "bfloat16" else values


def bfloat16_to_float32(halves: npt.NDArray[np.uint16]) -> Floats:
    """A float32 copy, exact."""
    bits = halves.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def float32_to_bfloat16(values: Floats) -> npt.NDArray[np.uint32]:
    """The nearest bfloat16, ties away from zero, in the lower half of each number.

    Overwrites `values`, which must not exceed bfloat16's largest. Ties to even would cost two more
    passes and change one product in 256 by its last bit.
    """
    bits = values.view(np.uint32)
    bits += 0x8000
    bits >>= 16
    return bits


def peaks_of(magnitudes: Floats) -> Floats:
    """Largest of each row of [n, m], none of them negative; inf and nan count as larger than all
    numbers.

    They are compared as integers, whose order is the same: numpy reduces those twice as fast as
    floats, for which it must look out for nan.
    """
    peaks: Floats = np.maximum.reduce(magnitudes.view(np.int32), axis=1).view(np.float32)
    return peaks
