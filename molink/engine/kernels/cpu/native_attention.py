"""Attention through our C kernels, for decode rows and for spans (`native/avx512`).

torch's fused kernel is made for long queries of one length. For eight single rows over 70 keys it
takes 140 microseconds a layer where ours takes a fifth, and only if a mask and evenly spaced
sequences let them share a call; for 128 rows over 1,000 keys it takes 5.6 ms where ours takes less
than half. They read blocks wherever they are, all spans of a batch in a call for those of one row
and one for the others. Where a kernel cannot be used, `attention_math` computes the same.

Shapes: T rows of the batch, H query heads, N keys, K kv heads, A head size of keys, V of values.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from molink.engine.kernels.cpu.native_kernel import native_library
from molink.engine.kernels.cpu.proving_attention import PROBE_SLOTS, agrees, probe_numbers
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.kv_rows import KvRows, quantize
from molink.engine.memory.ragged_batch import RaggedBatch

KEY_STEP, VALUE_STEP = 32, 16
"""Head sizes must be multiples of these: what one instruction takes."""


class Shape(ctypes.Structure):
    """The kernels' `struct shape`: sizes of an attention call."""

    _fields_ = (
        ("kv_heads", ctypes.c_long),
        ("group", ctypes.c_long),
        ("key_size", ctypes.c_long),
        ("value_size", ctypes.c_long),
        ("key_token", ctypes.c_long),
        ("key_head", ctypes.c_long),
        ("value_token", ctypes.c_long),
        ("value_head", ctypes.c_long),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


class Kv(ctypes.Structure):
    """The kernels' `struct kv`: where keys and values of a layer are."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("keys", "values", "key_scales", "value_scales")
    )


class Batch(ctypes.Structure):
    """The kernels' `struct batch`: geometry of the spans, and the layer's window."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("row", "rows", "start", "keys", "blocks")),
        *((name, ctypes.c_long) for name in ("spans", "width", "window")),
    )


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """The compiled attention kernels, called with tensors."""

    library: ctypes.CDLL

    def attend(
        self,
        query_THA: torch.Tensor,
        layer: LayerKv,
        batch: RaggedBatch,
        window: int | None,
        variant: AttentionVariant,
        log_sums_TH: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention [T, H, V] of a batch whose keys and values are in the pool already. Rows that
        belong to no span are not written; where log-sum-exps are wanted they are as if they saw
        nothing."""
        out_THV = query_THA.new_empty(*query_THA.shape[:2], layer.values.size)
        if log_sums_TH is not None and not batch.covers(len(query_THA)):
            out_THV.zero_()
            log_sums_TH.fill_(-torch.inf)
        kernels = []
        if batch.has_decodes:
            kernels.append(self.library.decode_attention)
        if batch.has_pieces:
            kernels.append(self.library.span_attention)
        run_kernels(kernels, query_THA, layer, batch, window, variant, out_THV, log_sums_TH)
        return out_THV


def run_kernels(
    kernels: Sequence[Any],
    query_THA: torch.Tensor,
    layer: LayerKv,
    batch: RaggedBatch,
    window: int | None,
    variant: AttentionVariant,
    out_THV: torch.Tensor,
    log_sums_TH: torch.Tensor | None = None,
) -> None:
    """Call C functions. Log-sum-exps [T, H] in fp32, where they are wanted, are the logarithms of
    the sums of the exponentials of the scores, sinks included, -inf where there are none. Raises
    MemoryError where there is none for the scores."""
    # What a pointer leads to needs a name here, or it is freed before the kernel reads it.
    query_THA, sinks = query_THA.contiguous(), _sinks(variant)
    given = (
        ctypes.byref(shape_of(query_THA.shape[1], layer, variant)),
        ctypes.byref(batch_of(batch, window)),
        query_THA.data_ptr(),
        ctypes.byref(kv_of(layer)),
        None if sinks is None else sinks.data_ptr(),
        out_THV.data_ptr(),
        None if log_sums_TH is None else log_sums_TH.data_ptr(),
    )
    if any(kernel(*given, torch.get_num_threads()) for kernel in kernels):
        raise MemoryError("no memory for attention scores")


def kernels_for(query_THA: torch.Tensor, layer: LayerKv) -> AttentionKernels | None:
    """The kernels, or None where they cannot compute this layer."""
    suits = (
        query_THA.dtype is torch.bfloat16
        and layer.keys.rows_SKA.dtype in (torch.bfloat16, torch.int8)
        and query_THA.device.type == "cpu"
        and layer.keys.size % KEY_STEP == 0
        and layer.values.size % VALUE_STEP == 0
    )
    return _kernels() if suits and not _refused else None


def shape_of(heads: int, layer: LayerKv, variant: AttentionVariant) -> Shape:
    """Sizes of an attention call of so many query heads."""
    keys, values, softcap = layer.keys.rows_SKA, layer.values.rows_SKA, variant.softcap or 0.0
    _, kv_heads, key_size = keys.shape
    sizes = (kv_heads, heads // kv_heads, key_size, values.shape[2])
    strides = (*keys.stride()[:2], *values.stride()[:2])  # To the next token and kv head.
    return Shape(*sizes, *strides, variant.scale, softcap)


def batch_of(batch: RaggedBatch, window: int | None) -> Batch:
    """The geometry as the kernels read it."""
    made: Batch = batch.once(("native", window), lambda: _batch(batch, window))
    return made


def _batch(batch: RaggedBatch, window: int | None) -> Batch:
    tensors = (batch.row_S, batch.rows_S, batch.start_S, batch.keys_S, batch.blocks_SB)
    return Batch(*(tensor.data_ptr() for tensor in tensors), *batch.blocks_SB.shape, window or 0)


def kv_of(layer: LayerKv) -> Kv:
    """Addresses of a layer's keys and values."""
    tensors = (layer.keys.rows_SKA, layer.values.rows_SKA, layer.keys.scales_SK)
    return Kv(*(None if t is None else t.data_ptr() for t in (*tensors, layer.values.scales_SK)))


def _sinks(variant: AttentionVariant) -> torch.Tensor | None:
    return None if variant.sinks_H is None else variant.sinks_H.float().contiguous()


# -- the kernels, once they have given the same numbers as torch ----------------------------------


@cache
def _kernels() -> AttentionKernels | None:
    library = native_library()
    if library is None:
        return None
    pointer = ctypes.c_void_p
    decode, span = library.decode_attention, library.span_attention
    decode.argtypes = span.argtypes = [*[pointer] * 7, ctypes.c_int]
    decode.restype = span.restype = ctypes.c_int
    kernels = AttentionKernels(library)
    return kernels if _agrees(kernels) else None


def _agrees(kernels: AttentionKernels) -> bool:
    """Compare with torch over keys and values of each kind."""
    random = partial(probe_numbers, dtype=torch.bfloat16)
    keys, values = random(PROBE_SLOTS, 2, 64), random(PROBE_SLOTS, 2, 48)
    shared = random(PROBE_SLOTS, 1, 64).expand(-1, 2, -1)  # Of both heads; values are of keys.
    layers = (
        LayerKv(KvRows(keys), KvRows(values)),
        LayerKv(KvRows(*quantize(keys)), KvRows(*quantize(values))),
        LayerKv(KvRows(shared), KvRows(shared[..., :48])),
    )
    return agrees(kernels.attend, random(17, 6, 64), layers)


def refuse_kernels() -> None:
    """Leave all attention of this process to torch."""
    _refused.append(True)


def are_refused() -> bool:
    """Whether the kernels were off with rows of a model."""
    return bool(_refused)


_refused: list[bool] = []
