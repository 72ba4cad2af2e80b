import pytest
import torch
from torch import nn

from molink.engine.kernels.cpu import packed_linear
from molink.engine.kernels.cpu.packed_linear import (
    NativeLinear,
    OnednnLinear,
    SharedInput,
    SharedPart,
    linear_kernel,
    pack,
)

ROWS = (1, 2, 5, 12, 13, 24, 25, 40)


def linears(inputs: int, outputs: tuple[int, ...], dtype, bias: bool) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(inputs, n, bias=bias).to(dtype) for n in outputs]


def check(packed, layers, dtype):
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    for rows in ROWS:
        x = torch.randn(1, rows, layers[0].in_features).to(dtype)
        with torch.inference_mode():
            wanted = torch.cat([layer(x) for layer in layers], -1)
            torch.testing.assert_close(packed(x), wanted, atol=2 * tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [(64,), (33,), (7,), (48, 16, 16), (40, 5)])
def test_a_packed_layer_computes_what_the_originals_compute(dtype, bias, outputs):
    layers = linears(96, outputs, dtype, bias)
    packed = pack(layers)
    assert packed is not None
    assert packed.weights_bytes == sum(outputs) * 96 * dtype.itemsize
    check(packed, layers, dtype)


@pytest.mark.skipif(linear_kernel() is None, reason="no AVX512-BF16 or no C compiler here")
@pytest.mark.parametrize("inputs", [2, 30, 96, 770])
def test_the_native_kernel_takes_any_even_width(inputs):
    layers = linears(inputs, (70,), torch.bfloat16, bias=True)
    check(NativeLinear(layers[0].weight.detach(), layers[0].bias.detach()), layers, torch.bfloat16)


@pytest.mark.skipif(linear_kernel() is None, reason="no AVX512-BF16 or no C compiler here")
def test_the_native_kernel_takes_inputs_that_are_not_contiguous():
    (layer,) = linears(32, (64,), torch.bfloat16, bias=False)
    x = torch.randn(1, 3, 64).to(torch.bfloat16)[..., ::2]
    packed = NativeLinear(layer.weight.detach(), None)
    assert torch.equal(packed(x), packed(x.contiguous()))


def test_without_a_compiler_torch_s_packing_is_used(monkeypatch):
    monkeypatch.setattr(packed_linear, "linear_kernel", lambda: None)
    layers = linears(96, (64,), torch.bfloat16, bias=False)
    packed = pack(layers)
    assert isinstance(packed, OnednnLinear)
    check(packed, layers, torch.bfloat16)


def test_a_layout_that_disagrees_is_not_used(monkeypatch):
    class Wrong(OnednnLinear):
        def forward(self, x):
            return super().forward(x) * 1.1

    monkeypatch.setattr(packed_linear, "LAYOUTS", (Wrong,))
    assert pack(linears(32, (64,), torch.float32, bias=False)) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_formats_stay_as_they_are(dtype):
    assert pack(linears(32, (64,), dtype, bias=False)) is None


def test_parts_recognise_their_input_and_recompute_for_another():
    layers = linears(16, (8, 4), torch.float32, bias=True)
    shared = SharedInput(pack(layers), [8, 4])
    parts = [SharedPart(shared, index) for index in range(2)]
    x, y = torch.randn(1, 2, 16), torch.randn(1, 3, 16)
    with torch.inference_mode():
        for order in ([(0, x), (1, x)], [(1, x), (0, y), (1, y), (0, x)], [(0, x), (0, x)]):
            for index, given in order:
                torch.testing.assert_close(parts[index](given), layers[index](given))
