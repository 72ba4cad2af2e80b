"""Linear layers whose weights stand in the order in which the CPU multiplies them.

Decoding reads every weight once per step, so a stage is as fast as it streams weights. Two packed
layouts are tried, the best first, and each is proven on the first layer of a form and shape; where
a layout is not available or disagrees, the next one is used, and in the end the original stays.

A third of an 88M-parameter llama, all linears of one step, one Zen 4 core, caches cold, ms at 1 / 4
/ 8 / 128 rows:

    torch linear            5.3 / 5.8 / 6.5 / 33
    oneDNN packed           3.0 / 2.7 / 3.6 / 30    private operators of torch
    our kernel              1.7 / 1.7 / 2.1 / 29    bfloat16 with AVX512-BF16, needs a C compiler

38M weights in bfloat16 on a Zen 3 core, which has AVX2 alone, ms at 1 / 5 / 16 / 128 rows, where
oneDNN packs nothing:

    torch linear            9.3 / 41 / 127 / 1050
    our kernel              5.8 / 9.5 / 25 / 168    in fp32, needs a C compiler

Queries, keys and values come from one input, gate and up projections from another. Stacked, such
siblings are one product with one set-up instead of three, and the module tree keeps its shape: the
first sibling that is called computes everything and the others pick up their part, recognising
their input by identity. A call with any other tensor is computed afresh, so the result is right
whatever the architecture does with it.

int8 weights were tried (no gain in eager mode, and no longer exact) and so was the transposed
layout (slower).
"""

import ctypes
import mmap
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from molink.engine.kernels.cpu.native_kernel import AVX2, AVX512, native_library
from molink.engine.kernels.packed_weights import QuantizedWeight
from molink.engine.proof import PROBE_ROWS, Reference, probe_rows, summed, wide_dtype

PANEL_ROWS = 32
"""Rows of W that our kernel stores together (PANEL in native/avx512/tile.h, avx2/linear_bf16.c)."""

PROBE_OUTPUTS = 256
"""Outputs that are compared with the matrix, spread over all of it: siblings stacked in one matrix
have some each."""

SUMS = 4.0
"""Errors of sums in fp32, as `proof.summed` tells them of terms of no order, that a product may
have. 60 seeds of each form, of 64 to 4,096 inputs: 2 at most; in 16 bits none is needed."""

PACKED_DTYPES = (torch.float32, torch.bfloat16)


@cache
def linear_kernel() -> Callable[..., None] | None:
    """Kernel `linear_bf16`, or None where it cannot be had."""
    library = native_library(AVX512) or native_library(AVX2)
    if library is None:
        return None
    function: Any = library.linear_bf16
    pointer, number = ctypes.c_void_p, ctypes.c_long
    function.argtypes = [pointer, number, number, pointer, pointer, pointer, number, ctypes.c_int]
    function.restype = None
    return function  # type: ignore[no-any-return]


