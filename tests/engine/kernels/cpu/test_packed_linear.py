import pytest
import torch
from torch import nn

from molink.engine.kernels.cpu import packed_linear
from molink.engine.kernels.cpu.native_kernel import AVX2, native_library
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


@pytest.mark.skipif(linear_kernel() is None, reason="no AVX2 or no C compiler here")
@pytest.mark.parametrize("inputs", [2, 30, 96, 770])
def test_the_native_kernel_takes_any_even_width(inputs):
    layers = linears(inputs, (70,), torch.bfloat16, bias=True)
    check(NativeLinear(layers[0].weight.detach(), layers[0].bias.detach()), layers, torch.bfloat16)


@pytest.mark.skipif(linear_kernel() is None, reason="no AVX2 or no C compiler here")
def test_the_native_kernel_takes_inputs_that_are_not_contiguous():
    (layer,) = linears(32, (64,), torch.bfloat16, bias=False)
    x = torch.randn(1, 3, 64).to(torch.bfloat16)[..., ::2]
    packed = NativeLinear(layer.weight.detach(), None)
    assert torch.equal(packed(x), packed(x.contiguous()))


@pytest.fixture
def avx2(monkeypatch):
    """The kernel for CPUs without AVX512, wherever tests run."""
    if native_library(AVX2) is None:
        pytest.skip("no AVX2 or no C compiler here")
    monkeypatch.setattr(packed_linear, "AVX512", AVX2)
    linear_kernel.cache_clear()
    yield
    linear_kernel.cache_clear()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 7), (96, 33), (770, 70), (512, 64)])
def test_the_kernel_for_avx2_computes_what_the_original_computes(avx2, inputs, outputs, bias):
    layers = linears(inputs, (outputs,), torch.bfloat16, bias=bias)
    bias = layers[0].bias.detach() if bias else None
    check(NativeLinear(layers[0].weight.detach(), bias), layers, torch.bfloat16)


def test_with_avx2_a_row_does_not_depend_on_its_company(avx2):
    (layer,) = linears(770, (70,), torch.bfloat16, bias=True)
    packed = NativeLinear(layer.weight.detach(), layer.bias.detach())
    x = torch.randn(23, 770).to(torch.bfloat16)
    alone = torch.cat([packed(row) for row in x.split(1)])
    for rows in range(1, 24):
        assert torch.equal(packed(x[:rows]), alone[:rows])


def test_with_avx2_sums_are_rounded_to_even_and_what_is_no_number_stays_none(avx2):
    one = torch.eye(32, dtype=torch.bfloat16)
    packed = NativeLinear(
        torch.cat([one[:2], one[:2].neg()]), torch.tensor([2.0**-8, 3 * 2.0**-8, 0, 0])
    )
    x = torch.zeros(2, 32, dtype=torch.bfloat16)
    x[0, :2], x[1, :2] = 1, torch.tensor([float("nan"), float("inf")])
    y = packed(x).float()
    assert y[0].tolist() == [1.0, 1 + 2.0**-6, -1.0, -1.0]  # Halves of the last place go to even.
    assert y[1].isnan().tolist() == [True] * 4  # A number times no number, and 0 times infinity.


def test_without_a_compiler_torch_s_packing_is_used(monkeypatch):
    monkeypatch.setattr(packed_linear, "linear_kernel", lambda: None)
    layers = linears(96, (64,), torch.float32, bias=False)
    packed = pack(layers)
    assert isinstance(packed, OnednnLinear)
    check(packed, layers, torch.float32)


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
