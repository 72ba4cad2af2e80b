"""Attention of one layer's query rows over latent rows in the pool (`latent_expansion`).

To absorbed queries a latent row is the one key of all heads, and its latent part the one value:
what `LayerRows` computes for any layer with one kv head. Spans that are long enough to pay for it
get keys and values made for them, for as many heads at a time as fit into a scratch.

Shapes: T rows, N keys, S slots, H query heads, R latent part of a row, L the whole of it, A a key,
V a value.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from molink.engine.device.streams import uploaded
from molink.engine.kernels.cpu import native_attention
from molink.engine.layers.latent_expansion import LatentExpansion
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.layers.torch_rows import Select, TorchRows
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.kv_rows import KvRows
from molink.engine.memory.ragged_batch import (
    DecodeTables,
    RaggedBatch,
    RaggedSpan,
)

SCRATCH_NUMBERS = 2**25
"""Numbers of keys and values made for a span: 64 MB in 16 bits, at least those of one head."""


@dataclass(slots=True)
class LatentRows:
    """Query rows of one layer's attention call, and the latent rows that they attend to."""

    batch: RaggedBatch
    pool: KvPool
    rows: KvRows
    """Latent rows of all slots."""
    expansion: LatentExpansion
    q_THA: torch.Tensor
    window: int | None
    variant: AttentionVariant

    def attend(self) -> torch.Tensor:
        """Attend all rows; [T, H, V]."""
        if isinstance(self.batch, DecodeTables):
            return self._absorbed(self.batch, self.q_THA)
        made, few, few_rows = self.batch.once(
            ("latent", self.expansion.sizes), self._spans_by_method
        )
        if not made:
            return self._absorbed(self.batch, self.q_THA)
        out_THV = self.q_THA.new_empty(*self.q_THA.shape[:2], self.expansion.value_size)
        if few is not None:
            out_THV[few_rows] = self._absorbed(few, self.q_THA[few_rows])
        for number in made:
            span = self.batch.spans[number]
            rows = slice(span.row, span.row + span.rows)
            self._made(number, self.q_THA[rows], out_THV[rows])
        return out_THV

    def _spans_by_method(self) -> tuple[list[int], RaggedBatch | None, torch.Tensor | None]:
        """Numbers of the spans for which keys are made, the batch of all others, and these others'
        rows."""
        made: list[int] = []
        few: list[RaggedSpan] = []
        rows: list[int] = []
        for number, span in enumerate(self.batch.spans):
            if self.expansion.saves(span.rows, span.keys):
                made.append(number)
            else:
                few.append(replace(span, row=len(rows)))
                rows += range(span.row, span.row + span.rows)
        if not (made and few):
            return made, None, None
        (rows_T,) = uploaded([np.array(rows, np.int32)], self.q_THA.device)
        return made, RaggedBatch.of(few, self.q_THA.device), rows_T.long()

    # -- few rows: queries meet the rows themselves ---------------------------------------------

    def _absorbed(self, batch: RaggedBatch, q_THA: torch.Tensor) -> torch.Tensor:
        q_THL = self.expansion.absorbed(q_THA)
        call = (self.window, self.variant)
        if isinstance(batch, DecodeTables) or not self._suits_kernels(q_THL):
            torch_rows = TorchRows(batch, q_THL, self.expansion.rank, self._numbers, *call)
            return self.expansion.values(torch_rows.attend(self.pool))
        if self.rows.scales_SK is None:
            layer = self._layer(self.rows.rows_SKA)
            return self.expansion.values(LayerRows(batch, self.pool, layer, q_THL, *call).attend())
        sums_THR = q_THL.new_empty(*q_THL.shape[:2], self.expansion.rank)
        for number, span in enumerate(batch.spans):  # Made numbers for one sequence at a time.
            rows = slice(span.row, span.row + span.rows)
            layer = self._layer(self._seen(batch, number).numbers(q_THL.dtype))
            alone = self._alone(batch, number)
            attention = LayerRows(alone, self.pool, layer, q_THL[rows], *call)
            sums_THR[rows] = attention.attend()
        return self.expansion.values(sums_THR)

    def _suits_kernels(self, q_THL: torch.Tensor) -> bool:
        sums = q_THL[..., : self.expansion.rank]
        return native_attention.kernels_for(q_THL, LayerKv(KvRows(q_THL), KvRows(sums))) is not None

    def _layer(self, numbers: torch.Tensor) -> LayerKv:
        """The rows as keys and values that our kernels read."""
        rows = numbers.flatten(1)[:, None]
        layer = LayerKv(KvRows(rows), KvRows(rows[..., : self.expansion.rank]))
        return _for_threads(layer, self.expansion.heads)

    def _numbers(self, select: Select) -> tuple[torch.Tensor, torch.Tensor]:
        rows = select(self.rows, 0).numbers(self.q_THA.dtype).flatten(1)[:, None]
        return rows, rows[..., : self.expansion.rank]

    # -- many rows: keys and values are made ------------------------------------------------------

    def _made(self, number: int, q_THA: torch.Tensor, out_THV: torch.Tensor) -> None:
        rows_NL = self._seen(self.batch, number).numbers(q_THA.dtype).flatten(1)
        alone = self._alone(self.batch, number)
        size = q_THA.shape[-1] + self.expansion.value_size
        step = max(1, SCRATCH_NUMBERS // (len(rows_NL) * size))
        for first in range(0, self.expansion.heads, step):
            heads = slice(first, first + step)
            keys, values = self.expansion.expanded(rows_NL, heads)
            layer = LayerKv(KvRows(keys), KvRows(values))
            sinks_H = self.variant.sinks_H
            variant = replace(self.variant, sinks_H=None if sinks_H is None else sinks_H[heads])
            attention = LayerRows(alone, self.pool, layer, q_THA[:, heads], self.window, variant)
            out_THV[:, heads] = attention.attend()

    def _alone(self, batch: RaggedBatch, number: int) -> RaggedBatch:
        """A span of the batch over a copy of the rows that it sees."""
        span = batch.spans[number]
        copied = span.over_copy(span.first_key(self.window))
        alone: RaggedBatch = batch.once(
            ("alone", number, self.window), lambda: RaggedBatch.of([copied], self.q_THA.device)
        )
        return alone

    def _seen(self, batch: RaggedBatch, number: int) -> KvRows:
        """Latent rows that a span of the batch sees: a view, or a gathered copy."""
        return self.pool.read(self.rows, batch.seen(number, self.window))


def _for_threads(layer: LayerKv, heads: int) -> LayerKv:
    """The layer as if it had a kv head for each thread, all of them the same rows: our kernels
    share their work out by kv heads."""
    threads = torch.get_num_threads()
    parts = next(n for n in range(min(threads, heads), heads + 1) if heads % n == 0)
    keys, values = (rows.rows_SKA.expand(-1, parts, -1) for rows in (layer.keys, layer.values))
    return LayerKv(KvRows(keys), KvRows(values))
