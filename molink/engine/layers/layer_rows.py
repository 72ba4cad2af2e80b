"""Attention of one layer's query rows over its keys and values in the pool.

Our CPU kernels compute all rows where they suit, or those of decode, or of spans; else torch does
(`torch_rows`): also in a recorded step, which may be made of torch's operations and a card's
kernels only.

Shapes: T rows, H query heads, A head size of keys, V of values.
"""

from dataclasses import dataclass

import torch

from molink.engine.kernels.cpu.native_attention import kernels_for
from molink.engine.kernels.cpu.native_decode import decode_kernel_for
from molink.engine.kernels.cpu.native_spans import span_kernel_for
from molink.engine.layers.torch_rows import Select, TorchRows
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.kv_rows import KvRows
from molink.engine.memory.ragged_batch import DecodeTables, RaggedBatch


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
        return self._attend(self.variant, None)

    def attend_part(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend the rows to a batch that holds some of their keys; [T, H, V], and the log-sum-exps
        [T, H] in fp32, natural logarithm: zeros and -inf where a row sees none of these keys. Sinks
        are left to who joins the parts, and rows are launched, not recorded."""
        assert not isinstance(self.batch, DecodeTables)
        log_sums_TH = self.q_THA.new_empty(self.q_THA.shape[:2], dtype=torch.float32)
        out_THV = self._attend(self.variant.without_sinks, log_sums_TH)
        return out_THV, log_sums_TH

    def _attend(self, variant: AttentionVariant, log_sums_TH: torch.Tensor | None) -> torch.Tensor:
        rows = (self.q_THA, self.layer, self.batch, self.window, variant)
        decode_kernel = span_kernel = None
        if not isinstance(self.batch, DecodeTables):
            if (kernels := kernels_for(self.q_THA, self.layer)) is not None:
                return kernels.attend(*rows, log_sums_TH)
            if self.batch.has_decodes:
                decode_kernel = decode_kernel_for(self.q_THA, self.layer)
            if self.batch.has_pieces:
                span_kernel = span_kernel_for(self.q_THA, self.layer)
        call = (self._numbers, self.window, variant, log_sums_TH)
        torch_rows = TorchRows(self.batch, self.q_THA, self.layer.values.size, *call)
        left = {"has_decodes": decode_kernel is None, "has_pieces": span_kernel is None}
        out_THV = torch_rows.attend(self.pool, **left)
        for kernel in (decode_kernel, span_kernel):
            if kernel is not None:
                kernel.attend(*rows, out_THV, log_sums_TH)
        return out_THV

    def _numbers(self, select: Select) -> tuple[torch.Tensor, torch.Tensor]:
        parts: tuple[KvRows, KvRows] = (self.layer.keys, self.layer.values)
        keys, values = (select(rows, which) for which, rows in enumerate(parts))
        return keys.numbers(self.q_THA.dtype), values.numbers(self.q_THA.dtype)
