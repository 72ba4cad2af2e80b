"""Check that fp16, which ends at 65,504, is enough for a model made for bfloat16 (up to 3e38).

Cards before the RTX 30 multiply fp16 and no bfloat16, and many checkpoints are bfloat16. Most keep
far within fp16; some (gemma's, some of qwen's) let single numbers of the residual grow beyond it,
where they become infinite and the answer nonsense. So a stage that computes such a checkpoint in
fp16 runs a prompt when it loads and looks at every number that its modules put out; where one comes
near the end of the range, the stage computes in fp32. What the head sees are real embeddings. A
later stage is tried with rows of ordinary size, since nobody sends it others yet: what it is sent
and what it sends on are checked while it serves, in every format, so that no infinity travels on.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from molink.engine.proof import hooks
from molink.engine.step.warm_up import WARM_UP_REQUEST_ID
from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.request import SamplingParams

if TYPE_CHECKING:
    from molink.engine.step.stage import StageExecutor

FP16_SAFE = 65_504.0 / 4
"""Largest number that the tried prompt may reach: others go further, but seldom fourfold."""

TRIED_TOKENS = 64
"""Most tokens of the prompt tried: numbers grow largest at a prompt's first tokens."""

SEED = 16


def largest_number(stage: "StageExecutor") -> float:
    """The largest number, in size, that a module of the stage puts out for one prompt; infinite
    where one has left the range."""
    largest = [0.0]

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                largest.append(_size(tensor))

    with hooks(module.register_forward_hook(look) for module in stage.model.modules()):
        _run_prompt(stage)
    return max(largest)


def release_wiped(part: "StageExecutor", release: Release) -> None:
    """Forget a request whose numbers have left the range, and its blocks' KV with it: kernels read
    whole blocks, and what is masked of an infinity is NaN."""
    request_id = release.request_id
    blocks = set(part.kv.table(request_id)) if request_id in part.kv.holders() else set[int]()
    part.windows.release(request_id, wiped=True)
    part.release(release)
    freed = (range(first, first + count) for first, count in part.kv.free_runs())
    part.kv_memory.wipe([one for run in freed for one in run if one in blocks])


def _size(tensor: torch.Tensor) -> float:
    if tensor.numel() == 0:
        return 0.0
    largest = float(tensor.detach().abs().amax())
    return math.inf if math.isnan(largest) else largest


def _run_prompt(stage: "StageExecutor") -> None:
    tokens = min(TRIED_TOKENS, stage.description.model_len_max, stage.kv.tokens_capacity)
    span = Span(WARM_UP_REQUEST_ID, 0, tokens, samples=False)
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    admission = Admission(WARM_UP_REQUEST_ID, tokens, tokens, sampling)
    batch = Batch(0, PREFILL, 0, (span,), (admission,))
    words = stage.description.vocabulary_size
    token_ids = [word * (words - 1) // tokens for word in range(1, tokens + 1)]
    rows_TD = torch.randn(tokens, stage.hidden_size, generator=torch.Generator().manual_seed(SEED))
    try:
        stage.step(batch, token_ids, rows_TD)
    finally:
        stage.release(Release(WARM_UP_REQUEST_ID))
