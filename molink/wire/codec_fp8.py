"""fp8 in the e4m3 layout: sign, four bits of exponent, three of mantissa; one scale per row.

A floating format keeps three bits of every element however much larger its neighbours are, so
massive channels cost it nothing and one scale per row is enough; in return ordinary elements are
four times coarser than in int8. The scale is a power of two: exact to divide by, and a finer one
would only shift the range. Elements under 1/14,000 of their row's peak begin to lose bits, those
under 1/230,000 begin to vanish.

Packed: scales (bfloat16, [rows]), codes ([rows, width]). Rows are independent. A row that holds inf
or nan comes out as nan altogether, which the next layer's norm and projection would make of it.

Here it is arithmetic on the bits in numpy, so every node can read it; it is offered where a device
has the format, because there the device packs it. Bit tricks on subnormal float32, which would
save the second branch, were rejected: torch may have switched the processor to flush those to zero.
"""

import numpy as np
import numpy.typing as npt

from molink.errors import FrameError
from molink.wire.elements import (
    Floats,
    TensorHeader,
    as_elements,
    bfloat16_to_float32,
    new_elements,
    peaks_of,
    piece_rows,
    row_pieces,
    store,
    to_float32,
)

LARGEST = np.float32(448.0)
"""Largest finite value: exponent 15 and mantissa 6; mantissa 7 is nan."""

NORMAL_MIN = np.float32(2.0**-6)
"""Magnitude below which steps are even, 2**-9 wide."""

PEAK_MIN = np.float32(2.0**-100)
"""Rows below it are sent as zeros: the inverse of a smaller scale could overflow."""

_EXPONENT_SHIFT = (127 - 7) << 3
"""Difference of the exponent biases of float32 and e4m3, in units of an e4m3 mantissa step."""


def _value(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return float("nan")
    magnitude = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -magnitude if code & 128 else magnitude


_VALUES = np.array([_value(code) for code in range(256)], np.float32)

_Shorts = npt.NDArray[np.uint16]
_Words = npt.NDArray[np.uint32]
_Codes = npt.NDArray[np.uint8]


def packed_bytes_max(header: TensorHeader) -> int:
    """The only size there is."""
    return header.rows * (2 + header.width)


def encode(header: TensorHeader, buffer: bytes | memoryview) -> memoryview:
    """Pack rows as e4m3 numbers, each row with a scale."""
    elements = as_elements(header, buffer)
    packed = np.empty(packed_bytes_max(header), np.uint8)
    scales, codes = _parts(header, packed)
    memory = np.empty((piece_rows(header), header.width), np.float32)
    for piece in row_pieces(header):
        values_RW = memory[: piece.stop - piece.start]
        to_float32(elements[piece], values_RW)
        scales[piece] = _divide_by_scale(values_RW)
        codes[piece] = _codes(values_RW)
    return packed.data


def decode(header: TensorHeader, packed: bytes | memoryview) -> memoryview:
    """The rows again. Raises FrameError when the size is not the header's."""
    if len(packed) != packed_bytes_max(header):
        raise FrameError(f"{len(packed)} bytes of fp8, not {packed_bytes_max(header)}")
    scales, codes = _parts(header, np.frombuffer(packed, np.uint8))
    out = new_elements(header)
    memory = np.empty((piece_rows(header), header.width), np.float32)
    for piece in row_pieces(header):
        values_RW = memory[: piece.stop - piece.start]
        _VALUES.take(codes[piece], mode="clip", out=values_RW)
        values_RW *= bfloat16_to_float32(scales[piece])[:, np.newaxis]
        store(values_RW, header, out[piece])
    return out.reshape(-1).view(np.uint8).data


def _parts(header: TensorHeader, packed: _Codes) -> tuple[_Shorts, _Codes]:
    """Scales [rows] and codes [rows, width], as views."""
    codes_at = 2 * header.rows
    codes = packed[codes_at:].reshape(header.rows, header.width)
    return packed[:codes_at].view(np.uint16), codes


def _divide_by_scale(values_RW: Floats) -> _Shorts:
    """Bring each row into -448 to 448, and say by which bfloat16 it was divided."""
    peaks = peaks_of(np.abs(values_RW))
    finite = np.isfinite(peaks)
    if not finite.all():
        values_RW[~finite] = 0
    carried = finite & (peaks >= PEAK_MIN)
    mantissas, exponents = np.frexp(np.where(carried, peaks / LARGEST, 0))
    exponents -= mantissas == 0.5
    values_RW *= np.where(carried, np.ldexp(np.float32(1), -exponents), 0)[:, np.newaxis]
    scales = np.where(carried, np.ldexp(np.float32(1), exponents), 0)
    halves = (scales.view(np.uint32) >> 16).astype(np.uint16)
    halves[~finite] = 0x7FC0
    return halves


def _codes(values_RW: Floats) -> _Words:
    """The nearest e4m3, ties to even, in the lowest byte of each number."""
    bits = values_RW.view(np.uint32)
    signs = (bits >> 24) & 0x80
    magnitudes = np.abs(values_RW)
    codes = _normal_codes(magnitudes.view(np.uint32))
    small = magnitudes < NORMAL_MIN
    if small.any():
        codes[small] = np.rint(magnitudes[small] * np.float32(512)).astype(np.uint32)
    codes |= signs
    return codes


def _normal_codes(bits: _Words) -> _Words:
    """Float32 bits rounded to three bits of mantissa, with the exponent of e4m3."""
    to_even = (bits >> 20) & 1
    codes = bits + to_even + 0x7FFFF
    codes >>= 20
    codes -= _EXPONENT_SHIFT
    return codes
