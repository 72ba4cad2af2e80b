"""Where do the rows of a batch stand, and which KV slots do they write and read?

Worked out once per step, uploaded in one copy, and used by every layer. A *slot* is the place of
one token in the KV pool: block times 16 plus offset. What layers read is told by block tables
(`ragged_batch`), so nothing here, and nothing in a layer, is done once for each token of a context.

Shapes: T rows of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from molink.executor.attention.ragged_batch import (
    RaggedBatch,
    RaggedSpan,
    host_geometry,
    uploaded,
)
from molink_scheduler.batch import Batch
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks

__all__ = ["StepPlan", "plan_step"]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Geometry of one step, on its device."""

    positions_T: torch.Tensor
    slots_T: torch.Tensor
    """Where each row's K and V are written."""
    batch: RaggedBatch

    @classmethod
    def of(cls, spans: Sequence[RaggedSpan], device: torch.device) -> "StepPlan":
        """The geometry of spans that stand side by side from row 0 on, whose rows' own keys are
        the last ones of their tables."""
        geometry = host_geometry(spans)
        *parts, rows_2T = uploaded([*geometry, _positions_and_slots(*geometry)], device)
        positions_T, slots_T = rows_2T.long()  # As indices have to be.
        return cls(positions_T, slots_T, RaggedBatch(tuple(spans), *parts))


def plan_step(batch: Batch, kv: KvBlocks, device: torch.device) -> StepPlan:
    """Plan a batch whose blocks have been grown already."""
    spans, row = [], 0
    for span in batch.spans:
        table = kv.table(span.request_id)
        spans.append(RaggedSpan(row, span.tokens, span.start, span.end, table))
        row += span.tokens
    return StepPlan.of(spans, device)


def _positions_and_slots(
    row_S: np.ndarray,
    rows_S: np.ndarray,
    start_S: np.ndarray,
    keys_S: np.ndarray,
    blocks_SB: np.ndarray,
) -> np.ndarray:
    span_T = np.repeat(np.arange(len(rows_S)), rows_S)
    positions_T = np.arange(len(span_T), dtype=np.int32) + (start_S - row_S)[span_T]
    blocks_T = blocks_SB[span_T, positions_T // BLOCK_TOKENS]
    return np.stack([positions_T, blocks_T * BLOCK_TOKENS + positions_T % BLOCK_TOKENS])
