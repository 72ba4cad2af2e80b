"""Blocks that a lender holds, and attention to them.

It is a stage's own KV pool with a stage's own kernels, filled with packed blocks in place of rows
that a layer writes; so what a part is computed with is what the whole would have been.

Shapes: R rows, H query heads, A head size of keys, V of values, B blocks, W bytes of one block.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch

from molink.checkpoint.kv_format import KvDtype
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.layers.parts import Part, attend_part
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool, LayerKv
from molink.engine.memory.kv_rows import KvRows
from molink.engine.memory.ragged_batch import RaggedBatch, RaggedSpan
from molink.engine_protocol.lender import LentKv, LentSpan
from molink.engine_protocol.values import BlockBytes
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.number_runs import number_runs

CPU = torch.device("cpu")


@dataclass(slots=True)
class HeldBlocks:
    """Blocks of one stage's layers, by place; for one thread."""

    pool: KvPool
    dtype: torch.dtype
    """Format of query rows and of their attention."""
    device: torch.device = CPU
    """Where the blocks lie and are attended to; rows come and go by main memory."""
    _batch: RaggedBatch | None = field(init=False, default=None)

    @classmethod
    def of(
        cls, kv: LentKv, places: int, device: torch.device = CPU, *, is_shared: bool = False
    ) -> "HeldBlocks":
        """Room for so many blocks; in main memory a page of it is taken when a block is written
        there, on a card all of it now. `is_shared`: layers of one shape have one room, for who
        holds one of them at a time."""
        dtype, kv_dtype = getattr(torch, kv.dtype), cast(KvDtype, kv.kv_dtype)
        pool = KvPool(places * BLOCK_TOKENS, kv_dtype)
        rooms: dict[object, LayerKv] = {}
        for one in kv.layers:
            room = one[1:] if is_shared else one
            sizes = (one.key_size, one.value_size)
            like = [
                torch.empty(1, one.kv_heads, size, dtype=dtype, device=device) for size in sizes
            ]
            made = (KvRows.zeros(pool.slots, rows, kv_dtype) for rows in like)
            pool.layers[one.layer] = rooms.setdefault(room, LayerKv(*made))
        return cls(pool, dtype, device)

    def warm_up(self) -> None:
        """Attend once to each layer, with one row and with several: kernels are made and proven at
        their first call, which takes longer than anybody waits for an answer."""
        for rows in (1, 3):
            self.plan([LentSpan(rows, BLOCK_TOKENS, (0,))])
            for index, layer in self.pool.layers.items():
                shape = rows, layer.keys.kv_heads, layer.keys.size
                q_RHA = torch.zeros(shape, dtype=self.dtype)
                self.attend(index, q_RHA, None, AttentionVariant(1.0))

    def put(self, places: Sequence[int], packed_BW: BlockBytes) -> None:
        """Hold blocks whose bytes are packed, one in each of these places."""
        copy_in(self.pool.block_rows(), places, packed_BW)

    def put_layer(self, layer: int, places: Sequence[int], packed_BX: BlockBytes) -> None:
        """Hold the rows of one layer of blocks, as `take` gives them."""
        copy_in(self.pool.block_rows_by_layer()[layer], places, packed_BX)

    def drop(self, places: Sequence[int]) -> None:
        """Let the system have the memory of these."""
        self.pool.give_back((run.start, len(run)) for run in number_runs(sorted(places)))

    def keep(self, places: int, moves: Sequence[tuple[int, int]]) -> None:
        """Hold no more than the first places, into which blocks beyond them move; the system has
        the memory of the others."""
        if moves:
            from_B, to_B = torch.tensor(moves, device=self.device).unbind(1)
            for rows_BX in self.pool.block_rows():
                rows_BX.index_copy_(0, to_B, rows_BX.index_select(0, from_B))
        if self.device.type == "cpu":
            self.pool.give_back([(places, self.pool.slots // BLOCK_TOKENS - places)])
        else:
            self.shrink(places)

    def shrink(self, places: int) -> None:
        """Lie in tensors of so many blocks: a card has no pages that could be given back alone.
        Each layer moves by itself, so that no more than one lies there twice."""
        slots, layers = places * BLOCK_TOKENS, self.pool.layers
        self.pool = KvPool(slots, self.pool.kv_dtype)
        for index in sorted(layers):
            layer, smaller = layers.pop(index), list[KvRows]()
            for rows in (layer.keys, layer.values):
                scales_SK = rows.scales_SK
                kept_SK = None if scales_SK is None else scales_SK[:slots].clone()
                smaller.append(KvRows(rows.rows_SKA[:slots].clone(), kept_SK))
            self.pool.layers[index] = LayerKv(*smaller)
            del layer, rows, scales_SK
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def plan(self, spans: Sequence[LentSpan]) -> None:
        """Attend for these spans from now on."""
        ragged, row = [], 0
        for span in spans:
            keys = len(span.places) * BLOCK_TOKENS
            ragged.append(RaggedSpan(row, span.rows, span.start, keys, span.places))
            row += span.rows
        self._batch = RaggedBatch.of(ragged, self.device)

    @property
    def rows_planned(self) -> int:
        """Rows of the plan's spans."""
        return 0 if self._batch is None else sum(span.rows for span in self._batch.spans)

    def attend(
        self, layer: int, q_RHA: torch.Tensor, window: int | None, variant: AttentionVariant
    ) -> Part:
        """Part of the plan's rows over its keys; rows and part lie in main memory."""
        assert self._batch is not None, "a plan comes before what is asked for"
        of = (self.pool, self.pool.layers[layer], q_RHA.to(self.device), window, variant)
        part = attend_part(LayerRows(self._batch, *of), 0)
        return Part(part.order, part.out_THV.cpu(), part.log_sums_TH.cpu())

    def take(self, layer: int, places: Sequence[int]) -> BlockBytes:
        """Keys and values of one layer in these places, [B, bytes]."""
        index_B = torch.from_numpy(np.asarray(places, np.int64)).to(self.device)
        parts = [rows.index_select(0, index_B) for rows in self.pool.block_rows_by_layer()[layer]]
        return cast(BlockBytes, torch.cat(parts, dim=1).cpu().numpy())


def copy_in(tensors: Sequence[torch.Tensor], places: Sequence[int], packed_BW: BlockBytes) -> None:
    """Copy packed blocks into these places of tensors [blocks, bytes], which share their bytes."""
    device, start = tensors[0].device, 0
    index_B = torch.from_numpy(np.asarray(places, np.int64)).to(device)
    packed = torch.from_numpy(packed_BW).to(device)
    for rows_BX in tensors:
        stop = start + rows_BX.shape[1]
        rows_BX.index_copy_(0, index_B, packed[:, start:stop])
        start = stop
