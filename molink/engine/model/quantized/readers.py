"""From a stored quantized weight to its packed form: a short function for each format.

Codes are moved as bytes and never widened: in compressed-tensors and MXFP4 a row's bytes are in our
order as they lie in the file, in GPTQ once its words are transposed. Only AWQ, which stores the
transpose with the columns of a word in an order of its own, is taken apart.

All affine formats of four bits become w = scale * (q - 8) + zero with zero = scale * (8 - z), which
is exact in fp32 for scales of 16 bits, and within 0.02 of a step where a stage computes in bf16.

Shapes: N outputs, K inputs, G groups of a row.
"""

from collections.abc import Callable

import torch

from molink.checkpoint.quantized.declared import ACT_ORDER, WITHOUT_ACT_ORDER
from molink.checkpoint.quantized.stored_weight import StoredPart, StoredWeight, WeightFormat
from molink.engine.kernels.packed_weights import (
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    Mxfp4Weight,
    QuantizedWeight,
)
from molink.engine.model.quantized.block_readers import read_blocks
from molink.engine.model.quantized.tensor_files import TensorFiles
from molink.errors import CheckpointError, UnsupportedModelError

AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of a word that holds column 0, 1, ... of its eight."""

BLOCK_ROWS = 256
"""Outputs of AWQ that are taken apart at a time; what is in between stays in the cache."""

CENTRE = {4: 8, 8: 128}
"""Code that stands for zero where a format stores no zero points."""

Read = Callable[[StoredPart], torch.Tensor]
"""Reader of one part of the weight at hand."""


def read_weight(
    stored: StoredWeight, files: TensorFiles, dtype: torch.dtype, expert: int | None = None
) -> QuantizedWeight:
    """The packed form of a stored weight, or of one expert of a stack, with scales in `dtype`.

    Raises CheckpointError for files that do not hold what their tables say, UnsupportedModelError
    for GPTQ in act-order.
    """

    def read(part: StoredPart) -> torch.Tensor:
        tensor = stored.parts[part]
        stacked = tensor.shape[:1] == (stored.experts,) and len(tensor.shape) > 1
        return files.read(tensor, expert if stacked else None)

    match stored.format:
        case WeightFormat.PACK_QUANTIZED:
            return _pack_quantized(stored, read, dtype)
        case WeightFormat.AWQ:
            return _awq(stored, read, dtype)
        case WeightFormat.GPTQ:
            return _gptq(stored, read, dtype)
        case WeightFormat.MXFP4:
            return Mxfp4Weight(read(StoredPart.CODES).flatten(1), read(StoredPart.SCALE))
        case WeightFormat.INT8:
            return Int8Weight(
                read(StoredPart.CODES), _scales(stored, read(StoredPart.SCALE)).to(dtype)
            )
        case WeightFormat.FP8:
            return Fp8Weight(read(StoredPart.CODES), _scales(stored, read(StoredPart.SCALE)))
        case WeightFormat.GGUF:
            return read_blocks(read(StoredPart.CODES), stored.block, dtype)


# -- integers in words ----------------------------------------------------------------------------


def _pack_quantized(stored: StoredWeight, read: Read, dtype: torch.dtype) -> QuantizedWeight:
    shape = read(StoredPart.SHAPE).tolist()
    if shape != [stored.outputs, stored.inputs]:
        raise CheckpointError(
            f"{stored.name} is a matrix of {stored.outputs} x {stored.inputs}, but its "
            f"weight_shape says {' x '.join(map(str, shape))}: take another version of the model"
        )
    codes_NB = read(StoredPart.CODES).view(torch.uint8)
    zero_NG = None
    if StoredPart.ZERO in stored.parts:  # Packed along N, which becomes the last dimension.
        zero_NG = _codes(read(StoredPart.ZERO).T.contiguous(), stored.bits)[:, : stored.outputs].T
    return _packed(stored, codes_NB, read(StoredPart.SCALE), zero_NG, dtype)


def _gptq(stored: StoredWeight, read: Read, dtype: torch.dtype) -> QuantizedWeight:
    _refuse_act_order(stored, read)
    codes_NB = read(StoredPart.CODES).T.contiguous().view(torch.uint8)
    zero_GN = _codes(read(StoredPart.ZERO), stored.bits)[:, : stored.outputs]
    zero_GN = (zero_GN.int() + stored.zero_offset) & (2**stored.bits - 1)
    return _packed(stored, codes_NB, read(StoredPart.SCALE).T, zero_GN.T, dtype)


def _refuse_act_order(stored: StoredWeight, read: Read) -> None:
    if StoredPart.ORDER not in stored.parts:
        return
    natural = torch.arange(stored.inputs) // stored.group
    if not torch.equal(read(StoredPart.ORDER).long(), natural):
        raise UnsupportedModelError(
            f"{stored.name} is quantized by GPTQ in {ACT_ORDER}: {WITHOUT_ACT_ORDER}"
        )


def _awq(stored: StoredWeight, read: Read, dtype: torch.dtype) -> QuantizedWeight:
    words_KW = read(StoredPart.CODES)
    codes_NB = torch.empty(8 * words_KW.shape[1], stored.inputs // 2, dtype=torch.uint8)
    for start in range(0, len(codes_NB), BLOCK_ROWS):
        block_WK = words_KW[:, start // 8 : (start + BLOCK_ROWS) // 8].T.contiguous()
        for column, codes_WB in enumerate(_awq_columns(block_WK)):
            codes_NB[start + column : start + BLOCK_ROWS : 8] = codes_WB
    nibbles_GN = _codes(read(StoredPart.ZERO), 4).unflatten(1, (-1, 8))  # type: ignore[no-untyped-call]
    zero_GN = nibbles_GN[..., AWQ_NIBBLES].flatten(1)
    return _packed(stored, codes_NB, read(StoredPart.SCALE).T, zero_GN.T, dtype)


def _awq_columns(words_WK: torch.Tensor) -> list[torch.Tensor]:
    """Packed codes of the first, second, ... output of each word: eight of [W, K/2]."""
    bytes_WK4 = words_WK.view(torch.uint8).view(*words_WK.shape, 4)
    columns = []
    for nibble in AWQ_NIBBLES:
        codes_WK = (bytes_WK4[..., nibble // 2] >> (4 * (nibble % 2))) & 15
        columns.append(codes_WK[:, 0::2] | codes_WK[:, 1::2] << 4)
    return columns


def _codes(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes in the words of each row, the lowest first."""
    codes = words.contiguous().view(torch.uint8)
    if bits == 8:
        return codes
    return torch.stack([codes & 15, codes >> 4], -1).flatten(1)


