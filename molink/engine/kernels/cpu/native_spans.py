"""Attention of spans of several rows through our C kernel (`native/span_attention.h`), for CPUs
without bfloat16 instructions: queries in fp32 or bfloat16, keys and values in the same or in int8,
all widened to fp32.

torch wants the keys of a sequence in one piece and a mask of rows times keys, and its products in
bfloat16 are slow where the CPU has no instructions for them. The kernel reads blocks wherever they
are and widens a piece of them once for all rows.

Shapes: T rows of the batch, H query heads, V size of values.
"""

import ctypes
from functools import cache, partial

import torch

from molink.engine.kernels.cpu.native_attention import are_refused
from molink.engine.kernels.cpu.native_decode import (
    SIZE_STEP,
    Call,
    RowsKernel,
    attention_function,
)
from molink.engine.kernels.cpu.native_kernel import AVX2, native_library
from molink.engine.kernels.cpu.proving_attention import PROBE_SLOTS, agrees, probe_numbers
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.kv_rows import KvRows, quantize

NAMES = {torch.float32: "span_attention_f32", torch.bfloat16: "span_attention_bf16"}
"""The kernel for each number format of queries."""


class SpanKernel(RowsKernel):
    """The kernel for spans of several rows."""

    __slots__ = ()


def span_kernel_for(query_THA: torch.Tensor, layer: LayerKv) -> SpanKernel | None:
    """The kernel, or None where it cannot compute this layer."""
    kinds = {layer.keys.rows_SKA.dtype, layer.values.rows_SKA.dtype}
    suits = (
        query_THA.dtype in NAMES
        and kinds in ({query_THA.dtype}, {torch.int8})
        and query_THA.device.type == "cpu"
        and layer.keys.size % SIZE_STEP == 0
        and layer.values.size % SIZE_STEP == 0
    )
    return _kernel(query_THA.dtype) if suits and not are_refused() else None


@cache
def _kernel(dtype: torch.dtype) -> SpanKernel | None:
    return span_kernel_of(native_library(AVX2), dtype)


def span_kernel_of(library: ctypes.CDLL | None, dtype: torch.dtype) -> SpanKernel | None:
    """The kernel of a library, if it gives the same numbers as torch."""
    function = attention_function(library, NAMES[dtype])
    kernel = None if function is None else SpanKernel(function)
    return kernel if kernel is not None and _agrees(kernel, dtype) else None


def _agrees(kernel: SpanKernel, dtype: torch.dtype) -> bool:
    """Compare with torch over keys and values of each kind."""
    random = partial(probe_numbers, dtype=dtype)
    keys, values = random(PROBE_SLOTS, 2, 48), random(PROBE_SLOTS, 2, 32)
    layers = (
        LayerKv(KvRows(keys), KvRows(values)),
        LayerKv(KvRows(*quantize(keys)), KvRows(*quantize(values))),
    )

    def attend(query_THA: torch.Tensor, *call: *Call) -> torch.Tensor:
        out_THV = query_THA.new_full((*query_THA.shape[:2], 32), torch.nan)
        kernel.attend(query_THA, *call, out_THV)
        out_THV[-1] = out_THV[-2]  # A decode row, which is the last one of the span once more.
        return out_THV

    return agrees(attend, random(17, 6, 48), layers)
