"""Self-test of an architecture: cut into stages it must compute what it computes whole.

Before weights are loaded, a miniature of the model with random weights is run twice
in fp32: whole, by the library's own reference attention, one sequence after the other; and over
three uneven stages (fewer where layers stay together), with spans of several sequences mixed in
every batch and KV that is not in one piece. The log-probabilities must agree. A list of known
architectures was rejected: models with a hidden recurrence ran and were quietly wrong, and new ones
appear every month.

It takes about half a second and runs on the CPU whatever device the stage will use.
"""

import copy
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from molink.checkpoint.description import ModelDescription
from molink.checkpoint.layers_together import layers_together
from molink.engine.kernels.cuda.fused_choice import FusedChoice
from molink.engine.kernels.cuda.fused_math import PlainFused
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.library_mixers import settle_mixers
from molink.engine.model.text_model import causal_class
from molink.engine.model.token_inputs import keep_own_columns
from molink.engine.model.weights import StagePart, build_stage_class
from molink.engine.self_test.miniature import shrink_config
from molink.engine.step.stage import StageExecutor
from molink.engine_protocol.drawn import DrawnToken
from molink.errors import MolinkError, UnsupportedModelError
from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.request import LOGPROBS_MAX, SamplingParams

log = logging.getLogger(__name__)

DIFFERENCE_MAX = 2e-3
"""Largest difference, in standard deviations of the log-probabilities: some models scale their
logits down to a fiftieth. fp32 sums in another order differ by about 1e-5 here; a wrong mask, scale
or state by 0.1 and more."""

SEED = 1

PARAMETERS_MAX = 50_000_000
"""Parameters of a miniature: ten times what the largest that works has, and 0.2 GB."""

SEQUENCE_TOKENS = (27, 19, 23)
"""Lengths of sequences: more than a block of KV each, and more than the miniature's window."""

SCHEDULE = (
    ((0, 0, 11), (1, 0, 5)),
    ((0, 11, 16), (2, 0, 15), (1, 5, 6)),
    ((1, 6, 18), (0, 16, 17), (2, 15, 16)),
    ((0, 17, 18), (1, 18, 19), (2, 16, 17)),
    ((0, 18, 26), (2, 17, 23)),
    ((0, 26, 27),),
)
"""Batches of (sequence, start, end): prompts in pieces, decode rows, and both in one batch."""


def check_architecture(config: Any, description: ModelDescription) -> None:
    """Raise UnsupportedModelError, with one sentence, unless the architecture survives being
    staged.
    """
    what = f"{description.name} ({description.model_type})"
    try:
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(SEED)  # Constructors draw from it, too.
            worst = _largest_difference(_miniature(config, what), description)
    except MolinkError:
        raise
    except Exception as error:
        raise UnsupportedModelError(f"{what} cannot be served: {_reason(error)}") from error
    if not worst <= DIFFERENCE_MAX:
        raise UnsupportedModelError(
            f"{what} cannot be served: in stages it does not compute what the whole model does "
            f"(log-probabilities differ by {worst:.2g} of their spread in the self-test)"
        )


def trouble_with_card_rewriting(config: Any, description: ModelDescription) -> str | None:
    """Why stages that are rewritten as for a card, with torch in the place of a card's kernels, do
    not compute what the whole model does, which is logged, too; None: they do."""
    try:
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(SEED)
            small = _miniature(config, description.name)
            worst = _largest_difference(small, description, FusedChoice(PlainFused()))
        reason = None if worst <= DIFFERENCE_MAX else f"log-probabilities differ by {worst:.2g}"
    except Exception as error:
        reason = _reason(error)
    if reason is not None:
        log.warning("%s keeps the library's operations: %s", description.name, reason)
    return reason


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError) and error.args == (ATTENTION_NAME,):
        return "it computes attention in a way of its own"
    words = " ".join(str(error).split())[:200]
    return f"a miniature of it does not run in stages ({type(error).__name__}: {words})"


def _miniature(config: Any, what: str) -> Any:
    try:
        small = shrink_config(config)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{what} cannot be served: {error}") from error
    with torch.device("meta"):
        skeleton = causal_class(small)(copy.deepcopy(small))
    parameters = sum(parameter.numel() for parameter in skeleton.parameters())
    if parameters > PARAMETERS_MAX:
        raise UnsupportedModelError(
            f"{what} cannot be served: a miniature of it has {parameters / 1e6:.0f} million "
            "parameters, so it has parts whose sizes nobody knows"
        )
    return small


