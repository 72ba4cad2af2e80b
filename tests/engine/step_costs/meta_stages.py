"""Stages on the meta device: they compute as on a GPU, and nothing comes of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from molink.checkpoint.description import ModelDescription
from molink.engine.device.transfers import transfers_on
from molink.engine.kernels.cuda.fused_choice import FusedChoice
from molink.engine.kernels.cuda.fused_math import PlainFused
from molink.engine.layers.attention_choice import AttentionChoice
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.memory.kv_pool import KvPool
from molink.engine.model.weights import StagePart, build_stage_class
from molink.engine.self_test import miniature
from molink.engine.step import stage as stage_module
from molink.engine.step.stage import DECODE_ROWS_TOGETHER, StageExecutor
from molink.engine.step.step_output import StepOutput
from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.request import SamplingParams
from tests.engine.recurrent.hybrids import HYBRIDS, published_config
from tests.engine.step_costs.dispatched import HostReads
from tests.engine.tiny_models import tiny_config, with_weights_that_matter

DTYPE, TOKENS = torch.bfloat16, 4096

LENGTH_NAMES = {"gpt2": "n_layer"}
"""What an architecture calls its number of layers, where that is not the usual."""

SAMPLED = SamplingParams(
    max_tokens=99,
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    logprobs=3,
    repetition_penalty=1.1,
    logit_bias=((5, 1.0),),
    min_tokens=3,
    stop_token_ids=(2,),
)


def meta_stage(name: str, layers: range, count: int) -> StageExecutor:
    """A stage of `layers` of an architecture in bfloat16, with room for 4,096 tokens."""
    meta = torch.device("meta")
    config = _config(name, count)
    with meta:
        model = build_stage_class(config, StagePart(layers, count))(config).to(DTYPE).eval()
    stage = _stage(name, config, model, StagePart(layers, count), meta)
    with HostReads(), mock.patch.object(stage_module, "pool_budget_bytes", lambda *_: 0):
        stage.prepare(kv_tokens=TOKENS)
    return stage


def card_stage(name: str, layers: range, count: int, fused: FusedChoice) -> StageExecutor:
    """The same, rewritten as for a card: that takes numbers, so it comes to the meta device only
    when it is ready."""
    config = _config(name, count)
    part = StagePart(layers, count)
    model = with_weights_that_matter(build_stage_class(config, part)(config)).to(DTYPE)
    stage = _stage(name, config, model, part, torch.device("cpu"))
    stage.attention = AttentionChoice(stage.device, None, fused=fused)
    stage.prepare(kv_tokens=TOKENS)
    stage.model.to("meta")
    stage.device, stage._pool = torch.device("meta"), KvPool(TOKENS)
    stage.windows.tensors = KvPool(stage.windows.tensors.slots)
    for states in stage.states.layers.values():
        states |= {key: state.to("meta") for key, state in states.items()}
    stage._transfers = transfers_on(stage.device)
    return stage


@dataclass
class Swapped:
    """Operators that are torch's while a stage is rewritten, and a card's when it computes."""

    operators: Any = field(default_factory=PlainFused)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operators, name)


def fused_stage(name: str, layers: range, count: int) -> StageExecutor:
    """The same with the kernels between products; attention is torch's. Who computes with it sees
    to it that nothing is launched."""
    from molink.engine.kernels.cuda.fused import TritonFused  # Imports Triton.

    operators = Swapped()
    stage = card_stage(name, layers, count, FusedChoice(operators))
    operators.operators = TritonFused()
    return stage


def with_kernel(stage: StageExecutor) -> StageExecutor:
    """The same stage, whose attention is our kernel's."""
    from molink.engine.kernels.cuda.ragged_attention import RaggedAttention  # Imports Triton.

    assert stage.attention is not None
    stage.attention.kernels = RaggedAttention()
    return stage


def layers_of(name: str, count: int) -> int:
    """Layers of an architecture that is asked for so many; a hybrid has as many as its kinds of
    layers take."""
    return int(_config(name, count).num_hidden_layers)


def _config(name: str, count: int) -> Any:
    if name in HYBRIDS:
        return miniature.shrink_config(published_config(name))
    config = tiny_config(name, **{LENGTH_NAMES.get(name, "num_hidden_layers"): count})
    config._attn_implementation, config._experts_implementation = ATTENTION_NAME, EXPERTS_NAME
    return config


def _stage(
    name: str, config: Any, model: Any, part: StagePart, device: torch.device
) -> StageExecutor:
    sizes = (part.layers_total, config.hidden_size, config.vocab_size, 256)
    dtype = str(DTYPE).removeprefix("torch.")
    description = ModelDescription(name, Path(name), config.model_type, *sizes, (2,), dtype)
    rows_max = DECODE_ROWS_TOGETHER["cuda"]
    return StageExecutor(model, part, description, device, DTYPE, decode_rows_max=rows_max)


def prompts(stage: StageExecutor, rows: int, tokens: int, sampling=SAMPLED) -> StepOutput:
    """A step of `rows` new requests of `tokens` each."""
    words = tuple(range(3, 3 + tokens))
    admissions = tuple(Admission(row, tokens, 99, sampling, words) for row in range(rows))
    spans = tuple(Span(row, 0, tokens, samples=True) for row in range(rows))
    return run(stage, Batch(0, BatchClass.PREFILL, -1, spans, admissions))


def decode(stage: StageExecutor, rows: int, known: int) -> StepOutput:
    """A step of one row for each request that was computed up to `known` tokens."""
    spans = tuple(Span(row, known, known + 1, samples=True) for row in range(rows))
    return run(stage, Batch(1, BatchClass.DECODE, 0, spans))


def scatter(stage: StageExecutor, rows: int, tokens: int) -> None:
    """Admit requests whose blocks alternate, as after some churn."""
    for row in range(rows):
        stage.admit(Admission(row, 1, 1, SamplingParams(max_tokens=99)))
    for end in range(BLOCK_TOKENS, tokens + BLOCK_TOKENS, BLOCK_TOKENS):
        for row in range(rows):
            stage.kv.grow(row, min(end, tokens), 1)


def run(stage: StageExecutor, batch: Batch) -> StepOutput:
    hidden = torch.zeros(batch.tokens, stage.hidden_size, dtype=stage.dtype)
    return stage.step(batch, [3] * batch.tokens, hidden)
