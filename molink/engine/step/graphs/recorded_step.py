"""A decode step that is recorded, and the rows that it is given.

Shapes: R rows of the recording, X hidden size or, on the tail, words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from molink.engine.step.graphs.recording import Recording
from molink.engine.step.graphs.static_inputs import DecodeRow, StaticInputs
from molink.engine.step.runnable import RunnableStage
from molink_scheduler.batch import Batch


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A decode step of R rows, recorded."""

    inputs: StaticInputs
    recording: Recording

    def computed(
        self,
        rows: Sequence[DecodeRow],
        hidden_TD: torch.Tensor | None,
        beside: Sequence[np.ndarray] = (),
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Rows [T, X], at most R, which the next replay overwrites; and what is sent `beside` them,
        on the device."""
        sent = self.inputs.fill(rows, hidden_TD, beside)
        self.recording.replay()
        return self.recording.out[: len(rows)], sent


def decode_rows(stage: RunnableStage, batch: Batch, token_ids: Sequence[int]) -> list[DecodeRow]:
    """Rows of a decode batch, each token by itself; `token_ids` where the stage reads them."""
    has_states, has_windows = bool(stage.states.layers), bool(stage.windows.layers)
    ids, rows = iter(token_ids or [0] * batch.tokens), list[DecodeRow]()
    for span in batch.spans:
        near: Sequence[int] = ()
        if has_windows:
            near = stage.windows.blocks.table(span.request_id)
        slot = stage.states.take(span.request_id) if has_states else 0
        held = (stage.kv.table(span.request_id), slot, near)
        rows += [DecodeRow(next(ids), at, *held) for at in range(span.start, span.end)]
    return rows
