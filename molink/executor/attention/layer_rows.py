"""Attention of one layer's query rows over its keys and values in the pool.

Our CPU kernels compute all rows where they suit, else torch does (`torch_rows`): also in a recorded
step, which may be made of torch's operations and a card's kernels only.

Shapes: T rows, H query heads, A head size of keys, V of values.
"""

from dataclasses import dataclass

import torch

from molink.executor.attention.attention_math import AttentionVariant
from molink.executor.attention.kv_pool import KvPool, LayerKv
from molink.executor.attention.kv_rows import KvRows
from molink.executor.attention.ragged_batch import DecodeTables, RaggedBatch
from molink.executor.attention.torch_rows import Select, TorchRows
from molink.executor.cpu import native_attention

__all__ = ["LayerRows"]


@dataclass(slots=True)
class LayerRows:
    """Query rows of one layer's attention call, and what they attend to."""

    batch: RaggedBatch
    pool: KvPool
    layer: LayerKv
    q_THA: torch.Tensor
    window: int | None
    variant: AttentionVariant

    def attend(self) -> torch.Tensor:
        """Attend all rows; [T, H, V]."""
        call = (self.window, self.variant)
        kernels = native_attention.kernels_for(self.q_THA, self.layer)
        if kernels is not None and not isinstance(self.batch, DecodeTables):
            return kernels.attend(self.q_THA, self.layer, self.batch, *call)
        size = self.layer.values.size
        return TorchRows(self.batch, self.q_THA, size, self._numbers, *call).attend(self.pool)

    def _numbers(self, select: Select) -> tuple[torch.Tensor, torch.Tensor]:
        parts: tuple[KvRows, KvRows] = (self.layer.keys, self.layer.values)
        keys, values = (select(rows, which) for which, rows in enumerate(parts))
        return keys.numbers(self.q_THA.dtype), values.numbers(self.q_THA.dtype)
