"""Codecs: how rows of a residual stream are packed for a slow link, and unpacked at the far end.

    raw       the elements as they lie in memory; nothing is copied
    lossless  byte planes through zstd: 0.7 of the size, every bit back
    int8      a scale per group of 64, outliers in 16 bits: 0.52 of bfloat16
    fp8       e4m3 with a scale per row: 0.50 of bfloat16, for devices that have the format

Every codec treats each row by itself, so what a request gets never depends on who shared its batch
or on where a prompt was cut into spans. Sizes are compared with the header before memory is taken.
Codecs that carry something over from earlier rows (differences between tokens, trained
dictionaries) were rejected for that reason: a lost or reordered span would spoil those after it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from molink.errors import FrameError
from molink.wire import codec_fp8, codec_int8, codec_lossless
from molink.wire.elements import ELEMENT_BYTES, TensorHeader

UNPACKED_BYTES_MAX = 256 * 2**20
"""The limit of a raw buffer: a few packed bytes must not unpack to more than could have come
raw."""

WIDTH_MAX = 2**16
"""Columns of outliers are 16-bit numbers; four times the widest model."""

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Codec:
    """Functions of one codec of activations."""

    encode: Callable[[TensorHeader, Buffer], Buffer]
    decode: Callable[[TensorHeader, Buffer], Buffer]
    packed_bytes_max: Callable[[TensorHeader], int]


def _itself(header: TensorHeader, buffer: Buffer) -> Buffer:
    return buffer


_CODECS = {
    "raw": Codec(_itself, _itself, lambda header: header.raw_bytes),
    **{
        name: Codec(packing.encode, packing.decode, packing.packed_bytes_max)
        for name, packing in (
            ("lossless", codec_lossless),
            ("int8", codec_int8),
            ("fp8", codec_fp8),
        )
    },
}

CODECS: tuple[str, ...] = tuple(_CODECS)
"""Names of all codecs, as they stand in a header."""


def codec_named(name: str) -> Codec:
    """The codec of that name. Raises FrameError for an unknown one."""
    if name not in _CODECS:
        raise FrameError(f"unknown codec {name!r:.40}, this node has {', '.join(CODECS)}: update")
    return _CODECS[name]


def packed_bytes_max(codec: str, header: TensorHeader) -> int:
    """Most bytes that the packed form of such a tensor may have. Raises FrameError for a tensor
    beyond the limits."""
    chosen = codec_named(codec)
    _check(header)
    return chosen.packed_bytes_max(header)


def encode(codec: str, header: TensorHeader, buffer: Buffer) -> Buffer:
    """Pack a row-major [rows, width] buffer; `header.codec` is not looked at."""
    _check(header)
    if len(buffer) != header.raw_bytes:
        raise FrameError(f"{len(buffer)} bytes for a tensor of {header.raw_bytes}")
    with np.errstate(all="ignore"):
        return codec_named(codec).encode(header, buffer)


def decode(codec: str, header: TensorHeader, packed: Buffer) -> Buffer:
    """Unpack what `encode` made, `header.raw_bytes` long.

    Raises FrameError for anything else that came from a peer.
    """
    chosen = codec_named(codec)
    if len(packed) > packed_bytes_max(codec, header):
        raise FrameError(f"{len(packed)} bytes of {codec} are more than the tensor can take")
    with np.errstate(all="ignore"):
        raw = chosen.decode(header, packed)
    if len(raw) != header.raw_bytes:
        raise FrameError(f"{len(raw)} bytes for a tensor of {header.raw_bytes}")
    return raw


def _check(header: TensorHeader) -> None:
    """Refuse shapes that no model has, before anyone multiplies with them."""
    known = header.dtype in ELEMENT_BYTES
    if not (known and header.rows >= 0 and 1 <= header.width <= WIDTH_MAX):
        raise FrameError(
            f"no tensor of {header.rows} x {header.width} {header.dtype!r:.40} can be sent"
        )
    if header.raw_bytes > UNPACKED_BYTES_MAX:
        raise FrameError(f"a tensor of {header.raw_bytes} bytes, {UNPACKED_BYTES_MAX} is the most")