def _largest_difference(
    small: Any, description: ModelDescription, fused: FusedChoice | None = None
) -> float:
    generator = torch.Generator().manual_seed(SEED)
    whole = _whole_model(small, generator)
    tokens = [
        torch.randint(1, small.vocab_size, (count,), generator=generator).tolist()
        for count in SEQUENCE_TOKENS
    ]
    stages = _stages(small, description, whole.state_dict(), fused)
    wanted = [_reference_logprobs(whole, ids) for ids in tokens]
    differences = [
        _difference(drawn, wanted[sequence][end - 1])
        for sequence, end, drawn in _run(stages, tokens)
    ]
    return max(differences)


def _whole_model(small: Any, generator: torch.Generator) -> Any:
    """The miniature, with weights large enough that every part matters."""
    config = copy.deepcopy(small)
    config._attn_implementation = config._experts_implementation = "eager"
    model = causal_class(config)(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(noise * 0.1)
    settle_mixers(model)
    return model


def _stages(
    small: Any,
    description: ModelDescription,
    weights: dict[str, torch.Tensor],
    fused: FusedChoice | None,
) -> list[StageExecutor]:
    count = small.num_hidden_layers
    together = layers_together(small.to_dict(), count)
    parted = {layer for start, end in together for layer in range(start + 1, end)}
    inner = [layer for layer in range(1, count) if layer not in parted]
    cuts = sorted({0, *inner[:1], *inner[-1:], count})
    small_description = replace(
        description,
        layers=count,
        hidden_size=small.hidden_size,
        vocabulary_size=small.vocab_size,
        together=together,
    )
    return [
        _stage(small, small_description, StagePart(range(start, end), count), weights, fused)
        for start, end in pairwise(cuts)
    ]


def _stage(
    small: Any,
    description: ModelDescription,
    part: StagePart,
    weights: dict[str, torch.Tensor],
    fused: FusedChoice | None,
) -> StageExecutor:
    model = build_stage_class(small, part)(copy.deepcopy(small)).float().eval()
    missing, _ = model.load_state_dict(weights, strict=False)
    if missing:
        raise UnsupportedModelError(
            f"{description.name} cannot be served: "
            f"a stage of it wants {missing[0]}, which the whole lacks"
        )
    keep_own_columns(model, part.layers, part.layers_total)
    stage = StageExecutor(
        model,
        part,
        description,
        torch.device("cpu"),
        torch.float32,
        attention=AttentionChoice(torch.device("cpu"), None, fused=fused),
        decode_rows_max=len(SEQUENCE_TOKENS),  # Together, as on a GPU: alone they are, too, below.
    )
    stage.prepare(kv_tokens=256)
    return stage


def _run(
    stages: Sequence[StageExecutor], tokens: Sequence[list[int]]
) -> list[tuple[int, int, DrawnToken]]:
    """Run the schedule; (sequence, tokens known, what was drawn) for the end of every span."""
    sampling = SamplingParams(max_tokens=64, temperature=0.0, logprobs=LOGPROBS_MAX)
    results = []
    for number, entries in enumerate(SCHEDULE):
        spans = tuple(Span(sequence, start, end, samples=True) for sequence, start, end in entries)
        admissions = tuple(
            Admission(span.request_id, 1, 1, sampling) for span in spans if span.start == 0
        )
        batch = Batch(number, BatchClass.PREFILL, -1, spans, admissions)
        ids = [token for span in spans for token in tokens[span.request_id][span.start : span.end]]
        drawn = _step_all(stages, batch, ids)
        results += [(s.request_id, s.end, token) for s, token in zip(spans, drawn, strict=True)]
    return results


def _step_all(
    stages: Sequence[StageExecutor], batch: Batch, token_ids: list[int]
) -> tuple[DrawnToken, ...]:
    output = stages[0].step(batch, token_ids)
    for stage in stages[1:]:
        output = stage.step(batch, output.token_ids, output.hidden_TD)
    return output.drawn


def _reference_logprobs(whole: Any, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits = whole(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    return torch.log_softmax(logits.float(), -1)


def _difference(drawn: DrawnToken, wanted_W: torch.Tensor) -> float:
    """Largest difference among the likeliest words' log-probabilities, in standard deviations."""
    # Once word by word, and once place by place: words that tie may come in another order.
    best = wanted_W.topk(len(drawn.top)).values.tolist()
    at_ids = [abs(logprob - float(wanted_W[word])) for word, logprob in drawn.top]
    in_order = [abs(logprob - b) for (_, logprob), b in zip(drawn.top, best, strict=True)]
    return float(max(at_ids + in_order) / wanted_W.std())
