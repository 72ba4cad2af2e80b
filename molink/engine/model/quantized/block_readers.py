"""From blocks of a GGUF file to a packed weight: a short function for each type.

A row is whole blocks; a block holds its codes, their scale and whatever else its type has. Codes
of four bits become Int4Weight, all others signed bytes; both keep the groups of the file, so the
numbers are those of the file, exactly in fp32 up to the rounding of one addition.

In most types the low nibbles of a block's bytes are its first half and the high ones its second,
where our order wants neighbours in one byte.

Shapes: N outputs, B blocks of a row, V values of a block, S bytes of a block, G groups of a row.
"""

from collections.abc import Callable

import torch

from molink.checkpoint.gguf.block_types import block_type_named
from molink.engine.kernels.packed_weights import (
    Int4Weight,
    Int8Weight,
    Mxfp4Weight,
    QuantizedWeight,
)

BLOCK_ROWS = 256
"""Rows that are taken apart at a time; what is in between stays small."""


def read_blocks(raw: torch.Tensor, name: str, dtype: torch.dtype) -> QuantizedWeight:
    """The packed form of rows of blocks, uint8 [N, bytes of a row], of the type `name`, with scales
    in `dtype`."""
    size = block_type_named(name).size
    whole: dict[str, torch.Tensor] = {}
    for start in range(0, len(raw), BLOCK_ROWS):
        rows = raw[start : start + BLOCK_ROWS]
        part = READERS[name](rows.view(len(rows), -1, size))
        for field, values in part.tensors().items():
            kept = values.to(dtype) if values.is_floating_point() else values
            if field not in whole:
                whole[field] = kept.new_empty(len(raw), *kept.shape[1:])
            whole[field][start : start + len(rows)] = kept
    return type(part)(**whole)


# -- pieces of blocks -----------------------------------------------------------------------------


def _half(blocks_NBS: torch.Tensor, at: int) -> torch.Tensor:
    """A number of fp16 in each block: [N, B] in fp32."""
    return blocks_NBS[..., at : at + 2].contiguous().view(torch.float16).float()[..., 0]


def _halves(bytes_NBX: torch.Tensor) -> torch.Tensor:
    """Codes of bytes whose low nibbles come first, then all high ones: [.., 2X]."""
    return torch.cat([bytes_NBX & 15, bytes_NBX >> 4], -1)


def _fifth_bits(blocks_NBS: torch.Tensor, at: int) -> torch.Tensor:
    """32 bits of each block, as the fifth bits of codes: [N, B, 32]."""
    bits = torch.arange(8, dtype=torch.uint8)
    return ((blocks_NBS[..., at : at + 4, None] >> bits) & 1).flatten(-2) << 4


def _pairs(codes_NBV: torch.Tensor) -> torch.Tensor:
    """Codes in our order, two in a byte: [N, K/2]."""
    codes_NK = codes_NBV.flatten(1)
    return codes_NK[:, 0::2] | codes_NK[:, 1::2] << 4


def _int4(codes: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> Int4Weight:
    """w = scale * q + offset."""
    return Int4Weight(_pairs(codes), scale, 8 * scale + offset)


def _int8(codes: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> Int8Weight:
    """Weight of codes of five bits, of 0 to 31: around their middle, for the offset is mostly what
    moves them there, and in bf16 two large numbers that nearly cancel lose what is left."""
    return Int8Weight(codes.flatten(1).view(torch.int8) - 16, scale, 16 * scale + offset)


# -- blocks of 32 ---------------------------------------------------------------------------------


def _q4_0(blocks: torch.Tensor) -> Int4Weight:
    scale = _half(blocks, 0)
    return Int4Weight(_pairs(_halves(blocks[..., 2:])), scale, torch.zeros_like(scale))


def _q4_1(blocks: torch.Tensor) -> Int4Weight:
    return _int4(_halves(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> Int8Weight:
    codes = _halves(blocks[..., 6:]) | _fifth_bits(blocks, 2)
    return Int8Weight(codes.flatten(1).view(torch.int8) - 16, _half(blocks, 0))


def _q5_1(blocks: torch.Tensor) -> Int8Weight:
    codes = _halves(blocks[..., 8:]) | _fifth_bits(blocks, 4)
    return _int8(codes, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> Int8Weight:
    return Int8Weight(blocks[..., 2:].flatten(1).view(torch.int8), _half(blocks, 0))


def _mxfp4(blocks: torch.Tensor) -> Mxfp4Weight:
    return Mxfp4Weight(_pairs(_halves(blocks[..., 1:])), blocks[..., 0].contiguous())


# -- blocks of 256 --------------------------------------------------------------------------------


def _six_bit_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and offset of the eight groups of each block: [N, G] each."""
    first, second, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = torch.cat([first & 63, (rest & 15) | (first >> 6 << 4)], -1)
    minimum = torch.cat([second & 63, (rest >> 4) | (second >> 6 << 4)], -1)
    offset = -(_half(blocks, 2)[..., None] * minimum)
    return (_half(blocks, 0)[..., None] * scale).flatten(1), offset.flatten(1)


def _k_nibbles(bytes_NBX: torch.Tensor) -> torch.Tensor:
    """Codes of groups of 32, two groups in 32 bytes: [N, B, 8, 32]."""
    pieces = bytes_NBX.unflatten(-1, (4, 32))  # type: ignore[no-untyped-call]
    return torch.stack([pieces & 15, pieces >> 4], -2).flatten(2, 3)


def _q4_k(blocks: torch.Tensor) -> Int4Weight:
    return _int4(_k_nibbles(blocks[..., 16:]), *_six_bit_scales(blocks))


def _q5_k(blocks: torch.Tensor) -> Int8Weight:
    group = torch.arange(8, dtype=torch.uint8)[:, None]
    fifth = (blocks[..., None, 16:48] >> group) & 1
    return _int8(_k_nibbles(blocks[..., 48:]) | fifth << 4, *_six_bit_scales(blocks))


def _q6_k(blocks: torch.Tensor) -> Int8Weight:
    low = blocks[..., :128].unflatten(-1, (2, 1, 64))  # type: ignore[no-untyped-call]
    low = torch.cat([low & 15, low >> 4], -2).flatten(-2)
    pair = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = blocks[..., 128:192].unflatten(-1, (2, 1, 32))  # type: ignore[no-untyped-call]
    high = ((high >> pair) & 3).flatten(-2)
    codes = (low | high << 4).flatten(1).view(torch.int8) - 32
    factors = blocks[..., 192:208].contiguous().view(torch.int8)
    return Int8Weight(codes, (_half(blocks, 208)[..., None] * factors).flatten(1))


READERS: dict[str, Callable[[torch.Tensor], QuantizedWeight]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "mxfp4": _mxfp4,
}
"""Readers by the name of the block type; each takes uint8 [N, B, S]."""
