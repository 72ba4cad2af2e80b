"""From the shapes of a quantized weight's parts to its outputs, inputs, bits and group.

Each format has its own order of dimensions. Everything that follows from one shape is compared with
the others: a part of another matrix, a group size that is not the stored one or a truncated export
would else come out as noise.
"""

from collections.abc import Mapping

from molink.checkpoint.gguf.block_types import BLOCK_TYPES
from molink.checkpoint.quantized.declared import DeclaredQuantization, refusal
from molink.checkpoint.quantized.stored_weight import (
    MXFP4_GROUP,
    StoredPart,
    StoredWeight,
    WeightFormat,
)
from molink.checkpoint.safetensors_header import StoredTensor
from molink.errors import CheckpointError

Parts = dict[str, StoredTensor]
"""Tensors of one weight, each by the suffix of its name; "" is the plain name itself."""

FLOATS = ("F16", "BF16", "F32", "F64")
"""Types of a weight that is not quantized, and of scales."""

ITEM_BYTES = {"I64": 8, "F64": 8, "I32": 4, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a number of each type; all others take one."""

BLOCK_SUFFIXES = {f"_{block.name}": block for block in BLOCK_TYPES.values()}
"""Type of the blocks of an imported GGUF file, by what ends the name of their tensor."""

METHODS_OF: Mapping[WeightFormat, tuple[str, ...]] = {
    WeightFormat.PACK_QUANTIZED: ("compressed-tensors",),
    WeightFormat.AWQ: ("awq",),
    WeightFormat.GPTQ: ("gptq",),
    WeightFormat.MXFP4: ("mxfp4", "gguf"),
    WeightFormat.INT8: ("compressed-tensors",),
    WeightFormat.FP8: ("fp8", "compressed-tensors"),
    WeightFormat.GGUF: ("gguf",),
}
"""Methods (`quant_method`) that a config declares where weights of a format are. Another, or none,
leaves open what the codes mean: the zero of GPTQ's versions, for example."""

WORD_BITS = 32
"""Bits of an integer that holds several codes."""

GROUP_MIN = 16
"""Inputs that share a scale, at least: with fewer, scales would take as much as codes."""

DIMENSION_MAX = 2**31
"""Largest dimension of a matrix; products of two still fit the numbers of every machine."""


def stored_weight(
    name: str, plain: str, parts: Parts, declared: DeclaredQuantization
) -> StoredWeight:
    """The weight `plain` of the checkpoint `name`, from its parts. Raises CheckpointError where
    they do not fit together, UnsupportedModelError where no reader knows them."""
    try:
        for part in parts.values():
            _check_bytes(part)
        weight = _weight(plain, parts, declared)
    except KeyError as error:
        raise CheckpointError(
            f"{name} lacks {_module(plain)}{error.args[0]}, a part of a quantized weight; "
            "fetch it again"
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"the parts of the quantized weight {plain} of {name} do not fit together ({error}); "
            "fetch it again, or take another version of it"
        ) from error
    if weight is None or declared.method not in METHODS_OF[weight.format]:
        types = ", ".join(sorted(f"{part.name} {part.dtype}" for part in parts.values()))
        raise refusal(name, f"an unknown scheme ({types})")
    return weight


def _weight(plain: str, parts: Parts, declared: DeclaredQuantization) -> StoredWeight | None:
    if ".weight_packed" in parts:
        return _pack_quantized(plain, parts, declared)
    if ".qweight" in parts:
        qweight, scales = parts[".qweight"], parts[".scales"]
        if _matrix(qweight)[1] == _matrix(scales)[1]:
            return _gptq(plain, parts, declared)
        return _awq(plain, parts, declared)
    if "_blocks" in parts:
        return _mxfp4(plain, parts)
    if suffixes := parts.keys() & BLOCK_SUFFIXES.keys():
        return _gguf(plain, parts, suffixes.pop()) if len(parts) == 1 else None
    scale = parts.get("_scale_inv") or parts.get(".weight_scale")
    if scale is None or parts[""].dtype not in ("F8_E4M3", "I8") or ".weight_zero_point" in parts:
        return None
    return _scaled(plain, parts[""], scale, declared)


def _module(plain: str) -> str:
    return plain.removesuffix(".weight")


# -- integers in words ----------------------------------------------------------------------------


def _pack_quantized(
    plain: str, parts: Parts, declared: DeclaredQuantization
) -> StoredWeight | None:
    codes, scale = parts[".weight_packed"], parts[".weight_scale"]
    if codes.dtype != "I32" or scale.dtype not in FLOATS:
        return None
    bits = declared.bits or 4
    outputs, words = _matrix(codes)
    inputs = words * WORD_BITS // bits
    rows, groups = _matrix(scale)
    _same("scales for rows", rows, outputs)
    found = {
        StoredPart.CODES: codes,
        StoredPart.SCALE: scale,
        StoredPart.SHAPE: parts[".weight_shape"],
    }
    _same("numbers in its shape", _size(parts[".weight_shape"]), 2)
    if ".weight_zero_point" in parts:
        found[StoredPart.ZERO] = zero = parts[".weight_zero_point"]
        if zero.dtype != "I32":
            return None
        _same("zero points", _matrix(zero), (_words(outputs, bits), groups))
    return _integers(plain, WeightFormat.PACK_QUANTIZED, found, outputs, inputs, bits, declared)


def _awq(plain: str, parts: Parts, declared: DeclaredQuantization) -> StoredWeight | None:
    codes, scale, zero = parts[".qweight"], parts[".scales"], parts[".qzeros"]
    if codes.dtype != "I32" or zero.dtype != "I32" or scale.dtype not in FLOATS:
        return None
    inputs, words = _matrix(codes)
    groups, outputs = _matrix(scale)
    _same("codes in a row", words, _words(outputs, 4))
    _same("zero points", _matrix(zero), (groups, words))
    found = {StoredPart.CODES: codes, StoredPart.SCALE: scale, StoredPart.ZERO: zero}
    return _integers(plain, WeightFormat.AWQ, found, outputs, inputs, 4, declared)


def _gptq(plain: str, parts: Parts, declared: DeclaredQuantization) -> StoredWeight | None:
    codes, scale, zero = parts[".qweight"], parts[".scales"], parts[".qzeros"]
    if codes.dtype != "I32" or zero.dtype != "I32" or scale.dtype not in FLOATS:
        return None
    words, outputs = _matrix(codes)
    found = {StoredPart.CODES: codes, StoredPart.SCALE: scale, StoredPart.ZERO: zero}
    inputs = words * WORD_BITS // (declared.bits or 4)
    if ".g_idx" in parts:
        found[StoredPart.ORDER] = parts[".g_idx"]
        inputs = _size(parts[".g_idx"])
    bits = words * WORD_BITS // inputs
    if bits not in (4, 8):
        raise ValueError(f"{words * WORD_BITS} bits hold no {inputs} codes of 4 or 8")
    _same("zero points", _matrix(zero), (_matrix(scale)[0], _words(outputs, bits)))
    return _integers(plain, WeightFormat.GPTQ, found, outputs, inputs, bits, declared)


def _integers(
    plain: str,
    form: WeightFormat,
    parts: Mapping[StoredPart, StoredTensor],
    outputs: int,
    inputs: int,
    bits: int,
    declared: DeclaredQuantization,
) -> StoredWeight:
    groups = _size(parts[StoredPart.SCALE]) // outputs
    weight = StoredWeight(
        plain,
        form,
        parts,
        outputs,
        inputs,
        bits,
        group=_group(inputs, groups, declared.group),
        zero_offset=declared.zero_offset if form is WeightFormat.GPTQ else 0,
    )
    if weight.packed_group < GROUP_MIN:
        raise ValueError(f"{inputs} inputs in groups of {weight.group} need too many scales")
    return weight


def _group(inputs: int, groups: int, declared: int | None) -> int:
    """Inputs of a group, where a row has so many groups."""
    if declared is not None and -(-inputs // declared) == groups:
        return declared
    if inputs % groups:
        raise ValueError(f"{groups} groups for {inputs} inputs")
    return inputs // groups


# -- floating point -------------------------------------------------------------------------------


def _mxfp4(plain: str, parts: Parts) -> StoredWeight | None:
    blocks, scales = parts["_blocks"], parts["_scales"]
    if blocks.dtype != "U8" or scales.dtype != "U8":
        return None
    if len(blocks.shape) != 4 or 2 * blocks.shape[-1] != MXFP4_GROUP:
        raise ValueError(f"blocks of shape {blocks.shape}")
    experts, outputs, groups, _ = _positive(blocks.shape)
    _same("exponents", scales.shape, blocks.shape[:-1])
    found = {StoredPart.CODES: blocks, StoredPart.SCALE: scales}
    inputs = groups * MXFP4_GROUP
    return StoredWeight(plain, WeightFormat.MXFP4, found, outputs, inputs, 4, MXFP4_GROUP, experts)


def _gguf(plain: str, parts: Parts, suffix: str) -> StoredWeight:
    block, codes = BLOCK_SUFFIXES[suffix], parts[suffix]
    *stack, outputs, row_bytes = _positive(codes.shape)
    if len(stack) > 1:
        raise ValueError(f"{codes.name} of shape {codes.shape}")
    _same("bytes in a row", row_bytes % block.size, 0)
    inputs = row_bytes // block.size * block.values
    return StoredWeight(
        plain,
        WeightFormat.GGUF,
        {StoredPart.CODES: codes},
        outputs,
        inputs,
        block.bits,
        block.group,
        stack[0] if stack else None,
        block=block.name,
    )


def _scaled(
    plain: str, codes: StoredTensor, scale: StoredTensor, declared: DeclaredQuantization
) -> StoredWeight | None:
    if scale.dtype not in (*FLOATS, "F8_E8M0"):
        return None
    *stack, outputs, inputs = _positive(codes.shape)
    if len(stack) > 1:
        return None
    rows, group = _scaled_block(scale, stack, outputs, inputs, declared.block)
    found = {StoredPart.CODES: codes, StoredPart.SCALE: scale}
    form = WeightFormat.INT8 if codes.dtype == "I8" else WeightFormat.FP8
    experts = stack[0] if stack else None
    return StoredWeight(plain, form, found, outputs, inputs, 8, group, experts, scale_rows=rows)


def _scaled_block(
    scale: StoredTensor, stack: list[int], outputs: int, inputs: int, block: tuple[int, int]
) -> tuple[int, int]:
    """Rows and inputs that share a scale."""
    if _size(scale) == 1:
        return outputs, inputs
    shape = scale.shape if len(scale.shape) > 1 else (*scale.shape, 1)
    if shape == (*stack, outputs, 1):
        return 1, inputs
    blocks = (*stack, -(-outputs // block[0]), -(-inputs // block[1]))
    if shape == blocks:
        return block
    raise ValueError(f"scales of shape {scale.shape} for a weight of {outputs} x {inputs}")


# -- sizes ----------------------------------------------------------------------------------------


def _check_bytes(tensor: StoredTensor) -> None:
    wanted = _size(tensor) * ITEM_BYTES.get(tensor.dtype, 1)
    if tensor.stop - tensor.start != wanted:
        raise ValueError(f"{tensor.name} has {tensor.stop - tensor.start} bytes, not {wanted}")


def _positive(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) < 2 or not all(0 < size < DIMENSION_MAX for size in shape):
        raise ValueError(f"the shape {shape}")
    return shape


def _matrix(tensor: StoredTensor) -> tuple[int, int]:
    if len(tensor.shape) != 2:
        raise ValueError(f"{tensor.name} of shape {tensor.shape}")
    rows, columns = _positive(tensor.shape)
    return rows, columns


def _size(tensor: StoredTensor) -> int:
    size = 1
    for dimension in tensor.shape:
        size *= dimension
    if not 0 < size < DIMENSION_MAX**2:
        raise ValueError(f"{tensor.name} of shape {tensor.shape}")
    return size


def _words(count: int, bits: int) -> int:
    """Words that hold so many codes."""
    return -(-count * bits // WORD_BITS)


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise ValueError(f"{what}: {found}, not {wanted}")
