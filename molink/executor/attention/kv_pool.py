"""The tensors behind the KV blocks: for each layer one row of keys and one of values per token
slot.

Which slot belongs to whom is the bookkeeping of `KvBlocks`; here is only memory. A layer's shape is
taken from the first keys and values that it writes, since heads and head sizes may differ between
layers and between K and V.

Memory comes as zero pages that the operating system hands out when they are first written, so a
large pool costs nothing until it is used. Zeros matter: a view over several sequences also covers
slots that were never written, whose values are masked, and masked infinities would still spoil a
sum.

Shapes: T rows of a batch, N tokens of a sequence, K kv heads, A head size of keys, V of values.
"""

from dataclasses import dataclass, field

import torch

from molink.checkpoint.model_shape import KvDtype
from molink.executor.attention.kv_rows import KvRows
from molink_scheduler.kv.blocks import BLOCK_TOKENS

__all__ = ["KvPool", "LayerKv"]


@dataclass(frozen=True, slots=True)
class LayerKv:
    """KV tensors of one layer."""

    keys: KvRows
    values: KvRows

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in this layer."""
        return self.keys.token_bytes + self.values.token_bytes


@dataclass(slots=True)
class KvPool:
    """KV tensors of all layers of one stage, by token slot."""

    slots: int
    kv_dtype: KvDtype = "auto"
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
            layer = self.layers[layer_index] = LayerKv(
                KvRows.zeros(self.slots, keys_TKA, self.kv_dtype),
                KvRows.zeros(self.slots, values_TKV, self.kv_dtype),
            )
        layer.keys.write(slots_T, keys_TKA)
        layer.values.write(slots_T, values_TKV)
        return layer

    def gather(self, source: KvRows, slots_N: torch.Tensor, which: int) -> KvRows:
        """Copy scattered slots together; valid until the next gather of the same kind (`which`: 0
        keys, 1 values).
        """
        rows = self._copied(source.rows_SKA, slots_N, which)
        if source.scales_SK is None:
            return KvRows(rows)
        return KvRows(rows, self._copied(source.scales_SK, slots_N, which))

    def _copied(self, source: torch.Tensor, slots_N: torch.Tensor, which: int) -> torch.Tensor:
        count, width = len(slots_N), source[0].numel()
        key = (source.dtype, width, which)
        scratch = self._gathered.get(key)
        if scratch is None or len(scratch) < count:
            rows = min(self.slots, 2 * count)
            scratch = self._gathered[key] = source.new_empty(rows, width)
        out = scratch[:count]
        torch.index_select(source.view(self.slots, width), 0, slots_N, out=out)
        return out.view(count, *source.shape[1:])

    def resized(self, slots: int) -> "KvPool":
        """An empty pool of another size with the same layers."""
        layers = {
            index: LayerKv(layer.keys.emptied(slots), layer.values.emptied(slots))
            for index, layer in self.layers.items()
        }
        return KvPool(slots, self.kv_dtype, layers)
