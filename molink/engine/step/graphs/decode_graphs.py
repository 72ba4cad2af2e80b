"""Decode steps of a stage that are recorded when it loads, and replayed while it serves.

There is one for each bucket of rows, and a step takes the smallest that holds it. All of the pruned
model is recorded, on the tail the logits too; sampling stays outside. Nothing is believed: each is
compared with the step that it stands for, and where it cannot be recorded, or gives other numbers,
steps of that many rows go on being launched, and the reason is told (`fallback`).

Prefill is never recorded: its products are large enough to hide the host.

Shapes: R rows of a bucket, T rows of a step, X hidden size or, on the tail, words.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from molink.engine.device.fallbacks import first_line, one_clause
from molink.engine.layers.torch_rows import GATHERED_BLOCKS_MAX
from molink.engine.step.graphs.proof import Proof
from molink.engine.step.graphs.recorded_step import RecordedStep, decode_rows
from molink.engine.step.graphs.recording import Recorder
from molink.engine.step.graphs.static_inputs import BUCKETS, StaticInputs
from molink.engine.step.runnable import RunnableStage
from molink_scheduler.batch import DECODE, DRAFTS_MAX, Batch
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for

log = logging.getLogger(__name__)


@dataclass(slots=True)
class DecodeGraphs:
    """Recorded decode steps of one stage, over its pools as they are now."""

    stage: RunnableStage
    steps: dict[int, RecordedStep] = field(default_factory=dict)
    """Recorded steps that have been proven, by rows."""
    refused: dict[int, str] = field(default_factory=dict)
    """Reason why steps of so many rows are launched, by rows."""

    @classmethod
    def recorded(cls, stage: RunnableStage, recorder: Recorder) -> "DecodeGraphs":
        """Record and prove all that the stage may need."""
        graphs = cls(stage)
        with torch.inference_mode():
            for rows in graphs._buckets():
                graphs._record(rows, recorder)
            try:
                graphs._prove()
            except Exception as error:  # Whatever a driver or a library says: steps are launched.
                graphs.refused |= dict.fromkeys(graphs.steps, first_line(error))
        for rows in graphs.refused:
            graphs.steps.pop(rows, None)
        if graphs.fallback is not None:
            log.warning("decode on %s is launched: %s", stage.device, graphs.fallback)
        return graphs

    @property
    def fallback(self) -> str | None:
        """Why some decode steps are launched; None: all are replayed."""
        return one_clause(((str(rows), why) for rows, why in self.refused.items()), " rows")

    def rows(
        self,
        batch: Batch,
        token_ids: Sequence[int],
        hidden_TD: torch.Tensor | None,
        keep: Sequence[int],
        settings: Sequence[np.ndarray] = (),
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]] | None:
        """Result of `StageExecutor.launched_rows` for the same arguments; None where its kind of
        step is not recorded."""
        step = self._step_for(batch)
        if step is None:
            return None
        given, beside = decode_rows(self.stage, batch, token_ids), [np.array(keep, np.int32)]
        out_TX, (keep_R, *sent) = step.computed(given, hidden_TD, [*beside, *settings])
        if not keep:
            return out_TX.clone(), sent  # The next step overwrites it.
        if list(keep) == list(range(batch.tokens)):
            return out_TX, sent  # Sampling is over before the next step.
        return out_TX[keep_R], sent

    def _step_for(self, batch: Batch) -> RecordedStep | None:
        rows, has_states = batch.tokens, bool(self.stage.states.layers)
        if rows != len(batch.spans) and (batch.batch_class is not DECODE or has_states):
            return None  # Spans of prompts; or states, which drafts must not move for good.
        if self.stage.state_slots is not None and any(span.start == 0 for span in batch.spans):
            return None  # There is no state yet, and what stands in its slot is somebody else's.
        if self.stage.states.lags(batch.spans):
            return None  # Drafts go by row, each on the state that the one before leaves.
        bucket = min((tried for tried in self._tried if tried >= rows), default=0)
        return self.steps.get(bucket)

    @property
    def _tried(self) -> list[int]:
        return [*self.steps, *self.refused]

    # -- recording --------------------------------------------------------------------------------

    def _buckets(self) -> list[int]:
        """Buckets that steps of the stage may need: each request holds a block and a state slot,
        and has rows of drafts where there are no states."""
        most = min(self.stage.kv.blocks_total, self.stage.state_slots or BUCKETS[0])
        most *= 1 if self.stage.states.layers else 1 + DRAFTS_MAX
        return [rows for rows in BUCKETS if rows == 1 or rows // 2 < most]

    def _prove(self) -> None:
        if not self.steps:
            return
        with Proof.over(self.stage, max(self.steps)) as proof:
            for rows, step in self.steps.items():
                if trouble := proof.trouble(step):
                    self.refused[rows] = trouble

    def _record(self, rows: int, recorder: Recorder) -> None:
        stage, kv = self.stage, self.stage.kv
        blocks = blocks_for(min(stage.description.model_len_max, kv.tokens_capacity))
        has_kernel = stage.attention is not None and stage.attention.computes_all
        if not has_kernel and rows * blocks > GATHERED_BLOCKS_MAX:
            self.refused[rows] = f"torch would read {blocks * BLOCK_TOKENS:,} tokens for each"
            return
        last = kv.blocks_total, stage.windows.blocks.blocks_total
        padding = last[0] * BLOCK_TOKENS, stage.state_slots or 0, last[1] * BLOCK_TOKENS
        sizes = rows, blocks, stage.hidden_size
        inputs = StaticInputs(
            *sizes, stage.dtype, stage.device, padding, has_windows=bool(stage.windows.layers)
        )
        try:
            recording = recorder.record(lambda: stage.static_rows(inputs))
        except Exception as error:  # Whatever a driver or a library says: steps are launched.
            self.refused[rows] = first_line(error)
            return
        self.steps[rows] = RecordedStep(inputs, recording)
