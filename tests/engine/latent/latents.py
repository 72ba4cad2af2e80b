"""Models with latent attention in miniature, with the settings of published checkpoints."""

import copy
from typing import Any

import torch
from transformers import AutoConfig

from molink.engine.layers.attention_function import ATTENTION_NAME
from molink.engine.layers.experts import EXPERTS_NAME
from molink.engine.layers.library_mixers import settle_mixers
from molink.engine.self_test import miniature
from tests.engine.tiny_models import tiny_model

SOME = ("GLM-4.7-Flash", "Kimi-Linear-48B-A3B")
"""Latent in every layer; and beside layers that keep states."""

LATENTS: dict[str, dict[str, Any]] = {
    "GLM-4.7-Flash": dict(model_type="glm4_moe_lite"),
    "DeepSeek-V2-Lite": dict(
        model_type="deepseek_v2",
        hidden_size=2048,
        intermediate_size=10944,
        num_hidden_layers=27,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=None,
        kv_lora_rank=512,
        n_routed_experts=64,
        num_experts_per_tok=6,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        moe_intermediate_size=1408,
        n_shared_experts=2,
        first_k_dense_replace=1,
    ),
    "DeepSeek-V3 and Kimi-K2": dict(model_type="deepseek_v3"),
    "Kimi-Linear-48B-A3B": dict(model_type="kimi_linear"),
    "Ling and Ring 2.5": dict(model_type="bailing_hybrid"),
    "MiniCPM3-4B": dict(model_type="minicpm3"),
    "Youtu": dict(model_type="youtu"),
    "A.X-K1": dict(model_type="axk1"),
}
"""As published; sizes that are a class's defaults are left to it."""

WITHOUT_EXPERTS = frozenset({"MiniCPM3-4B", "Youtu"})


def published_config(name: str) -> Any:
    config = AutoConfig.for_model(**LATENTS[name])
    config._attn_implementation, config._experts_implementation = ATTENTION_NAME, EXPERTS_NAME
    return config


def small_latent(name: str, seed: int = 0) -> Any:
    """The whole model in miniature, in fp32, as the library computes it."""
    config = copy.deepcopy(miniature.shrink_config(published_config(name)))
    config._attn_implementation = config._experts_implementation = "eager"
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)  # Constructors draw from it, too.
        model = tiny_model(config, seed)
    settle_mixers(model)
    return model
