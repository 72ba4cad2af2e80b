"""Attention of a ragged batch over a paged KV pool, in one to three Triton launches.

Decode rows and pieces of prompts are mixed in one call: spans of many rows walk their keys, spans
of few share them out and merge the parts. See `ragged_kernels` for what a program computes, and
`memory.ragged_batch` for how a batch is cut. Importing this imports Triton, which comes with
torch's CUDA builds only; `kernel_choice` asks whether it can be used.

Shapes: T rows, H query heads, A head size of keys, V of values, P tiles, M rows that are merged.
"""

from dataclasses import dataclass
from typing import Any

import torch

from molink.engine.kernels.cuda.attention_kind import FUSED, AttentionKind, Tiling
from molink.engine.kernels.cuda.ragged_kernels import attend_tiles, merge_parts
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.ragged_batch import RaggedBatch, Tiles


@dataclass(frozen=True, slots=True)
class Attended:
    """Result of attention for each row, and on demand its weight against other keys."""

    out_THV: torch.Tensor
    log_sums_TH: torch.Tensor | None = None
    """Logarithm of the sum of each row's exponentials, a sink's included: what weighs this result
    against one over other keys. -inf where a row saw nothing. None unless asked for."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of rows whose keys are shared out, and what weighs them."""

    sums: torch.Tensor
    """Sums [M, H, splits, V]; nothing is in the place of a share without keys."""
    peaks: torch.Tensor
    totals: torch.Tensor


@dataclass(frozen=True, slots=True)
class RaggedAttention:
    """Attention over paged KV by the Triton kernels."""

    tiling: Tiling | None = None
    """Tiling of the kernel; None: what suits the number format."""
    widen: bool = False
    """Compute in fp32, as Triton's interpreter has to."""

    def attend(
        self,
        q_THA: torch.Tensor,
        layer: LayerKv,
        batch: RaggedBatch,
        window: int | None,
        variant: AttentionVariant,
        log_sums: bool = False,
    ) -> Attended:
        """Attention of a batch whose keys and values are in the pool already. Rows that belong to
        no span are not written; where log-sum-exps are wanted they are as if they saw nothing."""
        out_THV = q_THA.new_empty(*q_THA.shape[:2], layer.values.size)
        sums_TH = q_THA.new_empty(q_THA.shape[:2], dtype=torch.float32) if log_sums else None
        if sums_TH is not None and not batch.covers(len(q_THA)):
            out_THV.zero_()
            sums_TH.fill_(-torch.inf)
        call = _Call(self, q_THA, layer, batch, window, variant, Attended(out_THV, sums_TH))
        call.run()
        return call.result


@dataclass(frozen=True, slots=True)
class _Call:
    """Call of attention, and its launches."""

    kernels: RaggedAttention
    q_THA: torch.Tensor
    layer: LayerKv
    batch: RaggedBatch
    window: int | None
    variant: AttentionVariant
    result: Attended

    def run(self) -> None:
        kind = AttentionKind.of(self.q_THA, self.layer, self.window, self.variant)
        tiling = self.kernels.tiling or Tiling.of(kind.dtype)
        tiles = self.batch.tiles(kind.tile_rows(tiling))
        if len(tiles.many):
            self._attend(kind, tiling, tiles.many, tiles.many.row_P, None)
        if len(tiles.few):
            parts = self._parts(len(tiles.merged_M), tiling.splits)
            self._attend(kind, tiling, tiles.few, tiles.part_P, parts)
            self._merge(kind, tiles.merged_M, parts)

    def _parts(self, rows: int, splits: int) -> Parts:
        shape = (rows, self.q_THA.shape[1], splits)
        sums = self.q_THA.new_empty(*shape, self.layer.values.size, dtype=torch.float32)
        return Parts(sums, sums.new_empty(shape), sums.new_empty(shape))

    def _attend(
        self,
        kind: AttentionKind,
        tiling: Tiling,
        tiles: Tiles,
        part_P: torch.Tensor,
        parts: Parts | None,
    ) -> None:
        keys, values, batch = self.layer.keys, self.layer.values, self.batch
        launch = kind.launch(tiling, parts is not None, self._has_log_sums, self.kernels.widen)
        grid = (len(tiles), keys.kv_heads, launch.constants["SPLITS"])
        # What a kernel was not compiled to use still needs a tensor in its place.
        out = self.result.out_THV
        launched(attend_tiles, grid)(
            *(self.q_THA, keys.rows_SKA, values.rows_SKA),
            *(_or(keys.scales_SK, out), _or(values.scales_SK, out), self._sinks),
            *(out, _or(self.result.log_sums_TH, out)),
            *((out, out, out) if parts is None else (parts.sums, parts.peaks, parts.totals)),
            *(tiles.span_P, tiles.row_P, part_P),
            *(batch.row_S, batch.rows_S, batch.start_S, batch.keys_S, batch.blocks_SB),
            *(
                batch.blocks_SB.stride(0),
                float(self.variant.scale),
                float(self.variant.softcap or 0),
            ),
            *(self.window or 0, self.q_THA.shape[1]),
            *(*self.q_THA.stride()[:2], *keys.rows_SKA.stride()[:2]),
            *(*values.rows_SKA.stride()[:2], keys.kv_heads),
            **launch.constants,
            **launch.options,
        )

    def _merge(self, kind: AttentionKind, merged_M: torch.Tensor, parts: Parts) -> None:
        out, heads = self.result.out_THV, self.q_THA.shape[1]
        launched(merge_parts, (len(merged_M), heads))(
            *(parts.sums, parts.peaks, parts.totals, self._sinks),
            *(out, _or(self.result.log_sums_TH, out), merged_M, heads),
            **kind.sizes(self._has_log_sums),
            SPLITS=parts.peaks.shape[2],
            **FUSED,
        )

    @property
    def _has_log_sums(self) -> bool:
        return self.result.log_sums_TH is not None

    @property
    def _sinks(self) -> torch.Tensor:
        return _or(self.variant.sinks_H, self.result.out_THV)


def _or(tensor: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    return other if tensor is None else tensor


def launched(kernel: Any, grid: tuple[int, ...]) -> Any:
    """Launcher of a kernel over a grid: every launch of ours goes through here."""
    return kernel[grid]
