"""What a CPU multiplies packed weights with agrees with the unpacked matrix, or is not taken."""

import pytest
import torch
import torch.nn.functional as F

from molink.engine.kernels.cpu import quantized_linear as module
from molink.engine.kernels.cpu.quantized_linear import TorchInt4Linear, quantized_linear
from molink.engine.kernels.packed_weights import Int4Weight, Mxfp4Weight

OUTPUTS, INPUTS, GROUP = 272, 256, 32


def weight(outputs=OUTPUTS, inputs=INPUTS, group=GROUP, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, generator=generator)
    scale = torch.rand(outputs, inputs // group, generator=generator).to(dtype)
    return Int4Weight(codes, scale, (scale * 0.3).to(dtype))


@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_those_of_the_unpacked_matrix(rows, biased):
    matrix = weight()
    bias = torch.arange(OUTPUTS).to(torch.bfloat16) if biased else None
    layer = TorchInt4Linear(matrix, bias)
    x = torch.randn(1, rows, INPUTS, generator=torch.Generator().manual_seed(6)).bfloat16()
    wanted = F.linear(x.float(), matrix.dequantized(torch.float32))
    wanted = wanted if bias is None else wanted + bias.float()
    got = layer(x)
    assert got.shape == (1, rows, OUTPUTS)
    assert (got.float() - wanted).abs().max() <= 0.01 * wanted.abs().max()


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch):
    monkeypatch.setattr(module, "coded_linear", lambda *arguments: None)


def test_a_layer_is_made_where_the_weight_suits():
    layer = quantized_linear(weight(), None, torch.bfloat16)
    assert isinstance(layer, TorchInt4Linear)
    assert layer.weights_bytes == weight().nbytes
    assert quantized_linear(weight(dtype=torch.float32), None, torch.float32) is None


@pytest.mark.parametrize(
    "matrix",
    [
        weight(dtype=torch.float32),
        weight(outputs=264),
        weight(inputs=96, group=16),
        Mxfp4Weight(torch.zeros(32, 32, dtype=torch.uint8), torch.zeros(32, 2, dtype=torch.uint8)),
    ],
)
def test_torch_takes_no_other_weight(matrix):
    with pytest.raises(RuntimeError):
        TorchInt4Linear(matrix, None)


def test_a_layout_that_multiplies_wrongly_is_not_taken(monkeypatch):
    class Wrong(TorchInt4Linear):
        def forward(self, x):
            return super().forward(x) * 1.1

    monkeypatch.setattr(module, "TorchInt4Linear", Wrong)
    assert quantized_linear(weight(), None, torch.bfloat16) is None
