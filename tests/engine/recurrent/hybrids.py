"""Published models in miniature, hybrids above all: the settings are those of docs/models.md."""

import copy
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.layers.library_mixers import settle_mixers
from molink.engine.model.text_model import text_part
from molink.engine.self_test import miniature
from tests.engine.tiny_models import tiny_model
from tools.models_page.published import PUBLISHED

HYBRIDS = (
    "Qwen3-Next 80B-A3B",
    "Qwen3.5 27B",
    "Qwen3.5 35B-A3B",
    "Granite 4.0 H Tiny",
    "Granite 4.0 H 1B",
    "Falcon-H1 7B",
    "Bamba 9B",
    "Nemotron 3 Nano 30B-A3B",
    "Nemotron Nano 9B v2",
    "Jamba 3B",
    "LFM2 1.2B",
    "LFM2 8B-A1B",
    "Kimi-Linear 48B-A3B",
    "Olmo-Hybrid 7B",
)

KINDS = ("Qwen3.5 27B", "Granite 4.0 H Tiny", "Jamba 3B", "LFM2 1.2B")
"""The delta rule, Mamba-2 with experts, Mamba-1, a short convolution."""

WITH_EXPERTS = frozenset(
    {
        "Qwen3-Next 80B-A3B",
        "Qwen3.5 35B-A3B",
        "Granite 4.0 H Tiny",
        "Nemotron 3 Nano 30B-A3B",
        "LFM2 8B-A1B",
        "Kimi-Linear 48B-A3B",
        "Jamba Mini",
        "Gemma 4 26B-A4B",
        "Hunyuan-A13B",
        "GLM-4.7-Flash",
        "DeepSeek-V2-Lite",
        "DeepSeek-V3 and Kimi K2",
    }
)


def plain_config(name: str) -> Any:
    """The config of a published model's text, as the library makes it."""
    (one,) = (published for published in PUBLISHED if published.name == name)
    return text_part(CONFIG_MAPPING[one.model_type](**copy.deepcopy(one.settings)))


def published_config(name: str) -> Any:
    config = plain_config(name)
    config._attn_implementation, config._experts_implementation = ATTENTION_NAME, EXPERTS_NAME
    return config


def small_model(name: str, seed: int = 0) -> Any:
    """The whole model in miniature, in fp32, as the library computes it."""
    config = miniature.shrink_config(published_config(name))
    config = copy.deepcopy(config)
    config._attn_implementation = config._experts_implementation = "eager"
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)  # Constructors draw from it, too.
        model = tiny_model(config, seed)
    settle_mixers(model)
    return model
