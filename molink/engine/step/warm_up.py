"""Runs a stage before it serves: to learn shapes, to warm kernels up, to see what a step takes."""

import torch

from molink.engine.proof import probe_rows
from molink.engine.step.runnable import RunnableStage
from molink.engine.step.step_output import StepOutput
from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, Release, Span
from molink_scheduler.request import SamplingParams

WARM_UP_REQUEST_ID = -1
"""Id that no request has: the coordinator counts from zero."""


TOKENS_TRIED = 8
"""Tokens, spread over the vocabulary, that a stage's own weights are tried with."""


def run_span(stage: RunnableStage, start: int, end: int) -> "StepOutput":
    """Compute tokens [start, end) of nobody's request; those before them may be anything."""
    rows = end - start
    hidden_TD = torch.zeros(rows, stage.hidden_size, dtype=stage.dtype)
    return _computed(stage, start, [0] * rows, hidden_TD)


def run_tokens(stage: RunnableStage) -> "StepOutput":
    """Compute some tokens of the vocabulary; a stage that is not the head gets rows such as layers
    hand on."""
    step = max(1, stage.description.vocabulary_size // TOKENS_TRIED)
    ids = [token * step % stage.description.vocabulary_size for token in range(TOKENS_TRIED)]
    return _computed(stage, 0, ids, probe_rows(TOKENS_TRIED, stage.hidden_size, stage.dtype))


def _computed(
    stage: RunnableStage, start: int, token_ids: list[int], hidden_TD: torch.Tensor
) -> "StepOutput":
    end = start + len(token_ids)
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    admission = Admission(WARM_UP_REQUEST_ID, end, end, sampling)
    span = Span(WARM_UP_REQUEST_ID, start, end, samples=True)
    batch = Batch(0, DECODE if span.tokens == 1 else PREFILL, 0, (span,), (admission,))
    try:
        return stage.step(batch, token_ids, hidden_TD)
    finally:
        stage.release(Release(WARM_UP_REQUEST_ID))
