"""int8 with a scale per group of 64 channels, and the few outliers of a group in 16 bits.

A row is cut into groups; each is divided by its largest magnitude over 127 and rounded. Large
models have a few massive channels, hundreds of times their neighbours: one of them alone would set
the step of its whole group and round the neighbours away. So a group whose peak stands far above
its mean gives up what exceeds eight times its median, at most eight elements. These travel beside
the codes: column and value, a float32 value as bfloat16, the other two types exactly.

Packed: scales (bfloat16, [rows, groups]), outliers of each row (uint16), codes (int8, [rows,
width]), columns of all outliers (uint16), their values (16 bits).

Rows are independent, and so are groups: no result depends on how rows are batched. A group that
holds inf or nan comes out as nan altogether. That loses nothing: the next layer's norm and
projection spread it over the whole row anyway, and other rows stay clean.

One scale per row was rejected: with two channels at 200 times the others it leaves an error of 56 %
on those (groups of 64 without outliers: 8 %). A fixed list of massive channels per model was
rejected: it needs calibration, and which channels they are changes with the layer. float16 scales
were rejected: they round eight times finer, which is not felt, and overflow.
"""

import numpy as np
import numpy.typing as npt

from molink.errors import FrameError
from molink.wire.elements import (
    Elements,
    Floats,
    TensorHeader,
    as_elements,
    bfloat16_to_float32,
    float32_to_bfloat16,
    new_elements,
    peaks_of,
    piece_rows,
    row_pieces,
    store,
    to_float32,
)

GROUP = 64
"""Channels that share a scale: 3 % of the bytes go into scales; 32 would double that."""

OUTLIERS_PER_GROUP_MAX = 8
"""Most outliers of a group: at four bytes each the worst group takes 98 bytes, still less than its
128 in bfloat16."""

SPIKY = 6.0
"""Times the mean magnitude above which a group's peak makes it worth sorting. Eight equal massive
channels in a group still reach 8; normally distributed values reach 6 in one group of 10,000."""

OUTLIER = 8.0
"""Times the median magnitude above which an element is an outlier: 5.4 standard deviations of
normally distributed values, so that the rounding error of what remains is 1.2 % of one at worst and
0.6 % on average. A lower bar takes more of what is merely large: with six and a SPIKY of 4, rows
whose channels differ fourfold in scale are packed half as fast and gain a tenth of the error."""

PEAK_MIN = np.float32(2.0**-100)
"""Groups below it are sent as zeros: the inverse of a smaller scale could overflow."""

_SCALE_MIN = PEAK_MIN / np.float32(127)
"""Stands in for the scale of groups that have none: all zero, or nan."""

_OUTLIER_BYTES = 4

_Shorts = npt.NDArray[np.uint16]
_Indices = npt.NDArray[np.intp]


def packed_bytes_max(header: TensorHeader) -> int:
    """Every group with all the outliers it may have."""
    outliers = header.rows * _groups(header.width) * OUTLIERS_PER_GROUP_MAX
    return _fixed_bytes(header) + _OUTLIER_BYTES * outliers


def encode(header: TensorHeader, buffer: bytes | memoryview) -> memoryview:
    """Pack rows as 8-bit numbers, each group with a scale."""
    elements = as_elements(header, buffer)
    packed = np.empty(_fixed_bytes(header), np.uint8)
    scales, counts, codes = _parts(header, packed)
    spans: list[_Indices] = []
    memory = np.empty((2, piece_rows(header), scales.shape[1] * GROUP), np.float32)
    for piece in row_pieces(header):
        values_RW, magnitudes_RW = memory[:, : piece.stop - piece.start]
        to_float32(_filled_up(elements[piece]), values_RW)
        values_NG, magnitudes_NG = values_RW.reshape(-1, GROUP), magnitudes_RW.reshape(-1, GROUP)
        peaks, places = _without_outliers(values_NG, np.abs(values_NG, out=magnitudes_NG))
        scales[piece] = _divide_by_scale(values_NG, peaks).reshape(-1, scales.shape[1])
        codes[piece] = np.rint(values_RW, out=values_RW)[:, : header.width]
        spans.append(places + piece.start * values_RW.shape[1])
    counts[:] = 0
    if not any(places.size for places in spans):
        return packed.data
    rows, columns = _rows_and_columns(header, np.concatenate(spans))
    counts[:] = np.bincount(rows, minlength=header.rows)
    tail = columns.astype(np.uint16), _to_16_bits(elements[rows, columns])
    return np.concatenate([packed, *(part.view(np.uint8) for part in tail)]).data


def decode(header: TensorHeader, packed: bytes | memoryview) -> memoryview:
    """The rows again. Raises FrameError when the parts do not fit the header or one another."""
    everything = np.frombuffer(packed, np.uint8)
    fixed_bytes = _fixed_bytes(header)
    if everything.size < fixed_bytes:
        raise FrameError(f"{everything.size} bytes of int8 where {fixed_bytes} is the least")
    scales, counts, codes = _parts(header, everything[:fixed_bytes])
    rows, columns, kept = _read_outliers(header, counts, everything[fixed_bytes:])
    out = new_elements(header)
    memory = np.empty((piece_rows(header), scales.shape[1] * GROUP), np.float32)
    for piece in row_pieces(header):
        values_RW = memory[: piece.stop - piece.start]
        values_RW[:, : header.width] = codes[piece]
        values_NG = values_RW.reshape(-1, GROUP)
        values_NG *= bfloat16_to_float32(scales[piece]).reshape(-1, 1)
        store(values_RW[:, : header.width], header, out[piece])
    if rows.size:
        out[rows, columns] = _from_16_bits(kept, out.dtype)
    return out.reshape(-1).view(np.uint8).data


