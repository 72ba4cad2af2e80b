"""A packed product in bf16 stays within the bound that docs/benchmarks/quantized.md derives."""

from dataclasses import replace

import pytest
import torch

from molink.engine.kernels.cpu.quantized_linear import quantized_linear
from molink.engine.kernels.packed_weights import Int4Weight
from molink.engine.layers.quantized_linear import QuantizedLinear
from molink.engine.model.quantized.block_readers import read_blocks
from molink.engine.model.quantized.readers import read_weight
from tests.engine.model.quantized.blocks import blocks_of
from tests.engine.model.quantized.blocks import exact as numbers_of
from tests.engine.model.quantized.formats import FORMATS
from tests.engine.model.quantized.test_readers import plain, stored_in

OUTPUTS, INPUTS = 272, 256
UNIT = 2.0**-8
BLOCKS = ("q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
FORMS = ("pack-quantized", "pack-quantized asymmetric", "awq", "gptq", "gptq whole rows")


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("name", FORMS)
def test_every_product_is_within_the_bound(name, rows, tmp_path):
    form = FORMATS[name]
    tensors, exact = form.write(plain(OUTPUTS, INPUTS))
    stored, files = stored_in(tmp_path, tensors, form.scheme)
    check(read_weight(stored, files, torch.bfloat16), exact, rows)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_type_is_within_the_bound(name, rows):
    raw = blocks_of(plain(OUTPUTS, INPUTS), name)
    check(read_blocks(raw, name, torch.bfloat16), numbers_of(raw, name), rows)


def check(weight, exact, rows):
    layer = quantized_linear(weight, None, torch.bfloat16)
    plainly = QuantizedLinear(weight, None, torch.bfloat16)
    x = torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(rows)).bfloat16()
    y = x.double() @ exact.double().T
    bound = UNIT * (x.double().abs() @ _largest(weight).T + y.abs())
    for one in (layer, plainly):
        if one is not None:  # Where there is neither a compiler nor torch's operator.
            assert ((one(x).double() - y).abs() <= bound).all()


def test_the_bound_is_not_so_wide_that_anything_passes(tmp_path):
    """A product with the last group's scale lost is beyond it."""
    form = FORMATS["gptq"]
    tensors, exact = form.write(plain(OUTPUTS, INPUTS))
    weight = read_weight(*stored_in(tmp_path, tensors, form.scheme), torch.bfloat16)
    assert isinstance(weight, Int4Weight)
    weight.scale[:, -1] = 0
    x = torch.randn(4, INPUTS, generator=torch.Generator().manual_seed(0)).bfloat16()
    y = x.double() @ exact.double().T
    bound = UNIT * (x.double().abs() @ _largest(weight).T + y.abs())
    assert ((QuantizedLinear(weight, None, torch.bfloat16)(x).double() - y).abs() > bound).any()


def _largest(weight):
    """|scale (q - 8)| + |zero| of each weight [N, K]."""
    if weight.zero is None:
        return weight.dequantized(torch.float32).double().abs()
    without = replace(weight, zero=torch.zeros_like(weight.zero))
    zero = weight.zero.abs().double().repeat_interleave(weight.group, 1)
    return without.dequantized(torch.float32).double().abs() + zero
