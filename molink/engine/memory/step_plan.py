"""Plan of one step: where a batch's rows stand, and which KV slots they write and read.

Worked out once per step, uploaded in one copy with whatever else a step indexes or computes with,
and used by every layer. A *slot* is the place of one token in the KV pool: block times 16 plus
offset. What layers read is told by block tables (`ragged_batch`), so nothing here, and nothing in a
layer, is done once for each token of a context.

In a decode batch every row is a span of its own, also where a request has several, of which all but
the first are drafts: the kernel of one row computes each, and its sums have the order that they
have without drafts. All keys of a layer are written before any row attends, and a row sees those
up to its own.

Shapes: T rows of the batch.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
import torch

from molink.engine.device.streams import uploaded
from molink.engine.memory.prompt_cuts import PromptCuts
from molink.engine.memory.ragged_batch import (
    RaggedBatch,
    RaggedSpan,
    SplitTiles,
    TileRows,
    host_geometry,
    host_tiles,
)
from molink_scheduler.batch import DECODE, Batch, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks
from molink_scheduler.kv.layer_class import WindowBlocks

Indices = Sequence[int] | np.ndarray


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Geometry of one step, on its device."""

    positions_T: torch.Tensor
    slots_T: torch.Tensor
    """Slots to which each row's K and V are written."""
    batch: RaggedBatch
    beside: tuple[torch.Tensor, ...] = ()
    """Indices that went up in the same copy."""
    settings: tuple[torch.Tensor, ...] = ()
    """Numbers that went up in the same copy as they are: those that sampling wants."""
    windowed: "StepPlan | None" = None
    """The same rows in layers with a window, which have blocks of their own; None: none has."""
    cut: "StepPlan | None" = None
    """The same rows in layers whose KV is cut, where they stand before their positions, which are
    told by the plan for whole layers; None: none of their requests was cut yet."""

    @classmethod
    def of(
        cls,
        spans: Sequence[RaggedSpan],
        device: torch.device,
        beside: Sequence[Indices] = (),
        tile_sizes: Collection[TileRows] = (),
        settings: Sequence[np.ndarray] = (),
        windowed: Sequence[Sequence[int]] = (),
    ) -> "StepPlan":
        """The geometry of spans that stand side by side from row 0 on, whose rows' own keys are
        the last ones of their tables; with tiles of these sizes. `windowed`: the spans' tables in
        layers with a window, where some have one."""
        geometry = host_geometry(spans)
        tiles = [array for size in tile_sizes for array in host_tiles(spans, size)]
        near = [replace(one, blocks=table) for one, table in zip(spans, windowed, strict=False)]
        tables = [host_geometry(near)[-1]] if near else []
        slots = [_positions_and_slots(*(*geometry[:-1], one))[1] for one in tables]
        indices = [*_positions_and_slots(*geometry), *(np.asarray(one, np.int32) for one in beside)]
        arrays = [*geometry, *tiles, *tables, np.concatenate([*indices, *slots]), *settings]
        sent = iter(uploaded(arrays, device))
        batch = RaggedBatch(tuple(spans), *islice(sent, len(geometry)))
        for size in tile_sizes:
            batch.once(size, partial(SplitTiles.of, sent))
        blocks_SB = list(islice(sent, len(tables)))
        # As indices have to be, all in one operation.
        longs = torch.split(next(sent).long(), [len(one) for one in (*indices, *slots)])
        plan = cls(longs[0], longs[1], batch, longs[2 : len(indices)], tuple(sent))
        return replace(plan, windowed=plan.over(near, longs[-1], blocks_SB[0])) if near else plan

    def over(
        self, spans: Sequence[RaggedSpan], slots_T: torch.Tensor, blocks_SB: torch.Tensor
    ) -> "StepPlan":
        """The same rows over other blocks."""
        batch = replace(self.batch, spans=tuple(spans), blocks_SB=blocks_SB)
        for size in self.batch.tile_sizes:
            batch.once(size, partial(self.batch.tiles, size))
        return StepPlan(self.positions_T, slots_T, batch)

    @property
    def tile_sizes(self) -> tuple[TileRows, ...]:
        """Sizes of the tiles into which its batch has been cut, by layers of all kinds."""
        plans = filter(None, (self, self.windowed, self.cut))
        return tuple(dict.fromkeys(size for plan in plans for size in plan.batch.tile_sizes))


def plan_step(
    batch: Batch,
    kv: KvBlocks,
    device: torch.device,
    beside: Sequence[Indices] = (),
    tile_sizes: Collection[TileRows] = (),
    settings: Sequence[np.ndarray] = (),
    windows: WindowBlocks | None = None,
    cuts: PromptCuts | None = None,
) -> StepPlan:
    """Plan a batch whose blocks have been grown already; `windows`: those of layers with a window,
    where some have one; `cuts`: where its requests are cut, if some may be."""
    spans, near, row = list[RaggedSpan](), list[Sequence[int]](), 0
    moved, is_cut = list[RaggedSpan](), False
    for span in batch.spans:
        table = kv.whole_table(span.request_id)
        cut = cuts.behind(span) if cuts is not None else None
        pieces = list(_attended(batch, span))
        own = [RaggedSpan(row + at, rows, start, start + rows, table) for at, rows, start in pieces]
        spans += own
        moved += own if cut is None else [one.behind_cut(cut) for one in own]
        is_cut |= cut is not None
        if windows is not None:
            near += [windows.table(span.request_id)] * len(pieces)
        row += span.tokens
    plan = StepPlan.of(spans, device, beside, tile_sizes, settings, near)
    return replace(plan, cut=StepPlan.of(moved, device, (), tile_sizes)) if is_cut else plan


def _attended(batch: Batch, span: Span) -> Iterator[tuple[int, int, int]]:
    """First row, rows and first position of each span of attention that a batch's span is."""
    rows = 1 if batch.batch_class is DECODE else span.tokens
    return ((at, rows, span.start + at) for at in range(0, span.tokens, rows))


def _positions_and_slots(
    row_S: np.ndarray,
    rows_S: np.ndarray,
    start_S: np.ndarray,
    keys_S: np.ndarray,
    blocks_SB: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    span_T = np.repeat(np.arange(len(rows_S)), rows_S)
    positions_T = np.arange(len(span_T), dtype=np.int32) + (start_S - row_S)[span_T]
    blocks_T = blocks_SB[span_T, positions_T // BLOCK_TOKENS]
    return positions_T, blocks_T * BLOCK_TOKENS + positions_T % BLOCK_TOKENS
