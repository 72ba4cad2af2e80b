"""Quantized weights told by names, types and shapes alone; a sentence where they are wrong."""

from math import prod

import pytest

from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.quantized.recognised import part_names, quantized_weights
from molink.checkpoint.quantized.shapes import ITEM_BYTES
from molink.checkpoint.quantized.stored_weight import StoredPart, WeightFormat
from molink.checkpoint.safetensors_header import StoredTensor
from molink.errors import CheckpointError, UnsupportedModelError

OUTPUTS, INPUTS = 96, 512
UP = "model.layers.0.mlp.up_proj"
EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"
COMPRESSED = DeclaredQuantization("compressed-tensors", bits=4, group=128)
AWQ = DeclaredQuantization("awq", bits=4, group=128)
GPTQ = DeclaredQuantization("gptq", bits=4, group=128, zero_offset=1)
FP8 = DeclaredQuantization("fp8")
MXFP4 = DeclaredQuantization("mxfp4")


def tensor(name, dtype, *shape):
    return StoredTensor(name, dtype, shape, 0, prod(shape) * ITEM_BYTES.get(dtype, 1))


def pack_quantized(group=128):
    return [
        tensor(f"{UP}.weight_packed", "I32", OUTPUTS, INPUTS // 8),
        tensor(f"{UP}.weight_scale", "BF16", OUTPUTS, INPUTS // group),
        tensor(f"{UP}.weight_shape", "I64", 2),
    ]


def awq():
    return [
        tensor(f"{UP}.qweight", "I32", INPUTS, OUTPUTS // 8),
        tensor(f"{UP}.qzeros", "I32", INPUTS // 128, OUTPUTS // 8),
        tensor(f"{UP}.scales", "F16", INPUTS // 128, OUTPUTS),
    ]


def gptq(inputs=INPUTS, groups=4):
    return [
        tensor(f"{UP}.qweight", "I32", inputs // 8, OUTPUTS),
        tensor(f"{UP}.qzeros", "I32", groups, OUTPUTS // 8),
        tensor(f"{UP}.scales", "F16", groups, OUTPUTS),
        tensor(f"{UP}.g_idx", "I32", inputs),
    ]


def mxfp4():
    return [
        tensor(f"{EXPERTS}_blocks", "U8", 4, OUTPUTS, INPUTS // 32, 16),
        tensor(f"{EXPERTS}_scales", "U8", 4, OUTPUTS, INPUTS // 32),
    ]


def fp8(*scale, name=".weight_scale_inv", dtype="F32"):
    return [
        tensor(f"{UP}.weight", "F8_E4M3", OUTPUTS, INPUTS),
        tensor(f"{UP}{name}", dtype, *scale),
    ]


PLAIN = [
    tensor("model.layers.0.input_layernorm.weight", "BF16", INPUTS),
    tensor("model.layers.0.mlp.router.per_expert_scales", "BF16", 4),
    tensor("model.embed_tokens.weight", "BF16", 1000, INPUTS),
]


def only(tensors, declared):
    (weight,) = quantized_weights("m", [*PLAIN, *tensors], declared).values()
    return weight


@pytest.mark.parametrize(
    ("tensors", "declared", "wanted"),
    [
        (pack_quantized(), COMPRESSED, (WeightFormat.PACK_QUANTIZED, 4, 128)),
        (pack_quantized(32), COMPRESSED, (WeightFormat.PACK_QUANTIZED, 4, 32)),
        (awq(), AWQ, (WeightFormat.AWQ, 4, 128)),
        (gptq(), GPTQ, (WeightFormat.GPTQ, 4, 128)),
        (gptq(groups=1), GPTQ, (WeightFormat.GPTQ, 4, INPUTS)),
        (fp8(1, 4), FP8, (WeightFormat.FP8, 8, 128)),
        (fp8(OUTPUTS, 1, name=".weight_scale", dtype="BF16"), FP8, (WeightFormat.FP8, 8, INPUTS)),
        (fp8(OUTPUTS, name=".weight_scale"), FP8, (WeightFormat.FP8, 8, INPUTS)),
        (fp8(1, name=".weight_scale"), FP8, (WeightFormat.FP8, 8, INPUTS)),
        (fp8(name=".weight_scale"), FP8, (WeightFormat.FP8, 8, INPUTS)),
    ],
)
def test_shapes_tell_bits_and_group(tensors, declared, wanted):
    weight = only(tensors, declared)
    assert (weight.format, weight.bits, weight.group) == wanted
    assert (weight.name, weight.outputs, weight.inputs) == (f"{UP}.weight", OUTPUTS, INPUTS)
    assert weight.file_bytes == sum(one.stop for one in tensors)


def test_the_stack_of_experts():
    weight = only(mxfp4(), MXFP4)
    assert (weight.name, weight.format) == (EXPERTS, WeightFormat.MXFP4)
    assert (weight.experts, weight.outputs, weight.inputs) == (4, OUTPUTS, INPUTS)
    codes = 4 * OUTPUTS * INPUTS // 2
    assert (weight.code_bytes, weight.scale_numbers) == (codes, codes // 16)


def test_eight_bits_are_told_from_four():
    tensors = gptq()
    tensors[0] = tensor(f"{UP}.qweight", "I32", INPUTS // 4, OUTPUTS)
    tensors[1] = tensor(f"{UP}.qzeros", "I32", 4, OUTPUTS // 4)
    assert only(tensors, GPTQ).bits == 8


@pytest.mark.parametrize(
    ("inputs", "declared", "groups", "stored", "packed"),
    [
        (688, 128, 6, 128, 16),
        (2880, 128, 23, 128, 64),
        (2880, None, 1, 2880, 64),
        (512, None, 1, 512, 256),
    ],
)
def test_scales_of_short_and_long_groups_are_repeated(inputs, declared, groups, stored, packed):
    scheme = DeclaredQuantization("gptq", bits=4, group=declared, zero_offset=1)
    weight = only(gptq(inputs, groups), scheme)
    assert (weight.group, weight.packed_group) == (stored, packed)


def test_four_bits_in_groups_of_128_take_four_and_a_quarter_bits():
    weight = only(pack_quantized(), COMPRESSED)
    assert weight.held_bytes(2) * 8 == OUTPUTS * INPUTS * 4.25
    assert weight.held_bytes(4) * 8 == OUTPUTS * INPUTS * 4.5
    assert only(fp8(OUTPUTS, 1), FP8).held_bytes(2) == OUTPUTS * INPUTS + 2 * OUTPUTS


def test_the_parts_are_told_from_all_other_tensors():
    weights = quantized_weights("m", [*PLAIN, *pack_quantized()], COMPRESSED)
    assert part_names(weights) == {one.name for one in pack_quantized()}
    assert set(weights[f"{UP}.weight"].parts) == {
        StoredPart.CODES,
        StoredPart.SCALE,
        StoredPart.SHAPE,
    }


def without(tensors, suffix):
    return [one for one in tensors if not one.name.endswith(suffix)]


def replaced(tensors, suffix, dtype, *shape):
    name = next(one.name for one in tensors if one.name.endswith(suffix))
    return [*without(tensors, suffix), tensor(name, dtype, *shape)]


@pytest.mark.parametrize(
    ("tensors", "declared", "words"),
    [
        (without(pack_quantized(), "scale"), COMPRESSED, "lacks .*up_proj.weight_scale, a part"),
        (without(awq(), "qzeros"), AWQ, "lacks .*up_proj.qzeros"),
        (without(mxfp4(), "scales"), MXFP4, "lacks .*gate_up_proj_scales"),
        (pack_quantized(100), COMPRESSED, "5 groups for 512 inputs"),
        (replaced(pack_quantized(), "scale", "BF16", 95, 4), COMPRESSED, "scales for rows: 95"),
        (replaced(awq(), "scales", "F16", 5, OUTPUTS), AWQ, "zero points"),
        (replaced(gptq(), "g_idx", "I32", 400), GPTQ, "hold no 400 codes"),
        (replaced(mxfp4(), "scales", "U8", 4, 95, 16), MXFP4, "exponents"),
        (replaced(mxfp4(), "blocks", "U8", 4, OUTPUTS, 16, 8), MXFP4, "blocks of shape"),
        (fp8(2, 4), FP8, "scales of shape"),
        (replaced(awq(), "qweight", "I32", INPUTS), AWQ, "of shape"),
        (replaced(awq(), "qweight", "I32", 2**40, 0), AWQ, "of shape"),
        ([*awq()[1:], StoredTensor(f"{UP}.qweight", "I32", (2**60, 12), 0, 64)], AWQ, "of shape"),
        ([*awq()[1:], StoredTensor(f"{UP}.qweight", "I32", (512, 12), 0, 64)], AWQ, "64 bytes"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tensors, declared, words):
    with pytest.raises(CheckpointError, match=words) as refused:
        quantized_weights("m", [*PLAIN, *tensors], declared)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("tensors", "declared", "words"),
    [
        ([tensor(f"{UP}.weight.absmax", "F32", 8)], COMPRESSED, "bitsandbytes"),
        ([tensor(f"{UP}.weight_global_scale", "F32", 1)], COMPRESSED, "NVFP4"),
        ([tensor(f"{UP}.W_q", "U8", 8)], COMPRESSED, "HQQ"),
        ([tensor("model.layers.0.mlp.act.scales", "F16", 8)], AWQ, "scales activations"),
        ([*pack_quantized(), tensor(f"{UP}.weight_g_idx", "I32", INPUTS)], COMPRESSED, "act-order"),
        ([tensor(f"{UP}.weight", "F8_E4M3", OUTPUTS, INPUTS)], FP8, "without scales"),
        ([tensor(f"{UP}.weight", "U8", OUTPUTS, INPUTS)], FP8, "without scales"),
        (replaced(fp8(1), "weight", "F8_E5M2", OUTPUTS, INPUTS), FP8, "unknown scheme"),
        (replaced(pack_quantized(), "packed", "U8", OUTPUTS, INPUTS // 2), COMPRESSED, "unknown"),
        (gptq(), DeclaredQuantization(), "unknown scheme"),
        (gptq(), AWQ, "unknown scheme"),
    ],
)
def test_schemes_that_nobody_reads_are_refused(tensors, declared, words):
    with pytest.raises(UnsupportedModelError, match=words) as refused:
        quantized_weights("m", [*PLAIN, *tensors], declared)
    assert "; take " in str(refused.value)
