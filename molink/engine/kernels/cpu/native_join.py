"""Join of attention computed in parts, by our C kernel (`native/join_parts.h`): as dozens of small
operations torch takes forty microseconds for what is two of arithmetic.

Shapes: P parts, T rows, H query heads, V size of values.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from molink.engine.kernels.cpu.native_kernel import AVX2, AVX512, native_library

NAMES = {torch.float32: "join_parts_f32", torch.bfloat16: "join_parts_bf16"}


class Joining(ctypes.Structure):
    """The kernel's `struct joining`."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("parts", "rows", "heads", "size")),
        ("log_sums", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
    )


def join_by_kernel(
    outs: Sequence[torch.Tensor],
    log_sums: Sequence[torch.Tensor],
    sinks_H: torch.Tensor | None,
) -> torch.Tensor | None:
    """Attention [T, H, V] of parts in order; None where the kernel is not made for them."""
    function = _function(outs[0].dtype) if outs[0].device.type == "cpu" else None
    if function is None or not all(tensor.is_contiguous() for tensor in (*outs, *log_sums)):
        return None
    out_THV = torch.empty_like(outs[0])
    # What a pointer leads to needs a name here, or it is freed before the kernel reads it.
    sinks = None if sinks_H is None else sinks_H.float().contiguous()
    parts, sums = _pointers(outs), _pointers(log_sums)
    given = Joining(
        len(outs),
        *out_THV.shape,
        ctypes.addressof(sums),
        None if sinks is None else sinks.data_ptr(),
    )
    function(ctypes.byref(given), parts, out_THV.data_ptr())
    return out_THV


def _pointers(tensors: Sequence[torch.Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


@cache
def _function(dtype: torch.dtype) -> Any:
    library = native_library(AVX512) or native_library(AVX2)
    if library is None or dtype not in NAMES:
        return None
    function = getattr(library, NAMES[dtype])
    function.argtypes, function.restype = [ctypes.c_void_p] * 3, None
    return function
