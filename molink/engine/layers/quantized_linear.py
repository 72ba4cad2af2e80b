"""Products with a weight of few bits: the plain way, and torch's own kernel for CUDA.

What no kernel suits is unpacked for each product, which is exact, runs everywhere and is slow. The
CUDA kernel is compared with the plain way when a layer is made. On an H100 it is twice as fast as
16 bits for one row, and twenty times as slow for the 512 of a prompt. The CPU's kernels are in
`molink.engine.kernels.cpu`.
"""

from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from molink.engine.kernels.cpu.packed_linear import PackedLinear, is_product
from molink.engine.kernels.packed_weights import Int4Weight, QuantizedWeight

CUDA_GROUPS = (32, 64, 128, 256)
"""Groups that torch's kernel multiplies."""

INNER_TILES = (8, 4, 2)
"""Tiles of sixteen inputs that the kernel packs together, the most first."""

TILE_INPUTS = 16
CUDA_OUTPUTS = 8
"""Outputs of a tile: their number must be a multiple."""

CUDA_CAPABILITY_MIN = (8, 0)
"""Compute capability from which the kernel exists."""


class QuantizedLinear(PackedLinear):
    """Linear layer whose weight is unpacked for each product: right for every format, everywhere.

    It computes, for rows of `dtype`, what the unpacked matrix in that format gives.
    """

    def __init__(
        self, quantized: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        super().__init__(quantized, dtype)
        self.quantized = quantized
        self.dtype = dtype
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, for inputs [..., in_features]."""
        return F.linear(x, self.quantized.dequantized(self.dtype), self.bias)

    @property
    def form(self) -> Hashable:
        """Equal for layers whose weights can stand one above the other."""
        return self.quantized.form

    def move(self, device: torch.device) -> None:
        """Hold the weight on another device; the bias goes with the module's parameters."""
        self.quantized = self.quantized.to(device)


class CudaInt4Linear(PackedLinear):
    """Linear layer of four-bit weights in the order of torch's CUDA kernel."""

    def __init__(self, quantized: Int4Weight, bias: torch.Tensor | None) -> None:
        super().__init__(quantized, torch.bfloat16)
        outputs, inputs = quantized.shape
        tiles = next((n for n in INNER_TILES if inputs % (n * TILE_INPUTS) == 0), None)
        capability = torch.cuda.get_device_capability(quantized.codes.device)
        if tiles is None or outputs % CUDA_OUTPUTS or capability < CUDA_CAPABILITY_MIN:
            raise RuntimeError("the CUDA kernel does not suit this layer")
        swapped = (
            quantized.codes << 4 | quantized.codes >> 4
        )  # It wants input 2j in the high nibble.
        operators: Any = torch.ops.aten
        self._packed = operators._convert_weight_to_int4pack(swapped, tiles)
        groups = torch.stack([quantized.scale.T, quantized.zero.T], -1)
        self._groups = groups.to(torch.bfloat16).contiguous()
        self._group = quantized.group
        self._bias = bias
        self._multiply: Any = operators._weight_int4pack_mm.default

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, for inputs [..., in_features] in bf16."""
        rows = x.reshape(-1, self.in_features)
        y: torch.Tensor = self._multiply(rows, self._packed, self._group, self._groups)
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self._bias is None else y + self._bias


def use_cuda_kernels(model: nn.Module) -> None:
    """Replace the quantized layers of a model on a GPU by the fastest ones, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, QuantizedLinear):
            model.set_submodule(name, _cuda_linear(module))


def _cuda_linear(layer: QuantizedLinear) -> PackedLinear:
    """The fastest layer on a GPU for what `layer` computes, or itself."""
    quantized = layer.quantized
    if not isinstance(quantized, Int4Weight) or layer.dtype != torch.bfloat16:
        return layer
    if quantized.group not in CUDA_GROUPS:
        return layer
    try:
        bias = None if layer.bias is None else layer.bias.detach()
        candidate = CudaInt4Linear(quantized, bias)
        return candidate if is_product(candidate, quantized, bias, layer.dtype) else layer
    except (RuntimeError, AttributeError, NotImplementedError):
        return layer
