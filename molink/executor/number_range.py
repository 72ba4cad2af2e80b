"""fp16 ends at 65,504: is that enough for a model that was made for bfloat16, which ends at 3e38?

Cards before the RTX 30 multiply fp16 and no bfloat16, and many checkpoints are bfloat16. Most keep
far within fp16; some (gemma's, some of qwen's) let single numbers of the residual grow beyond it,
where they become infinite and the answer nonsense. So a stage that computes such a checkpoint in
fp16 runs a prompt when it loads and looks at every number that its modules put out; where one comes
near the end of the range, the stage computes in fp32. What the head sees are real embeddings. A
later stage is tried with rows of ordinary size, since nobody sends it others yet: what it is sent
and what it sends on are checked while it serves, so that no infinity travels on.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from molink.errors import StageError
from molink.executor.proof import hooks
from molink.executor.warm_up import WARM_UP_REQUEST_ID
from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.request import SamplingParams

if TYPE_CHECKING:
    from molink.executor.stage import StageExecutor

__all__ = ["FP16_SAFE", "check_received", "check_sent", "largest_number"]

FP16_MAX = 65_504.0

FP16_SAFE = FP16_MAX / 4
"""Up to here the tried prompt may reach: others go further, but seldom fourfold."""

TRIED_TOKENS = 64
"""Of the prompt: numbers grow largest at a prompt's first tokens."""

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


def check_received(hidden_TD: torch.Tensor | None, dtype: torch.dtype) -> None:
    """Raise StageError when rows that were sent to a stage do not fit into its fp16."""
    if dtype is not torch.float16 or hidden_TD is None:
        return
    largest = _size(hidden_TD)
    if largest > FP16_MAX:
        raise StageError(_sentence(f"The stage before sent a row that reaches {largest:.3g}"))


def check_sent(hidden_TD: torch.Tensor) -> None:
    """Raise StageError when rows of a stage that computes in fp16 have left its range."""
    if hidden_TD.dtype is not torch.float16:
        return
    if not math.isfinite(float(hidden_TD.sum(dtype=torch.float32))):
        raise StageError(_sentence("A row of this stage has grown beyond its number format"))


def _sentence(what: str) -> str:
    return (
        f"{what}, and fp16 ends at {FP16_MAX:,.0f}: set --dtype float32, or give this model to "
        "cards that have bfloat16 (RTX 30 and newer)"
    )


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
