"""Products on a CPU with weights that stay in few bits: our kernels, else torch's operator.

Without a C compiler, as on most PCs with Windows, torch's operator for four bits in bf16 is left.
A layer is proven against the unpacked matrix, once for each form and shape; where nothing suits,
the caller unpacks the matrix for each product, which is right everywhere and slow.

What is packed here depends on this machine's instruction set: it is never stored and never sent.
"""

from typing import Any

import torch

from molink.engine.kernels.cpu.coded_linear import coded_linear
from molink.engine.kernels.cpu.packed_linear import PackedLinear, is_product
from molink.engine.kernels.packed_weights import Int4Weight, QuantizedWeight

TORCH_GROUPS = (32, 64, 128, 256)
"""Groups that torch's operator multiplies."""

TORCH_OUTPUTS = 16
"""The number of outputs must be a multiple."""

BLOCK_ROWS = 256
"""Outputs that torch packs at a time: a multiple of its panels, so that the bytes are the same, and
twice as fast as all at once, which would need every code as four bytes."""


class TorchInt4Linear(PackedLinear):
    """Linear layer of four-bit weights, multiplied by torch in bf16.

    Twice as fast as bf16 weights for one row, as fast for four, and slower from eight on; the other
    formats of numbers have no vector code in torch.
    """

    def __init__(self, quantized: QuantizedWeight, bias: torch.Tensor | None) -> None:
        super().__init__(quantized, torch.bfloat16)
        fits = isinstance(quantized, Int4Weight) and quantized.scale.dtype == torch.bfloat16
        if not fits or quantized.group not in TORCH_GROUPS or self.out_features % TORCH_OUTPUTS:
            raise RuntimeError("torch's operator does not suit this layer")
        assert isinstance(quantized, Int4Weight)
        operators: Any = torch.ops.aten
        self._packed = _packed_by_torch(quantized)
        self._groups = torch.stack([quantized.scale.T, quantized.zero.T], -1).contiguous()
        self._group = quantized.group
        self._bias = None if bias is None else bias.clone()
        self._multiply: Any = operators._weight_int4pack_mm_for_cpu.default

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, for inputs [..., in_features] in bf16."""
        rows = x.reshape(-1, self.in_features).contiguous()
        y: torch.Tensor = self._multiply(rows, self._packed, self._group, self._groups)
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self._bias is None else y + self._bias


def quantized_linear(
    weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype
) -> PackedLinear | None:
    """The fastest layer that this CPU has for a weight and rows of `dtype`; None: it has none."""
    return coded_linear(weight, bias, dtype) or _torch_linear(weight, bias)


def _torch_linear(weight: QuantizedWeight, bias: torch.Tensor | None) -> PackedLinear | None:
    try:
        layer = TorchInt4Linear(weight, bias)
        return layer if is_product(layer, weight, bias, torch.bfloat16) else None
    except (RuntimeError, AttributeError, NotImplementedError):
        return None


def _packed_by_torch(weight: Int4Weight) -> torch.Tensor:
    pack: Any = torch.ops.aten._convert_weight_to_int4pack_for_cpu.default
    starts = range(0, len(weight.codes), BLOCK_ROWS)
    blocks = [weight.codes[start : start + BLOCK_ROWS] for start in starts]
    return torch.cat([pack(_unpacked(block), 1) for block in blocks])


def _unpacked(codes_NB: torch.Tensor) -> torch.Tensor:
    return torch.stack([codes_NB & 15, codes_NB >> 4], -1).flatten(1).int()
