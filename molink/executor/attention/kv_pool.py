"""The tensors behind the KV blocks: for each layer one row of keys and one of values per token
slot.

Which slot belongs to whom is the bookkeeping of `KvBlocks`; here is only memory. A layer's shape is
taken from the first keys and values that it writes, since heads and head sizes may differ between
layers and between K and V.

Memory comes as zero pages that the operating system hands out when they are first written, so a
large pool costs nothing until it is used. Zeros matter: a view over several sequences also covers
slots that were never written, whose values are masked, and masked infinities would still spoil a
sum.

Shapes: S slots, T rows of a batch, N tokens of a sequence, K kv heads, A head size of keys, V of
values.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from molink_scheduler.kv.blocks import BLOCK_TOKENS

__all__ = ["KvPool", "LayerKv", "zero_pages"]


@dataclass(slots=True)
class LayerKv:
    """KV tensors of one layer."""

    keys_SKA: torch.Tensor
    values_SKV: torch.Tensor

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in this layer."""
        return sum(t[0].numel() * t.element_size() for t in (self.keys_SKA, self.values_SKV))


@dataclass(slots=True)
class KvPool:
    """KV tensors of all layers of one stage, by token slot."""

    slots: int
    layers: dict[int, LayerKv] = field(default_factory=dict)
    _gathered: dict[tuple[torch.dtype, int, int], torch.Tensor] = field(default_factory=dict)
    """Scratch that gathers reuse: fresh memory costs six times the copy, in page faults."""

    def __post_init__(self) -> None:
        if self.slots < BLOCK_TOKENS:
            raise ValueError(f"a KV pool holds at least one block, got {self.slots} slots")

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers seen so far."""
        return sum(layer.token_bytes for layer in self.layers.values())

    def write(
        self,
        layer_index: int,
        slots_T: torch.Tensor,
        keys_TKA: torch.Tensor,
        values_TKV: torch.Tensor,
    ) -> LayerKv:
        """Store a step's keys and values, and return the layer that now holds them."""
        layer = self.layers.get(layer_index)
        if layer is None:
            layer = self.layers[layer_index] = self._new_layer(keys_TKA, values_TKV)
        layer.keys_SKA.index_copy_(0, slots_T, keys_TKA)
        layer.values_SKV.index_copy_(0, slots_T, values_TKV)
        return layer

    def gather(self, source_SKA: torch.Tensor, slots_N: torch.Tensor, which: int) -> torch.Tensor:
        """Copy scattered slots together; valid until the next gather of the same kind (`which`: 0
        keys, 1 values).
        """
        count, width = len(slots_N), source_SKA[0].numel()
        key = (source_SKA.dtype, width, which)
        scratch = self._gathered.get(key)
        if scratch is None or len(scratch) < count:
            rows = min(self.slots, 2 * count)
            scratch = self._gathered[key] = source_SKA.new_empty(rows, width)
        out = scratch[:count]
        torch.index_select(source_SKA.view(self.slots, width), 0, slots_N, out=out)
        return out.view(count, *source_SKA.shape[1:])

    def resized(self, slots: int) -> "KvPool":
        """An empty pool of another size with the same layers."""
        pool = KvPool(slots)
        for index, layer in self.layers.items():
            pool.layers[index] = pool._new_layer(layer.keys_SKA, layer.values_SKV)
        return pool

    def _new_layer(self, keys_TKA: torch.Tensor, values_TKV: torch.Tensor) -> LayerKv:
        return LayerKv(zero_pages(self.slots, keys_TKA), zero_pages(self.slots, values_TKV))


def zero_pages(slots: int, like_TKA: torch.Tensor) -> torch.Tensor:
    """Zeros; on the CPU from numpy, whose zeros are not touched when they are made."""
    shape = (slots, *like_TKA.shape[1:])
    if like_TKA.device.type != "cpu":
        return torch.zeros(shape, dtype=like_TKA.dtype, device=like_TKA.device)
    count = slots * like_TKA[0].numel() * like_TKA.element_size()
    return torch.from_numpy(np.zeros(count, np.uint8)).view(like_TKA.dtype).view(shape)
