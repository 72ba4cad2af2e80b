"""What a stage of all layers, and the library's own model, say of every next token of a text."""

import torch

from molink_scheduler.batch import PREFILL, Admission, Batch, Span
from molink_scheduler.request import SamplingParams
from tests.engine.tiny_models import COMMON

TOKENS = 48


def random_tokens() -> list[int]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, COMMON["vocab_size"], (TOKENS,), generator=generator).tolist()


def library_logprobs(model, tokens) -> torch.Tensor:
    with torch.inference_mode():
        logits = model.eval()(input_ids=torch.tensor([tokens])).logits[0]
    return torch.log_softmax(logits.float(), -1)


def stage_logprobs(stage, tokens) -> torch.Tensor:
    """A prompt but for its last token, and that as a decode step."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    rows, last = [], len(tokens) - 1
    for start, end in ((0, last), (last, len(tokens))):
        span, admission = Span(1, start, end, True), Admission(1, len(tokens), 1, sampling)
        batch = Batch(0, PREFILL, -1, (span,), () if start else (admission,))
        if not start:
            stage.admit(admission)
        stage._grow(batch)
        with torch.inference_mode():
            some = tokens[start:end]
            rows.append(stage.launched_rows(batch, some, None, range(len(some)))[0])
    return torch.log_softmax(torch.cat(rows).float(), -1)


def error(of: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((wanted - of).square().mean().sqrt())