# -- layout -------------------------------------------------------------------------------------


def _groups(width: int) -> int:
    return -(-width // GROUP)


def _fixed_bytes(header: TensorHeader) -> int:
    return header.rows * (2 * _groups(header.width) + 2 + header.width)


def _parts(
    header: TensorHeader, packed: npt.NDArray[np.uint8]
) -> tuple[_Shorts, _Shorts, npt.NDArray[np.int8]]:
    """Scales [rows, groups], outlier counts [rows] and codes [rows, width], as views."""
    groups = _groups(header.width)
    counts_at = 2 * header.rows * groups
    codes_at = counts_at + 2 * header.rows
    return (
        packed[:counts_at].view(np.uint16).reshape(header.rows, groups),
        packed[counts_at:codes_at].view(np.uint16),
        packed[codes_at:].view(np.int8).reshape(header.rows, header.width),
    )


def _read_outliers(
    header: TensorHeader, counts: _Shorts, tail: npt.NDArray[np.uint8]
) -> tuple[_Indices, _Shorts, _Shorts]:
    """Row, column and value of each outlier."""
    count = int(counts.sum(dtype=np.int64))
    if tail.size != _OUTLIER_BYTES * count:
        raise FrameError(f"{tail.size} bytes of outliers where {count} were announced")
    columns, kept = tail[: 2 * count].view(np.uint16), tail[2 * count :].view(np.uint16)
    if count and int(columns.max()) >= header.width:
        raise FrameError(f"an outlier in column {columns.max()} of {header.width}")
    return np.repeat(np.arange(header.rows), counts), columns, kept


# -- encoding a piece of rows; N is rows x groups, G the channels of a group ----------------------


def _filled_up(elements: Elements) -> Elements:
    """A short last group gets its own elements again until it is full, which changes neither its
    peak nor what is an outlier in it."""
    width = elements.shape[1]
    missing = -width % GROUP
    if not missing:
        return elements
    last = width // GROUP * GROUP
    return np.hstack([elements, elements[:, last + np.arange(missing) % (width - last)]])


def _without_outliers(values_NG: Floats, magnitudes_NG: Floats) -> tuple[Floats, _Indices]:
    """Zero the outliers; the peaks of what remains, and where the outliers were in all of N x G."""
    peaks = peaks_of(magnitudes_NG)
    means = np.einsum("ng->n", magnitudes_NG) * np.float32(1 / GROUP)
    spiky = np.flatnonzero(peaks > np.float32(SPIKY) * means)
    if not spiky.size:
        return peaks, spiky
    spiky_NG = magnitudes_NG[spiky]
    found = np.flatnonzero(spiky_NG > _limits(spiky_NG)[:, np.newaxis])
    spiky_NG.reshape(-1)[found] = 0
    peaks[spiky] = peaks_of(spiky_NG)
    places = spiky[found // GROUP] * GROUP + found % GROUP
    values_NG.reshape(-1)[places] = 0
    return peaks, places


def _limits(magnitudes_NG: Floats) -> Floats:
    """Magnitude that an outlier of each group exceeds."""
    ordered_NG = np.sort(magnitudes_NG, axis=1)
    limits: Floats = np.float32(OUTLIER) * ordered_NG[:, GROUP // 2]
    return np.maximum(limits, ordered_NG[:, -1 - OUTLIERS_PER_GROUP_MAX], out=limits)


def _divide_by_scale(values_NG: Floats, peaks: Floats) -> _Shorts:
    """Bring each group into -127 to 127, and say by which bfloat16 it was divided."""
    finite = np.isfinite(peaks)
    if not finite.all():
        values_NG[~finite], peaks[~finite] = 0, np.nan
    peaks[peaks < PEAK_MIN] = 0
    scales = _rounded_up(peaks * np.float32(1 / 127))
    used = np.fmax(bfloat16_to_float32(scales), _SCALE_MIN)
    values_NG *= (np.float32(1) / used)[:, np.newaxis]
    return scales


def _rounded_up(scales: Floats) -> _Shorts:
    """The scales as bfloat16, never smaller, so that no code exceeds 127."""
    return ((scales.view(np.uint32) + 0xFFFF) >> 16).astype(np.uint16)


def _rows_and_columns(header: TensorHeader, places: _Indices) -> tuple[_Indices, _Indices]:
    """Row and column of every outlier, in order, without those that only filled a group."""
    rows, columns = np.divmod(places, _groups(header.width) * GROUP)
    if header.width % GROUP:
        real = columns < header.width
        return rows[real], columns[real]
    return rows, columns


def _to_16_bits(elements: Elements) -> _Shorts:
    if elements.itemsize == 2:
        return elements.view(np.uint16)
    largest = np.float32(2.0**128 - 2.0**120)
    return float32_to_bfloat16(np.clip(elements, -largest, largest)).astype(np.uint16)


def _from_16_bits(kept: _Shorts, dtype: np.dtype[np.generic]) -> Elements:
    return bfloat16_to_float32(kept) if dtype.itemsize == 4 else kept.view(dtype)
