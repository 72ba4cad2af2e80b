"""Stages on the CPU that compute as on a card, so that their decode steps can be recorded."""

import copy
from pathlib import Path
from unittest import mock

import torch

from molink.checkpoint.description import ModelDescription
from molink.engine.device.card import card_of
from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.model.weights import StagePart, build_stage_class
from molink.engine.self_test import miniature
from molink.engine.step import stage as stage_module
from molink.engine.step.graphs import decode_graphs
from molink.engine.step.stage import StageExecutor
from tests.engine.recurrent.hybrids import HYBRIDS, published_config
from tests.engine.tiny_models import tiny_config, with_weights_that_matter

CPU = torch.device("cpu")

MODEL_LEN = 128
LENGTH_NAMES = {"gpt2": "n_layer"}


BUCKETS = (4, 1)
"""Of the recorded steps, for most tests: three rows, or two, are one that is padded."""


def config_of(name, layers, overrides):
    if name in HYBRIDS:
        config = copy.deepcopy(miniature.shrink_config(published_config(name)))
    else:
        config = tiny_config(
            name, **{LENGTH_NAMES.get(name, "num_hidden_layers"): layers}, **overrides
        )
    # What `experts` calls on a card for few rows.
    config._attn_implementation, config._experts_implementation = ATTENTION_NAME, "batched_mm"
    return config


def static_stage(
    name,
    layers,
    count,
    recorder=None,
    buckets=BUCKETS,
    kv_tokens=512,
    config=None,
    device=CPU,
    **options,
):
    """Stage of `layers` of `count` of an architecture, or of a hybrid's miniature, in fp32."""
    config = config_of(name, count, config or {})
    part = StagePart(layers, config.num_hidden_layers)
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        model = build_stage_class(config, part)(config)
    model.generation_config = mock.Mock()
    sizes = (part.layers_total, config.hidden_size, config.vocab_size, MODEL_LEN)
    description = ModelDescription(name, Path(name), config.model_type, *sizes, (2,), "float32")
    stage = StageExecutor(
        with_weights_that_matter(model).to(device),
        part,
        description,
        device,
        torch.float32,
        card=card_of(device),
        recorder=recorder,
        decode_rows_max=64,
    )
    # Packed products are a CPU's, and no operations of torch.
    with (
        mock.patch.object(stage_module, "rewrite"),
        mock.patch.object(decode_graphs, "BUCKETS", buckets),
    ):
        stage.prepare(kv_tokens, **options)
    return stage