class PackedLinear(nn.Module):
    """Linear layer y = x W' + b with W packed; several layers that share their input may stand one
    above the other in W.
    """

    kind: Hashable = None
    """Kernel that computes it, where there are several for a form of weights."""

    def __init__(self, weight: torch.Tensor | QuantizedWeight, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = torch.empty(0, dtype=dtype)
        """Empty: architectures ask the weight of a layer for its format, and round rows to it."""
        self.weights_bytes = weight.nbytes


class OnednnLinear(PackedLinear):
    """Linear layer packed by oneDNN, through operators that torch keeps for its compiler."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, weight.dtype)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._bias = None if bias is None else bias.clone()
        self._multiply: Any = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, for inputs [..., in_features]."""
        return self._multiply(x, self._packed, self._bias, "none", [], "")  # type: ignore[no-any-return]


class NativeLinear(PackedLinear):
    """Linear layer packed for our kernel (`linear_bf16.c` of both instruction sets)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, weight.dtype)
        kernel = linear_kernel()
        if kernel is None or weight.dtype != torch.bfloat16 or self.in_features % 2:
            raise RuntimeError("the native kernel does not suit this layer")
        self._kernel = kernel
        self._packed = _panels(weight)
        self._bias = None if bias is None else padded(bias.float())
        self.weight_pointer = self._packed.data_ptr()
        self.bias_pointer = None if self._bias is None else self._bias.data_ptr()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, for inputs [..., in_features]."""
        x = x.contiguous()
        y = x.new_empty((*x.shape[:-1], self.out_features))
        self._kernel(
            x.data_ptr(),
            x.numel() // self.in_features,
            self.in_features,
            self.weight_pointer,
            self.bias_pointer,
            y.data_ptr(),
            self.out_features,
            torch.get_num_threads(),
        )
        return y


PlainLinear = NativeLinear | OnednnLinear
LAYOUTS: tuple[type[PlainLinear], ...] = (NativeLinear, OnednnLinear)
"""Best first."""


def pack(linears: Sequence[nn.Linear]) -> PackedLinear | None:
    """Packed layer for linears that read the same input; None where no layout works."""
    weight = joined_weight(linears)
    return None if weight is None else pack_matrix(weight, joined_bias(linears))


def pack_matrix(weight: torch.Tensor, bias: torch.Tensor | None) -> PlainLinear | None:
    """Packed layer for a matrix; None where no layout works."""
    if weight.dtype not in PACKED_DTYPES or weight.device.type != "cpu":
        return None
    for layout in LAYOUTS:
        packed = _try_layout(layout, weight, bias)
        if packed is not None:
            return packed
    return None


def _try_layout(
    layout: type[PlainLinear], weight: torch.Tensor, bias: torch.Tensor | None
) -> PlainLinear | None:
    try:
        packed = layout(weight, bias)
        return packed if is_product(packed, weight, bias, weight.dtype) else None
    except (RuntimeError, AttributeError, NotImplementedError):
        return None


def joined_weight(linears: Sequence[Any]) -> torch.Tensor | None:
    """The weights of layers one above the other; None where their formats differ."""
    weights: list[torch.Tensor] = [linear.weight.detach() for linear in linears]
    if len(weights) == 1:
        return weights[0]
    return torch.cat(weights) if len({weight.dtype for weight in weights}) == 1 else None


def joined_bias(linears: Sequence[Any]) -> torch.Tensor | None:
    """The biases of layers one behind the other, zeros where one has none; None: none has one."""
    given = [linear.bias.detach() for linear in linears if linear.bias is not None]
    if not given:
        return None
    parts = [
        given[0].new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return torch.cat(parts)


Matrix = tuple[torch.Tensor | QuantizedWeight, torch.Tensor | None, torch.dtype]
"""Weight and bias of a linear layer, and the format of its rows."""


def is_product(layer: PackedLinear, *matrix: *Matrix) -> bool:
    """Whether a layer multiplies rows by a matrix, tried once for each form and shape."""
    form = _form(layer, *matrix)
    if form not in _proven:
        _proven[form] = product_trouble(layer, *matrix)
    return _proven[form] is None


def distrust(layer: PackedLinear, *matrix: *Matrix) -> None:
    """Take no more layers of a form and shape that was off with the weights of one."""
    _proven[_form(layer, *matrix)] = "is off with weights that serve"


def _form(layer: PackedLinear, *matrix: *Matrix) -> tuple[object, ...]:
    weight, bias, dtype = matrix
    stored = weight.dtype if isinstance(weight, torch.Tensor) else weight.form
    return (
        type(layer),
        layer.kind,
        weight.shape,
        stored,
        dtype,
        None if bias is None else bias.dtype,
    )


_proven: dict[tuple[object, ...], str | None] = {}
"""Trouble of each layout, by form and shape; None: it has been proven."""


def product_trouble(
    layer: nn.Module,
    weight: torch.Tensor | QuantizedWeight,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    rows: torch.Tensor | None = None,
) -> str | None:
    """Why a layer does not give the product with a matrix, for rows [T, K] or those of a probe."""
    outputs, inputs = weight.shape
    tensor = weight if isinstance(weight, torch.Tensor) else weight.codes
    x = (probe_rows(PROBE_ROWS, inputs, dtype) if rows is None else rows).to(tensor.device)
    some = torch.linspace(0, outputs - 1, min(outputs, PROBE_OUTPUTS)).long().to(tensor.device)
    matrix, squares = _picked(weight, some)
    added, wide = None if bias is None else bias[some], wide_dtype(x)
    truth, library = (
        F.linear(x.to(kind), matrix.to(kind), None if added is None else added.to(kind))
        for kind in (wide, dtype)
    )
    # A kernel may begin with the bias, to which each sum of a group is then added.
    first = None if added is None else added.to(wide).square()
    terms = F.linear(x.to(wide).square(), squares.to(wide), first).sqrt()
    reference = Reference(truth, library, slack=SUMS * summed(inputs) * terms)
    return reference.trouble_of(lambda x: layer(x)[..., some], x)


def _picked(
    weight: torch.Tensor | QuantizedWeight, outputs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a matrix, and the squares of what kernels add up for each number of it: where codes
    have zeros both parts apart, which may be larger than their sum."""
    if isinstance(weight, torch.Tensor):
        return weight[outputs], weight[outputs].float().square()
    picked: Any = weight.picked(outputs)
    matrix = picked.dequantized(torch.float32)
    if getattr(picked, "zero", None) is None:
        return matrix, matrix.square()
    codes = replace(picked, zero=torch.zeros_like(picked.zero)).dequantized(torch.float32)
    return matrix, codes.square() + (matrix - codes).square()


# -- siblings that share their input -------------------------------------------------------------


@dataclass(slots=True)
class Pending:
    """Outputs of one input that have not all been picked up.

    Apart from the module, whose attributes are slow to set.
    """

    input: torch.Tensor | None = None
    outputs: tuple[torch.Tensor, ...] = ()
    waiting: int = 0


class SharedInput(nn.Module):
    """Packed product whose output columns belong to several layers."""

    def __init__(self, packed: Any, sizes: list[int]) -> None:
        super().__init__()
        self.packed = packed
        self._sizes = sizes
        self._pending = Pending()

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Output `index` for the input `x`."""
        pending = self._pending
        if x is not pending.input:
            pending.input, pending.waiting = x, len(self._sizes)
            pending.outputs = self.packed(x).split_with_sizes(self._sizes, -1)
        output = pending.outputs[index]
        pending.waiting -= 1
        if pending.waiting == 0:
            pending.input, pending.outputs = None, ()
        return output


class SharedPart(nn.Module):
    """Module in place of one of the sharing layers."""

    def __init__(self, shared: SharedInput, index: int) -> None:
        super().__init__()
        self.shared = shared
        self.weight = shared.packed.weight
        self._part = partial(shared.part, index)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This layer's columns of the shared product."""
        return self._part(x)


def shared_parts(product: nn.Module, linears: Sequence[Any]) -> Sequence[nn.Module]:
    """Stand-ins for the layers that one product computes; for one alone, the product."""
    if len(linears) == 1:
        return [product]
    shared = SharedInput(product, [linear.out_features for linear in linears])
    return [SharedPart(shared, index) for index in range(len(linears))]


# -- the native layout ----------------------------------------------------------------------------


def _panels(weight: torch.Tensor) -> torch.Tensor:
    """The weights as [panel, pair of inputs, row within the panel, 2]."""
    # A panel is 32 rows of W, pairs of inputs side by side: what one instruction multiplies.
    outputs, inputs = weight.shape
    whole = outputs // PANEL_ROWS
    panels = -(-outputs // PANEL_ROWS)
    packed = large_pages(panels * PANEL_ROWS * inputs, weight.dtype)
    view = packed.view(panels, inputs // 2, PANEL_ROWS, 2)
    view[:whole].copy_(_paired(weight[: whole * PANEL_ROWS]))
    # The last panel is filled up with zero rows, whose outputs are not read.
    if panels > whole:
        view[whole:].copy_(_paired(padded(weight[whole * PANEL_ROWS :])))
    return packed


def _paired(weight: torch.Tensor) -> torch.Tensor:
    rows, inputs = weight.shape
    return weight.view(rows // PANEL_ROWS, PANEL_ROWS, inputs // 2, 2).permute(0, 2, 1, 3)


def padded(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with zero rows up to a whole panel."""
    missing = -len(tensor) % PANEL_ROWS
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])


def large_pages(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory in 2 MB pages where the system gives them: a tenth faster to stream through."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, dtype=dtype)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=private)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)
