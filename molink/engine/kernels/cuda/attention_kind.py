"""Kinds of layers for which the attention kernel is compiled, and the tiles of each.

Tile sizes are constants: autotuning picks by time, so it would differ between PCs and between
starts, and the tile decides in which order a row is summed. They were chosen by what compiles for
every card without spilling and into the 99 KB of shared memory that a GeForce card gives a program
(`tests/engine/kernels/cuda/test_compiled.py`).

Shapes: T rows, H query heads, K kv heads, A head size of keys, V of values.
"""

from dataclasses import dataclass
from typing import Any

import torch

from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.ragged_batch import TileRows
from molink_scheduler.kv.blocks import BLOCK_TOKENS

HEAD_SIZE_MIN = 16
"""Least head size that a matrix unit takes; smaller heads are padded."""

HEAD_SIZE_MAX = 256
"""Tiles of larger keys and values (latent caches: 576) do not fit into shared memory."""

GROUP_MAX = 64
"""Query heads that share a kv head: a tile holds them all."""

WIDE_HEAD = 128
"""Tiles of many rows need eight warps for larger heads, or registers spill."""

STAGES = 2
"""Steps whose keys and values are in shared memory at a time."""

FUSED = dict(enable_fp_fusion=True)
"""A product and a sum are one instruction: said, since Triton's versions differ in the default."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of the kernel's tiles; they never depend on a batch."""

    few_rows: int = 16
    """Matrix rows (rows of a span times query heads of a kv head) of a tile whose span has few."""
    many_rows: int = 64
    keys: int = 32
    """Keys of a step."""
    splits: int = 16
    """Programs that share the keys of a span of few rows."""
    steps_min: int = 4
    """Steps that each of them takes at least."""

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Tiling":
        """Tiling for a number format: fp32 has no matrix units, and larger tiles would spill."""
        return cls(many_rows=16, keys=16) if dtype is torch.float32 else cls()


@dataclass(frozen=True, slots=True)
class Launch:
    """Constants that a launch of the tile kernel is compiled with."""

    constants: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """Kind of layer: everything that the kernel is compiled for."""

    dtype: torch.dtype
    kv_dtype: torch.dtype
    kv_heads: int
    group: int
    """Query heads that share a kv head."""
    key_size: int
    value_size: int
    has_window: bool
    has_cap: bool
    has_sinks: bool

    @classmethod
    def of(
        cls, q_THA: torch.Tensor, layer: LayerKv, window: int | None, variant: AttentionVariant
    ) -> "AttentionKind":
        """The kind of a layer's call."""
        return cls(
            q_THA.dtype,
            layer.keys.rows_SKA.dtype,
            layer.keys.kv_heads,
            q_THA.shape[1] // layer.keys.kv_heads,
            layer.keys.size,
            layer.values.size,
            window is not None,
            variant.softcap is not None,
            variant.sinks_H is not None,
        )

    @property
    def refusal(self) -> str | None:
        """Why the kernel is not made for it; None: it is."""
        if max(self.key_size, self.value_size) > HEAD_SIZE_MAX:
            return f"heads of {max(self.key_size, self.value_size)} are over {HEAD_SIZE_MAX}"
        if self.group > GROUP_MAX:
            return f"{self.group} query heads share a kv head, over {GROUP_MAX}"
        return None

    def tile_rows(self, tiling: Tiling) -> TileRows:
        """Rows of a span in a tile."""
        return TileRows(*(self._height(tiling, few) // self.group for few in (True, False)))

    def launch(self, tiling: Tiling, few: bool, log_sums: bool, widen: bool = False) -> Launch:
        """How tiles of spans of few, or of many, rows are computed."""
        constants = dict(
            GROUP=self.group,
            A=self.key_size,
            A_PAD=padded(self.key_size),
            **self.sizes(log_sums),
            ROWS=self._height(tiling, few),
            KEYS=tiling.keys,
            BLOCK=BLOCK_TOKENS,
            SPLITS=tiling.splits if few else 1,
            STEPS_MIN=tiling.steps_min,
            HAS_WINDOW=self.has_window,
            HAS_CAP=self.has_cap,
            HAS_SCALES=self.kv_dtype is torch.int8,
            WIDEN=widen,
        )
        is_wide = not few and max(self.key_size, self.value_size) > WIDE_HEAD
        options = dict(num_warps=8 if is_wide else 4, num_stages=STAGES, **FUSED)
        return Launch(constants, options)

    def sizes(self, log_sums: bool) -> dict[str, Any]:
        """The constants that the merge of parts shares."""
        return dict(
            V=self.value_size,
            V_PAD=padded(self.value_size),
            HAS_SINKS=self.has_sinks,
            HAS_LOG_SUMS=log_sums,
        )

    def _height(self, tiling: Tiling, few: bool) -> int:
        """Matrix rows of a tile: at least one row's query heads."""
        return max(tiling.few_rows if few else tiling.many_rows, _power_of_two(self.group))


def padded(size: int) -> int:
    """Width of a tile that holds heads of this size."""
    return max(HEAD_SIZE_MIN, _power_of_two(size))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
