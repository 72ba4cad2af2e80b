"""Lossless: the first bytes of all elements, then the second bytes, each plane through zstd.

Neighbouring activations have similar exponents and unrelated mantissas. Side by side they look like
noise to a compressor; with the bytes sorted by their place in the element, the plane with sign and
exponent shrinks by half or more. Each plane is a zstd frame of its own, because one frame shares a
Huffman table between planes that have nothing in common: at one to eight rows of bfloat16 that is
0.70 to 0.72 of the size instead of 0.79 to 0.83. A plane that does not shrink goes raw, and zstd
finds out about that twenty times faster than it compresses, so nothing is gained by guessing.

Packed: the size of each plane (uint32), then the planes, the most significant last. A plane as long
as the tensor has elements is raw. Level 3 was rejected: half the speed and no smaller.
"""

import threading

import numpy as np
import numpy.typing as npt
import zstandard

from molink.errors import FrameError
from molink.wire.elements import ELEMENT_BYTES, TensorHeader

LEVEL = 1

WINDOW_BYTES_MAX = 8 * 2**20
"""Largest window, far above what level 1 asks for; a frame that wants a larger one is not ours."""

_SIZE_BYTES = 4

_Bytes = npt.NDArray[np.uint8]


class _Contexts(threading.local):
    """zstd's working memory, one for each thread: it must not be shared and takes long to set
    up."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)


_contexts = _Contexts()


def packed_bytes_max(header: TensorHeader) -> int:
    """Size when no plane can be compressed."""
    return _SIZE_BYTES * ELEMENT_BYTES[header.dtype] + header.raw_bytes


def encode(header: TensorHeader, buffer: bytes | memoryview) -> bytes:
    """The planes, each smaller than it was or raw."""
    element_bytes = ELEMENT_BYTES[header.dtype]
    elements = np.frombuffer(buffer, np.uint8).reshape(-1, element_bytes)
    planes = [_shrunk(elements[:, place].tobytes()) for place in range(element_bytes)]
    sizes = np.array([len(plane) for plane in planes], np.uint32)
    return b"".join([sizes.tobytes(), *planes])


def decode(header: TensorHeader, packed: bytes | memoryview) -> memoryview:
    """The elements again.

    Raises FrameError when a plane is not as long as the header says; that is known before any
    memory is taken for it.
    """
    element_bytes = ELEMENT_BYTES[header.dtype]
    count = header.rows * header.width
    planes = [_grown(plane, count) for plane in _split(packed, element_bytes)]
    elements = np.empty((count, element_bytes), np.uint8)
    for place, plane in enumerate(planes):
        elements[:, place] = plane
    return elements.reshape(-1).data


def _shrunk(plane: bytes) -> bytes:
    frame = _contexts.compressor.compress(plane)
    return frame if len(frame) < len(plane) else plane


def _split(packed: bytes | memoryview, planes_count: int) -> list[_Bytes]:
    start = _SIZE_BYTES * planes_count
    everything = np.frombuffer(packed, np.uint8)
    if everything.size < start:
        raise FrameError(f"{everything.size} bytes cannot list the sizes of {planes_count} planes")
    ends = start + np.cumsum(everything[:start].view(np.uint32), dtype=np.int64)
    if ends[-1] != everything.size:
        raise FrameError(f"planes up to byte {ends[-1]} in {everything.size} bytes")
    return np.split(everything[start:], ends[:-1] - start)


def _grown(plane: _Bytes, count: int) -> _Bytes:
    if plane.size == count:
        return plane
    try:
        announced = zstandard.frame_content_size(plane.data)
        if plane.size > count or announced != count:
            raise FrameError(f"a plane of {announced} bytes where {count} were due")
        raw = _contexts.decompressor.decompress(
            plane.data, max_output_size=count, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise FrameError(f"a plane that zstd cannot read: {error}") from error
    if len(raw) != count:
        raise FrameError(f"a plane of {len(raw)} bytes where {count} were due")
    return np.frombuffer(raw, np.uint8)
