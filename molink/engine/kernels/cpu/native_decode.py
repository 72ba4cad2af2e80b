"""Attention of decode rows through our C kernel (`native/decode_attention.h`), for CPUs without
bfloat16 instructions: in fp32, which stages compute in there, and in bfloat16, widened as it is
read, in which such a CPU may hold KV of a stage that computes elsewhere.

torch wants the keys of a sequence in one piece. A sequence that begins with cached blocks, or for
which room was made, has them in several, and to gather them costs as much again as to attend. The
kernel reads blocks wherever they are. Spans of several rows have one of their own (`native_spans`).

Shapes: T rows of the batch, H query heads, V size of values.
"""

import ctypes
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from molink.engine.kernels.cpu.native_attention import are_refused, run_kernels
from molink.engine.kernels.cpu.native_kernel import AVX2, AVX512, native_library
from molink.engine.kernels.cpu.proving_attention import PROBE_SLOTS, agrees, probe_numbers
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.kv_rows import KvRows
from molink.engine.memory.ragged_batch import RaggedBatch

Call = tuple[LayerKv, RaggedBatch, int | None, AttentionVariant]
"""Layer's KV, batch, window and variant of one call of attention."""

SIZE_STEP = 16
"""Head sizes must be multiples of it: numbers in a vector of AVX512."""

NAMES = {torch.float32: "decode_attention_f32", torch.bfloat16: "decode_attention_bf16"}
"""The kernel for each number format of queries, keys and values."""


@dataclass(frozen=True, slots=True)
class RowsKernel:
    """A compiled kernel for some rows of a batch and one number format, called with tensors."""

    function: Any

    def attend(
        self,
        query_THA: torch.Tensor,
        layer: LayerKv,
        batch: RaggedBatch,
        window: int | None,
        variant: AttentionVariant,
        out_THV: torch.Tensor,
        log_sums_TH: torch.Tensor | None = None,
    ) -> None:
        """Attend the rows that it is for, whose keys and values are in the pool already; other rows
        of `out_THV` are not written. Raises MemoryError where there is none for the scores."""
        call = (query_THA, layer, batch, window, variant, out_THV, log_sums_TH)
        run_kernels([self.function], *call)


class DecodeKernel(RowsKernel):
    """The kernel for spans of one row."""

    __slots__ = ()


def decode_kernel_for(query_THA: torch.Tensor, layer: LayerKv) -> DecodeKernel | None:
    """The kernel, or None where it cannot compute this layer."""
    kinds = {query_THA.dtype, layer.keys.rows_SKA.dtype, layer.values.rows_SKA.dtype}
    suits = (
        kinds == {query_THA.dtype}
        and query_THA.dtype in NAMES
        and query_THA.device.type == "cpu"
        and layer.keys.size % SIZE_STEP == 0
        and layer.values.size % SIZE_STEP == 0
    )
    return _kernel(query_THA.dtype) if suits and not are_refused() else None


@cache
def _kernel(dtype: torch.dtype) -> DecodeKernel | None:
    return decode_kernel_of(native_library(AVX512) or native_library(AVX2), dtype)


def decode_kernel_of(library: ctypes.CDLL | None, dtype: torch.dtype) -> DecodeKernel | None:
    """The kernel of a library, if it gives the same numbers as torch. There is none in bfloat16
    where CPUs have instructions for it: kernels of their own (`native_attention`) compute there."""
    function = attention_function(library, NAMES[dtype])
    kernel = None if function is None else DecodeKernel(function)
    return kernel if kernel is not None and _agrees(kernel, dtype) else None


def attention_function(library: ctypes.CDLL | None, name: str) -> Any | None:
    """A library's attention kernel of this name, or None where it has none."""
    function = None if library is None else getattr(library, name, None)
    if function is not None:
        function.argtypes, function.restype = [*[ctypes.c_void_p] * 7, ctypes.c_int], ctypes.c_int
    return function


def _agrees(kernel: DecodeKernel, dtype: torch.dtype) -> bool:
    """Compare with torch on a decode row."""
    random = partial(probe_numbers, dtype=dtype)
    layer = LayerKv(KvRows(random(PROBE_SLOTS, 2, 48)), KvRows(random(PROBE_SLOTS, 2, 32)))

    def attend(query_THA: torch.Tensor, *call: *Call) -> torch.Tensor:
        out_THV = query_THA.new_full((*query_THA.shape[:2], 32), torch.nan)
        kernel.attend(query_THA, *call, out_THV)
        return out_THV

    return agrees(attend, random(1, 6, 48), [layer])
