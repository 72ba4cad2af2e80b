"""Keys or values of token slots: in the format that the model computes in, or as int8.

In int8 each slot and kv head has a scale of its own, so that a token is rounded once, when it is
written, and never again because of its neighbours. Codes and scales of a slot travel together
through views and gathers. Keys are rounded after rotation.

The scale is a bfloat16: it has the range of fp32, so no model's outliers overflow it, and a code
times a scale is exact in fp32. Scales per channel of keys (finer for models with outliers in a few
channels) were rejected: they are known only when a block is full, and until then the block would
have to be kept in 16 bits.

Shapes: S slots, N tokens or slots, T rows of a step, K kv heads, A size of a key or value.
"""

import ctypes
import mmap
import sys
from dataclasses import dataclass

import numpy as np
import torch

from molink.checkpoint.kv_format import KvDtype
from molink_scheduler.kv.blocks import BLOCK_TOKENS

CODE_MAX = 127
"""Codes are symmetric: -128 is not used."""

SCALE_DTYPE = torch.bfloat16
SCALE_MIN = torch.finfo(SCALE_DTYPE).tiny
"""Scale of a head whose values are all zero, which are divided by it."""


@dataclass(frozen=True, slots=True)
class KvRows:
    """Keys, or values, of token slots: numbers, or int8 codes and their scales."""

    rows_SKA: torch.Tensor
    scales_SK: torch.Tensor | None = None
    """Scales of the rows; None: the rows are the numbers themselves."""

    @classmethod
    def zeros(cls, slots: int, like_TKA: torch.Tensor, kv_dtype: KvDtype) -> "KvRows":
        """Empty rows for keys or values like these."""
        shape, device = (slots, *like_TKA.shape[1:]), like_TKA.device
        if kv_dtype == "auto":
            return cls(zero_pages(shape, like_TKA.dtype, device))
        return cls(
            zero_pages(shape, torch.int8, device), zero_pages(shape[:2], SCALE_DTYPE, device)
        )

    @property
    def size(self) -> int:
        """Size of a key or value of one head."""
        return self.rows_SKA.shape[-1]

    @property
    def kv_heads(self) -> int:
        """Heads of a token."""
        return self.rows_SKA.shape[1]

    @property
    def token_bytes(self) -> int:
        """Bytes of one slot."""
        tensors = (self.rows_SKA, self.scales_SK)
        return sum(t[0].numel() * t.element_size() for t in tensors if t is not None)

    def is_like(self, other: "KvRows") -> bool:
        """Whether slots of both are of one shape and format."""
        ours, theirs = self.rows_SKA, other.rows_SKA
        return ours.shape[1:] == theirs.shape[1:] and ours.dtype == theirs.dtype

    def emptied(self, slots: int) -> "KvRows":
        """Empty rows of the same kind, for another number of slots."""
        return KvRows.zeros(slots, self.rows_SKA, "auto" if self.scales_SK is None else "int8")

    def write(self, slots_T: torch.Tensor, rows_TKA: torch.Tensor) -> None:
        """Store a step's keys or values; in int8 they are rounded here."""
        if self.scales_SK is None:
            self.rows_SKA.index_copy_(0, slots_T, rows_TKA)
            return
        codes_TKA, scales_TK = quantize(rows_TKA)
        self.rows_SKA.index_copy_(0, slots_T, codes_TKA)
        self.scales_SK.index_copy_(0, slots_T, scales_TK)

    def move(self, from_KN: torch.Tensor, to_N: torch.Tensor) -> None:
        """Copy what stands in some slots, of each kv head its own, to others, where any of the same
        may be written over."""
        head_K1 = torch.arange(self.kv_heads, device=to_N.device)[:, None]
        for tensor in (self.rows_SKA, self.scales_SK):
            if tensor is not None:
                tensor.index_copy_(0, to_N, tensor[from_KN, head_K1].transpose(0, 1))

    def copy_blocks(self, from_B: torch.Tensor, to_B: torch.Tensor) -> None:
        """Copy whole blocks to others, where any of the same may be written over."""
        for tensor in (self.rows_SKA, self.scales_SK):
            if tensor is not None:
                rows = tensor.view(len(tensor) // BLOCK_TOKENS, -1)
                rows.index_copy_(0, to_B, rows.index_select(0, from_B))

    def give_back(self, start: int, stop: int) -> None:
        """Let the system have the memory of some slots, whose whole pages are zeros again."""
        for tensor in (self.rows_SKA, self.scales_SK):
            if tensor is not None:
                _give_back(tensor[start:stop])

    def between(self, start: int, stop: int) -> "KvRows":
        """A view of neighbouring slots."""
        scales = None if self.scales_SK is None else self.scales_SK[start:stop]
        return KvRows(self.rows_SKA[start:stop], scales)

    def numbers(self, dtype: torch.dtype) -> torch.Tensor:
        """The keys or values as they are attended to, code times scale, rounded once to `dtype`."""
        if self.scales_SK is None:
            return self.rows_SKA.to(dtype)
        # A float16 has not the range of the scales, so the product is made in fp32.
        scales = self.scales_SK.to(torch.promote_types(dtype, SCALE_DTYPE))
        return (self.rows_SKA * scales[..., None]).to(dtype)


def quantize(rows_TKA: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [T, K, A] and scales [T, K] of keys or values: the largest of each head becomes 127."""
    exact_TKA = rows_TKA.float()
    largest_TK = exact_TKA.abs().amax(-1)
    scales_TK = (largest_TK / CODE_MAX).to(SCALE_DTYPE).clamp_(min=SCALE_MIN)
    codes_TKA = (exact_TKA / scales_TK.float()[..., None]).round_()
    return codes_TKA.clamp_(-CODE_MAX, CODE_MAX).to(torch.int8), scales_TK


def zero_pages(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU from numpy, whose zeros are not touched when they are made."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape)


def _give_back(tensor: torch.Tensor) -> None:
    """Have Linux take the whole pages of a part of `zero_pages`; elsewhere it keeps them."""
    if tensor.device.type != "cpu" or sys.platform != "linux":
        return
    begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    pages_bytes = (begin + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if pages_bytes > 0:
        advice = ctypes.c_void_p(first), ctypes.c_size_t(pages_bytes), mmap.MADV_DONTNEED
        ctypes.CDLL(None).madvise(*advice)