def _packed(
    stored: StoredWeight,
    codes_NB: torch.Tensor,
    scale_NG: torch.Tensor,
    zero_NG: torch.Tensor | None,
    dtype: torch.dtype,
) -> QuantizedWeight:
    """The value of unsigned codes with a zero point for each group, or with none at all."""
    scale = scale_NG.float()
    centre = CENTRE[stored.bits]
    zero = torch.zeros_like(scale) if zero_NG is None else scale * (centre - zero_NG.float())
    columns = _stored_groups(stored)
    scale, zero = scale[:, columns].to(dtype), zero[:, columns].to(dtype)
    if stored.bits == 4:
        return Int4Weight(codes_NB, scale, zero)
    signed = (codes_NB ^ 128).view(torch.int8)
    return Int8Weight(signed, scale, None if zero_NG is None else zero)


# -- scales ---------------------------------------------------------------------------------------


def _scales(stored: StoredWeight, scale: torch.Tensor) -> torch.Tensor:
    """Scales per tensor, row or block in fp32, one for each row and packed group: [N, G]."""
    if scale.numel() == 1:
        scale = scale.view(1, 1)
    scale_RG = scale.float().view(len(scale), -1)
    rows = torch.arange(stored.outputs) // stored.scale_rows
    return scale_RG[rows[:, None], _stored_groups(stored)]


def _stored_groups(stored: StoredWeight) -> torch.Tensor:
    """The stored group of each group in memory, which may be a part of it."""
    groups = stored.inputs // stored.packed_group
    return torch.arange(groups) * stored.packed_group // stored.group
