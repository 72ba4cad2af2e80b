"""Stages of random weights on a card, with requests that hold KV already.

Weights are made on the card, in its format: a layer takes as long with random ones. KV is random,
too, since memory that was never written is read faster.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig

from molink.checkpoint.description import ModelDescription
from molink.engine.device.card import card_of
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.model.weights import StagePart, build_stage_class
from molink.engine.step.graphs.recording import recorder_on
from molink.engine.step.stage import StageExecutor
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.request import SamplingParams

__all__ = ["EIGHT_B", "SEVEN_B", "SMALL", "Shape", "hold", "random_stage", "run"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a llama's layers."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int

    @property
    def layer_numbers(self) -> int:
        """Weights of a layer."""
        head = self.hidden // self.heads
        attention = self.hidden * head * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate


EIGHT_B = Shape(4096, 14_336, 32, 8)
"""Of an 8B model: 436 MB a layer in 16 bits."""

SEVEN_B = Shape(4096, 11_008, 32, 32)
"""Of a 7B model with a key for each query: 405 MB a layer in 16 bits."""

SMALL = Shape(64, 96, 4, 2)

MODEL_LEN = 16_384


def random_stage(
    shape: Shape, layers: int, device: torch.device, kv_tokens: int | None
) -> StageExecutor:
    """A stage from a model's middle; `kv_tokens` None: as many as fit."""
    config = AutoConfig.for_model(
        "llama",
        num_hidden_layers=layers + 2,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=MODEL_LEN,
        vocab_size=128,
    )
    config._attn_implementation, config._experts_implementation = ATTENTION_NAME, EXPERTS_NAME
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    part = StagePart(range(1, 1 + layers), config.num_hidden_layers)
    torch.set_default_dtype(dtype)
    with torch.device(device), torch.no_grad():
        model = build_stage_class(config, part)(config).eval()
    torch.set_default_dtype(torch.float32)
    sizes = (config.num_hidden_layers, shape.hidden, config.vocab_size, MODEL_LEN)
    name = str(dtype).removeprefix("torch.")
    description = ModelDescription("llama", Path(), "llama", *sizes, (), name)
    given = (model, part, description, device, dtype)
    stage = StageExecutor(*given, card=card_of(device), recorder=recorder_on(device))
    stage.prepare(kv_tokens)
    for layer in stage._pool.layers.values():
        for rows in (layer.keys, layer.values):
            rows.rows_SKA.normal_()
    return stage


def hold(stage: StageExecutor, rows: int, tokens: int, scattered: bool) -> bool:
    """Let requests hold so many tokens each, in one piece or in blocks that alternate; whether
    they have room."""
    for row in range(max(rows, len(stage._expected))):
        stage.release(Release(row))
    if rows * blocks_for(tokens) > stage.kv.blocks_total:
        return False
    expected = 1 if scattered else tokens
    for row in range(rows):
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        stage.admit(Admission(row, expected, expected, sampling))
    for end in range(BLOCK_TOKENS, tokens + 1, BLOCK_TOKENS) if scattered else ():
        for row in range(rows):
            stage.kv.grow(row, end, 1)
    for row in range(rows):
        stage.kv.grow(row, tokens, expected)
    return True


def run(stage: StageExecutor, *spans: Span) -> None:
    """Compute a step of these spans."""
    kind = BatchClass.DECODE if spans[0].tokens == 1 else BatchClass.PREFILL
    batch = Batch(0, kind, 0, spans)
    stage.step(batch, None, torch.ones(batch.tokens, stage.hidden_size, dtype=stage.dtype))
