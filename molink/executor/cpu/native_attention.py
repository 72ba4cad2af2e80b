"""Attention through our C kernels, for decode rows and for spans (`native/avx512`).

torch's fused kernel is made for long queries of one length. For eight single rows over 70 keys it
takes 140 microseconds a layer where ours takes a fifth, and only if a mask and evenly spaced
sequences let them share a call; for 128 rows over 1,000 keys it takes 5.6 ms where ours takes less
than half. Where a kernel cannot be used, `attention_math` computes the same.

Shapes: T rows of the batch, H query heads, N keys, S slots, K kv heads, A head size of keys, V of
values.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from molink.executor.attention.attention_math import AttentionVariant, attend_packed, causal_mask
from molink.executor.attention.kv_pool import LayerKv
from molink.executor.attention.kv_rows import KvRows, quantize
from molink.executor.attention.step_plan import KeyRange
from molink.executor.cpu.native_kernel import bfloat16_library

__all__ = ["AttentionKernels", "kernels_for", "key_ranges"]

KEY_STEP, VALUE_STEP = 32, 16
"""Head sizes must be multiples of these: what one instruction takes."""

TOLERANCE = 2e-2
"""Largest difference from torch on a probe with values around one: bfloat16 outputs."""


class Shape(ctypes.Structure):
    """The kernels' `struct shape`: sizes of an attention call."""

    _fields_ = (
        ("kv_heads", ctypes.c_long),
        ("group", ctypes.c_long),
        ("key_size", ctypes.c_long),
        ("value_size", ctypes.c_long),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


class Kv(ctypes.Structure):
    """The kernels' `struct kv`: where keys and values of a layer are."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("keys", "values", "key_scales", "value_scales")
    )


class SpanShape(ctypes.Structure):
    """The kernel's `struct span`: rows and keys of one sequence."""

    _fields_ = (("rows", ctypes.c_long), ("keys", ctypes.c_long), ("window", ctypes.c_long))


def key_ranges(ranges: Sequence[KeyRange]) -> torch.Tensor:
    """The ranges as the kernel reads them."""
    return torch.tensor([(keys.row, keys.start_slot, keys.tokens) for keys in ranges])


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """The compiled attention kernels, called with tensors."""

    library: ctypes.CDLL

    def decodes(
        self,
        query_THA: torch.Tensor,
        layer: LayerKv,
        ranges: torch.Tensor,
        variant: AttentionVariant,
        out_THV: torch.Tensor,
    ) -> None:
        """Write the attention of the rows in `ranges` (from `key_ranges`) into `out_THV`."""
        # What a pointer leads to needs a name here, or it is freed before the kernel reads it.
        query_THA = query_THA.contiguous()
        sinks = _sinks(variant)
        failed = self.library.decode_attention(
            ctypes.byref(_shape(query_THA, layer, variant)),
            query_THA.data_ptr(),
            ctypes.byref(_pointers(layer)),
            None if sinks is None else sinks.data_ptr(),
            ranges.data_ptr(),
            len(ranges),
            out_THV.data_ptr(),
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for attention scores")

    def span(
        self,
        query_THA: torch.Tensor,
        seen: LayerKv,
        window: int | None,
        variant: AttentionVariant,
        out_THV: torch.Tensor,
    ) -> None:
        """Write into `out_THV` the causal attention of rows that are the last ones of `seen`."""
        query_THA = query_THA.contiguous()
        sinks = _sinks(variant)
        failed = self.library.span_attention(
            ctypes.byref(_shape(query_THA, seen, variant)),
            ctypes.byref(SpanShape(len(query_THA), len(seen.keys.rows_SKA), window or 0)),
            query_THA.data_ptr(),
            ctypes.byref(_pointers(seen)),
            None if sinks is None else sinks.data_ptr(),
            out_THV.data_ptr(),
            torch.get_num_threads(),
        )
        if failed:
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
    return _kernels() if suits else None


def _shape(query_THA: torch.Tensor, layer: LayerKv, variant: AttentionVariant) -> Shape:
    kv_heads = layer.keys.kv_heads
    return Shape(
        kv_heads=kv_heads,
        group=query_THA.shape[1] // kv_heads,
        key_size=layer.keys.size,
        value_size=layer.values.size,
        scale=variant.scale,
        softcap=variant.softcap or 0.0,
    )


def _pointers(layer: LayerKv) -> Kv:
    tensors = (layer.keys.rows_SKA, layer.values.rows_SKA, layer.keys.scales_SK)
    return Kv(*(None if t is None else t.data_ptr() for t in (*tensors, layer.values.scales_SK)))


def _sinks(variant: AttentionVariant) -> torch.Tensor | None:
    return None if variant.sinks_H is None else variant.sinks_H.float().contiguous()


# -- the kernels, once they have given the same numbers as torch ----------------------------------


@cache
def _kernels() -> AttentionKernels | None:
    library = bfloat16_library()
    if library is None:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_long
    decode, span = library.decode_attention, library.span_attention
    decode.argtypes = [*[pointer] * 5, number, pointer, ctypes.c_int]
    span.argtypes = [*[pointer] * 6, ctypes.c_int]
    decode.restype = span.restype = ctypes.c_int
    kernels = AttentionKernels(library)
    return kernels if _agrees(kernels) else None


def _agrees(kernels: AttentionKernels) -> bool:
    """Compare with torch on a span and on its last row, plain and with everything on, over keys and
    values of both kinds."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    keys, values = random(300, 2, 64), random(300, 2, 48)
    query_THA = random(17, 6, 64)
    layers = (
        LayerKv(KvRows(keys), KvRows(values)),
        LayerKv(KvRows(*quantize(keys)), KvRows(*quantize(values))),
    )
    capped = AttentionVariant(0.2, 5.0, torch.linspace(-1, 1, 6))
    return all(
        _agree_on(kernels, query_THA, layer, window, variant)
        for layer in layers
        for window, variant in ((None, AttentionVariant(0.125)), (9, capped))
    )


def _agree_on(
    kernels: AttentionKernels,
    query_THA: torch.Tensor,
    layer: LayerKv,
    window: int | None,
    variant: AttentionVariant,
) -> bool:
    wanted_THV = _reference(query_THA, layer, window, variant)
    got_THV = query_THA.new_empty(wanted_THV.shape)
    kernels.span(query_THA, layer, window, variant, got_THV)
    spans_agree = (got_THV.float() - wanted_THV).abs().max() <= TOLERANCE
    count = len(layer.keys.rows_SKA)
    first = 0 if window is None else count - window
    last = [KeyRange(len(query_THA) - 1, first, count - first)]
    got_THV[-1] = 0
    kernels.decodes(query_THA, layer, key_ranges(last), variant, got_THV)
    return bool(spans_agree and (got_THV[-1].float() - wanted_THV[-1]).abs().max() <= TOLERANCE)


def _reference(
    query_THA: torch.Tensor, layer: LayerKv, window: int | None, variant: AttentionVariant
) -> torch.Tensor:
    tokens, heads, size = query_THA.shape
    kv_heads, dtype = layer.keys.kv_heads, torch.float32
    keys_NKA, values_NKV = (
        layer.keys.numbers(dtype),
        layer.values.numbers(dtype),
    )
    mask = causal_mask(tokens, len(keys_NKA), window, heads // kv_heads, dtype, query_THA.device)
    out_BKRV = attend_packed(
        query_THA.float().transpose(0, 1).reshape(1, kv_heads, -1, size),
        keys_NKA.transpose(0, 1)[None],
        values_NKV.transpose(0, 1)[None],
        mask,
        variant,
    )
    return out_BKRV.reshape(heads, tokens, -1).transpose(0, 1)
