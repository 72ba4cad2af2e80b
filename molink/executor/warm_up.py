"""Runs a stage before it serves: to learn shapes, to warm kernels up, to see what a step takes."""

from typing import TYPE_CHECKING

import torch

from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, Release, Span
from molink_scheduler.request import SamplingParams

if TYPE_CHECKING:
    from molink.executor.stage import StageExecutor
from molink.executor.step_output import StepOutput

__all__ = ["WARM_UP_REQUEST_ID", "run_span"]

WARM_UP_REQUEST_ID = -1
"""No request has it: the coordinator counts from zero."""


def run_span(stage: "StageExecutor", start: int, end: int) -> "StepOutput":
    """Compute tokens [start, end) of nobody's request; those before them may be anything."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    admission = Admission(WARM_UP_REQUEST_ID, end, end, sampling)
    span = Span(WARM_UP_REQUEST_ID, start, end, samples=True)
    kind = DECODE if span.tokens == 1 else PREFILL
    batch = Batch(0, kind, 0, (span,), (admission,))
    hidden = torch.zeros(span.tokens, stage.hidden_size, dtype=stage.dtype)
    try:
        return stage.step(batch, [0] * span.tokens, hidden)
    finally:
        stage.release(Release(WARM_UP_REQUEST_ID))
