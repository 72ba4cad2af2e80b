"""Linear layers whose weights stay in 4, 5 or 8 bits, multiplied by our C kernels.

One copy of the codes serves decode and prefill. For few rows a kernel turns codes into values in
registers, sums a group of inputs in fp32 and scales it once; for many it unpacks some outputs at a
time into 16 bits. So nothing is rounded that 16-bit or fp32 arithmetic would not round. Weights are
kept in the order in which the kernels read them (`native/coded.h`), those whose codes need no more
in five bits.

There is a kernel for bfloat16 rows (AVX512-BF16) and one for fp32 rows (AVX512 or AVX2).

2,048 x 2,048, one Zen 5 core, caches cold, ms at 1 / 8 / 256 rows:

    bfloat16: our kernel     0.25 / 0.29 / 4.4
    int4, groups of 128      0.05 / 0.14 / 4.6
    int8                     0.12 / 0.24 / 4.5
    fp32: oneDNN             0.47 / 0.73 / 8.9     AVX2: 0.64 / 1.06 / 16.4
    int4, groups of 128      0.07 / 0.25 / 9.5     AVX2: 0.15 / 0.62 / 16.8

torch's own int4 operator was tried: it loses to bfloat16 from 8 rows on and takes 2.5 times as long
for a prompt.

Shapes: N outputs, K inputs, g inputs of a group, P panels of 32 outputs.
"""

import ctypes
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

import torch

from molink.engine.kernels.cpu.native_kernel import AVX2, AVX512, native_library
from molink.engine.kernels.cpu.packed_linear import PackedLinear, is_product, large_pages, padded
from molink.engine.kernels.packed_weights import (
    E2M1,
    EXPONENT_BIAS,
    Int4Weight,
    Int8Weight,
    Mxfp4Weight,
    QuantizedWeight,
)

PANEL_COLUMNS = 32
"""Outputs that the kernels compute together (PANEL_COLUMNS in native/coded.h)."""

GROUP_MULTIPLE = 16
"""Inputs that a kernel sums at a time; a group is a multiple of it."""

PACKED_ROWS = 256
"""Outputs whose codes are rearranged at a time, so that loading needs no second copy."""


class Kind(IntEnum):
    """Rules by which codes become values: `enum kind` in native/coded.h."""

    INT4 = 0
    FP4 = 1
    INT8 = 2
    FP8 = 3
    INT5 = 4


BITS = {Kind.INT4: 4, Kind.FP4: 4, Kind.INT5: 5, Kind.INT8: 8, Kind.FP8: 8}
"""Bits of a code, as the kernels read it."""

FIVE_BITS_MULTIPLE = 32
"""Inputs whose fifth bits share a word; a group of such codes is a multiple of it."""


