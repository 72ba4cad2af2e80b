"""The bytes of a GGUF file's tensors, and how types that no kernel reads are written anew.

Blocks of few or odd bits become blocks of eight with a scale for 32 values, which is finer than any
of them, plain numbers fp32. Some rows at a time, so that a tensor of any size takes little memory.
What blocks mean, and how numbers become blocks, the format's own package says.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from molink.checkpoint.gguf.block_types import BlockType
from molink.checkpoint.gguf.header import GgufTensor
from molink.errors import CheckpointError

PIECE_BYTES = 16 * 2**20
"""Bytes read and written at a time."""

RECODED_NUMBERS = 2**18
"""Numbers written anew at a time."""


def pieces_of(tensor: GgufTensor, start: int, stop: int) -> Iterator[bytes]:
    """Bytes of a tensor from `start` to `stop`, whole rows of a tensor that is written anew."""
    if tensor.stored is None:
        yield from _read(tensor.path, start, stop)
        return
    inputs, old = tensor.shape[-1], tensor.stored
    old_bytes = inputs // old.type.values * old.type.size
    count = max(1, RECODED_NUMBERS // inputs)
    last = stop // tensor.row_bytes
    for row in range(start // tensor.row_bytes, last, count):
        rows = min(count, last - row)
        first = old.start + row * old_bytes
        raw = b"".join(_read(tensor.path, first, first + rows * old_bytes))
        yield _recoded(np.frombuffer(raw, np.uint8).reshape(rows, old_bytes), old.type)


def whole(tensor: GgufTensor) -> np.ndarray:
    """All bytes of a tensor."""
    return np.frombuffer(b"".join(pieces_of(tensor, tensor.start, tensor.stop)), np.uint8)


def _read(path: Path, start: int, stop: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while start < stop:
            piece = file.read(min(PIECE_BYTES, stop - start))
            if not piece:
                raise CheckpointError(f"{path} has become shorter: fetch it again")
            start += len(piece)
            yield piece


def _recoded(raw: np.ndarray, old: BlockType) -> bytes:
    values = _numbers(raw, old)
    return values.tobytes() if old.values == 1 else blocks_of_8(values)


def numbers(tensor: GgufTensor) -> np.ndarray:
    """Numbers that a tensor means, in fp32."""
    raw = whole(tensor).reshape(*tensor.shape[:-1], tensor.row_bytes)
    return _numbers(raw, tensor.type)


def blocks_of_8(values: np.ndarray) -> bytes:
    """Rows of numbers as blocks of Q8_0."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    return bytes(quantize(values, GGMLQuantizationType.Q8_0))


PLAIN = {"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F64": "<f8"}
"""Types of plain numbers that the package does not read, as numpy names them."""

LEVELS = {"Q1_0": (-1, 1), "Q2_0": (-1, 0, 1, 2)}
"""Numbers for codes, times a block's scale, of other types that the package does not read."""


def _level_values(blocks: np.ndarray, levels: tuple[int, ...]) -> np.ndarray:
    bits = len(levels) // 2
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    codes = (blocks[..., 2:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & (len(levels) - 1)
    values = np.array(levels, np.float32)[codes].reshape(*blocks.shape[:2], -1)
    return np.asarray((scale * values).reshape(len(blocks), -1))


def _numbers(raw: np.ndarray, kind: BlockType) -> np.ndarray:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    if kind.name in PLAIN:
        return raw.view(PLAIN[kind.name]).astype(np.float32)
    if kind.name in LEVELS:
        return _level_values(raw.reshape(len(raw), -1, kind.size), LEVELS[kind.name])
    if kind.name == "Q8_K":  # Nor this: a scale, codes, and their sums.
        blocks = raw.reshape(len(raw), -1, kind.size)
        scale = blocks[..., :4].copy().view(np.float32)
        return (scale * blocks[..., 4:260].view(np.int8)).reshape(len(raw), -1)
    return np.asarray(dequantize(raw, GGMLQuantizationType[kind.name.upper()]))
