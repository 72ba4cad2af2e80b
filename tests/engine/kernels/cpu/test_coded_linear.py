"""Kernels that multiply weights of few bits, against the matrices that the weights stand for."""

import pytest
import torch

from molink.engine.kernels.cpu import coded_linear as room
from molink.engine.kernels.cpu import packed_linear
from molink.engine.kernels.cpu.coded_linear import CodedLinear, coded_linear
from molink.engine.kernels.cpu.native_kernel import AVX2, AVX512, native_library
from molink.engine.kernels.packed_weights import (
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    Mxfp4Weight,
)

ROWS = (1, 2, 3, 4, 7, 12, 13, 25, 40)
"""Every number of sums side by side, one pass and several, codes looked up in place and before."""

WORST = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
"""Relative to the largest output: half a unit in the last place, and sums of a thousand terms."""

needs_avx512 = pytest.mark.skipif(native_library(AVX512) is None, reason="no AVX512-BF16 here")
needs_avx2 = pytest.mark.skipif(native_library(AVX2) is None, reason="no AVX2 here")

DTYPES = [
    pytest.param(torch.bfloat16, marks=needs_avx512),
    pytest.param(torch.float32, marks=needs_avx2),
]


def random_weight(form, outputs, inputs, group):
    """Scales that bfloat16 holds, so that the matrix is the same for both kernels."""
    generator = torch.Generator().manual_seed(outputs * inputs + group)

    def codes(width):
        return torch.randint(0, 256, (outputs, width), generator=generator).to(torch.uint8)

    def scales():
        values = torch.rand(outputs, inputs // group, generator=generator) - 0.3
        return values.bfloat16().float()

    if form == "int4":
        return Int4Weight(codes(inputs // 2), scales(), scales())
    if form == "mxfp4":
        exponents = torch.randint(110, 130, (outputs, inputs // 32), generator=generator)
        return Mxfp4Weight(codes(inputs // 2), exponents.to(torch.uint8))
    if form == "fp8":
        bits = codes(inputs)
        bits[bits & 127 == 127] = 0
        return Fp8Weight(bits.view(torch.float8_e4m3fn), scales())
    signed = codes(inputs).view(torch.int8)
    if form.startswith("five bits"):
        signed = signed >> 3
    zero = scales() if form.endswith("with zeros") else None
    return Int8Weight(signed, scales(), zero)


def largest_error(layer, weight, bias, rows, dtype):
    x = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(rows)).to(dtype)
    wanted = x.double() @ weight.dequantized(torch.float64).T
    if bias is not None:
        wanted += bias.double()
    return float((layer(x).double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "form",
    ["int4", "mxfp4", "five bits", "five bits with zeros", "int8", "int8 with zeros", "fp8"],
)
@pytest.mark.parametrize(
    ("outputs", "inputs", "group"), [(64, 256, 128), (33, 96, 32), (7, 688, 16), (300, 160, 160)]
)
def test_a_layer_computes_what_its_matrix_computes(dtype, form, outputs, inputs, group):
    group = 32 if form == "mxfp4" else group
    if inputs % group:
        inputs = 704
    weight = random_weight(form, outputs, inputs, group)
    for bias in (None, torch.linspace(-3, 3, outputs).to(dtype)):
        layer = coded_linear(weight, bias, dtype)
        assert layer is not None
        errors = [largest_error(layer, weight, bias, rows, dtype) for rows in ROWS]
        assert max(errors) < WORST[dtype], errors


@needs_avx512
@needs_avx2
def test_both_instruction_sets_agree_in_fp32(monkeypatch):
    weight = random_weight("mxfp4", 70, 96, 32)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(1))
    wide = CodedLinear(weight, None, torch.float32)(x)
    room._kernel.cache_clear()
    monkeypatch.setattr(room, "native_library", lambda of: native_library(AVX2))
    narrow = CodedLinear(weight, None, torch.float32)(x)
    room._kernel.cache_clear()
    torch.testing.assert_close(wide, narrow, atol=1e-5, rtol=1e-6)


@needs_avx2
def test_it_takes_as_much_memory_as_it_says():
    weight = random_weight("int4", 64, 512, 128)
    layer = CodedLinear(weight, None, torch.float32)
    assert layer.weights_bytes == 64 * 512 // 2 + 2 * 64 * 4 * 4


@needs_avx512
def test_codes_of_five_bits_take_five_bits():
    weight = random_weight("five bits", 64, 512, 32)
    layer = CodedLinear(weight, None, torch.bfloat16)
    assert layer.weights_bytes == 64 * 512 * 5 // 8 + 64 * 16 * 2
    weight.codes[63, 511] = 16
    assert CodedLinear(weight, None, torch.bfloat16).weights_bytes == 64 * 512 + 64 * 16 * 2


@needs_avx512
def test_one_row_and_many_see_the_same_weights():
    """Few rows look codes up where they multiply them, many multiply a panel that is unpacked."""
    for form in ("int4", "mxfp4", "five bits with zeros", "int8 with zeros", "fp8"):
        weight = random_weight(form, 70, 128, 32)
        layer = CodedLinear(weight, None, torch.bfloat16)
        x = torch.eye(128).bfloat16()
        many, one = layer(x), torch.cat([layer(row[None]) for row in x])
        torch.testing.assert_close(many, one, atol=0, rtol=2**-7)


@needs_avx2
def test_groups_that_no_kernel_sums_are_left_to_torch():
    assert coded_linear(random_weight("int8", 8, 24, 8), None, torch.float32) is None
    assert coded_linear(random_weight("int8", 8, 32, 16), None, torch.float16) is None


@needs_avx2
def test_a_kernel_that_is_wrong_is_not_used(monkeypatch):
    weight = random_weight("int8", 40, 48, 48)
    monkeypatch.setattr(packed_linear, "_proven", {})
    monkeypatch.setattr(room, "_kernel", lambda dtype: lambda *arguments: 0)
    assert coded_linear(weight, None, torch.float32) is None


def test_without_kernels_torch_is_left(monkeypatch):
    room._kernel.cache_clear()
    monkeypatch.setattr(room, "native_library", lambda of: None)
    weight = random_weight("int4", 32, 64, 32)
    assert coded_linear(weight, None, torch.float32) is None
    assert coded_linear(weight, None, torch.bfloat16) is None
    room._kernel.cache_clear()


@needs_avx512
def test_rows_that_are_not_contiguous_are_copied():
    layer = CodedLinear(random_weight("int4", 32, 64, 32), None, torch.bfloat16)
    x = torch.randn(1, 3, 128).bfloat16()[..., ::2]
    assert torch.equal(layer(x), layer(x.contiguous()))