class Coded(ctypes.Structure):
    """Coded weights: `struct coded` of native/coded.h."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("inputs", ctypes.c_long),
        ("outputs", ctypes.c_long),
        ("group", ctypes.c_long),
        ("kind", ctypes.c_int),
        ("has_zeros", ctypes.c_int),
    )


class CodedLinear(PackedLinear):
    """Linear layer of quantized weights, for rows of one dtype. Raises RuntimeError where no kernel
    suits it."""

    def __init__(
        self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        super().__init__(weight, dtype)
        kernel = _kernel(dtype)
        if kernel is None or weight.group % GROUP_MULTIPLE or weight.codes.device.type != "cpu":
            raise RuntimeError("no kernel suits this layer")
        self._kernel, self._dtype = kernel, dtype
        kind = self.kind = _kind(weight, dtype)
        self._codes = _panels(weight, kind)
        self._scales = _scales(weight, dtype)
        self._values = _values(weight, kind, dtype)
        self._bias = None if bias is None else padded(bias.float())
        self._coded = self._described(weight, kind)
        self.coded_pointer = ctypes.addressof(self._coded)
        self.bias_pointer = None if self._bias is None else self._bias.data_ptr()
        self.weights_bytes = self._codes.nbytes + self._scales.nbytes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, for inputs [..., in_features]."""
        x = x.contiguous()
        y = x.new_empty((*x.shape[:-1], self.out_features))
        failed = self._kernel(
            x.data_ptr(),
            x.numel() // self.in_features,
            self.coded_pointer,
            self.bias_pointer,
            y.data_ptr(),
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the sums of a matrix product")
        return y

    def _described(self, weight: QuantizedWeight, kind: Kind) -> Coded:
        return Coded(
            self._codes.data_ptr(),
            self._scales.data_ptr(),
            self._values.data_ptr(),
            self.in_features,
            self.out_features,
            weight.group,
            kind,
            getattr(weight, "zero", None) is not None,
        )


def coded_linear(
    weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype
) -> CodedLinear | None:
    """The layer for rows of `dtype`; None where no kernel suits it or where it disagrees with the
    matrix."""
    try:
        layer = CodedLinear(weight, bias, dtype)
    except RuntimeError:
        return None
    return layer if is_product(layer, weight, bias, dtype) else None


@cache
def _kernel(dtype: torch.dtype) -> Callable[..., int] | None:
    if dtype == torch.bfloat16:
        function: Any = getattr(native_library(AVX512), "linear_coded_bf16", None)
    elif dtype == torch.float32:
        library = native_library(AVX512) or native_library(AVX2)
        function = getattr(library, "linear_coded_f32", None)
    else:
        return None
    if function is not None:
        pointer, number = ctypes.c_void_p, ctypes.c_int
        function.argtypes = [pointer, ctypes.c_long, pointer, pointer, pointer, number]
        function.restype = number
    return function  # type: ignore[no-any-return]


# -- the order in which kernels read ---------------------------------------------------------------


def _kind(weight: QuantizedWeight, dtype: torch.dtype) -> Kind:
    if isinstance(weight, Int8Weight):
        return Kind.INT5 if dtype == torch.bfloat16 and _fits_five_bits(weight) else Kind.INT8
    return {Int4Weight: Kind.INT4, Mxfp4Weight: Kind.FP4}.get(type(weight), Kind.FP8)


def _fits_five_bits(weight: Int8Weight) -> bool:
    """Whether no code needs more, as in Q5_0, Q5_1 and Q5_K of GGUF files."""
    if weight.group % FIVE_BITS_MULTIPLE:
        return False
    low, high = torch.aminmax(weight.codes)
    return int(low) >= -16 and int(high) < 16


def _panels(weight: QuantizedWeight, kind: Kind) -> torch.Tensor:
    """The codes as uint8 [P, words, 32, 4]: a word of each of a panel's outputs, then the next."""
    outputs, inputs = weight.shape
    panels = -(-outputs // PANEL_COLUMNS)
    packed = large_pages(panels * PANEL_COLUMNS * inputs * BITS[kind] // 8, torch.uint8)
    view = packed.view(panels, -1, PANEL_COLUMNS, 4)
    for start in range(0, outputs, PACKED_ROWS):
        words = padded(_words(weight.rows(start, min(outputs, start + PACKED_ROWS)).codes, kind))
        part = words.view(-1, PANEL_COLUMNS, *words.shape[1:]).transpose(1, 2)
        first = start // PANEL_COLUMNS
        view[first : first + len(part)] = part
    return packed


def _words(codes: torch.Tensor, kind: Kind) -> torch.Tensor:
    """uint8 [N, words, 4]: codes of even inputs in the lower half, of odd ones in the upper."""
    if kind is Kind.INT5:
        return _words_of_five_bits(codes.view(torch.uint8) + 16)
    pairs = codes.view(torch.uint8).view(len(codes), -1, 2, 2)
    if kind in (Kind.INT8, Kind.FP8):
        return pairs.transpose(-1, -2).flatten(-2)
    first, second = pairs.unbind(-1)
    even = (first & 15) | (second << 4)
    odd = (first >> 4) | (second & 240)
    return torch.cat([even, odd], -1)


def _words_of_five_bits(codes: torch.Tensor) -> torch.Tensor:
    """Words of codes 0 to 31: for each 32 inputs four of lower bits and one of fifth bits."""
    lower = _words((codes[:, 0::2] & 15) | (codes[:, 1::2] << 4), Kind.INT4)
    fifth = (codes >> 4).view(len(codes), -1, 2, 8, 2)
    fifth = (fifth << torch.arange(8, dtype=torch.uint8)[:, None]).sum(-2, dtype=torch.uint8)
    high = fifth.transpose(-1, -2).flatten(-2)
    return torch.cat([lower.view(len(codes), -1, 4, 4), high[:, :, None]], 2).flatten(1, 2)


def _scales(weight: QuantizedWeight, dtype: torch.dtype) -> torch.Tensor:
    """Scales and, where there are any, zeros: [P, groups, 1 or 2, 32]."""
    parts = weight.tensors()
    if isinstance(weight, Mxfp4Weight):
        scales = [torch.exp2(weight.exponents.float() - EXPONENT_BIAS)]
    else:
        scales = [parts["scale"], *([parts["zero"]] if "zero" in parts else [])]
    panels = [padded(part.to(dtype)).view(-1, PANEL_COLUMNS, part.shape[1]) for part in scales]
    return torch.stack(panels, 1).permute(0, 3, 1, 2).contiguous()


def _values(weight: QuantizedWeight, kind: Kind, dtype: torch.dtype) -> torch.Tensor:
    """Numbers that the codes stand for: [16] twice, [32] or [256]; for bytes then also those of
    their lower four bits, twice, and of their upper four, twice: [320]."""
    if kind is Kind.INT5:
        return torch.arange(-16.0, 16.0).to(dtype)
    if BITS[kind] == 4:
        sixteen = torch.arange(-8.0, 8.0) if kind is Kind.INT4 else torch.tensor(E2M1)
        return sixteen.repeat(2).to(dtype)
    values = torch.arange(256, dtype=torch.uint8).view(weight.codes.dtype).float().nan_to_num(0)
    lower, upper = values[:16], values[::16]
    return torch.cat([values, lower, lower, upper, upper]).to(dtype)
