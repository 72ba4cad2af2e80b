"""Hybrid models in miniature, with the settings of published checkpoints."""

import copy
from typing import Any

import torch
from transformers import AutoConfig

from molink.executor.architecture import miniature
from molink.executor.attention.function import ATTENTION_NAME
from molink.executor.experts import EXPERTS_NAME
from molink.executor.recurrent.library_mixers import settle_mixers
from tests.executor.tiny_models import tiny_model

FULL, LINEAR = "full_attention", "linear_attention"

MROPE = {
    "rope_type": "default",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "mrope_section": [11, 11, 10],
    "mrope_interleaved": True,
}
GRANITE: dict[str, Any] = dict(
    model_type="granitemoehybrid",
    hidden_size=1536,
    num_hidden_layers=40,
    num_attention_heads=12,
    num_key_value_heads=4,
    mamba_n_heads=48,
    mamba_d_head=64,
    mamba_d_state=128,
    shared_intermediate_size=1024,
    position_embedding_type="nope",
    embedding_multiplier=12,
    logits_scaling=6,
    residual_multiplier=0.22,
    attention_multiplier=0.0078125,
    tie_word_embeddings=True,
    layer_types=[FULL if layer % 10 == 5 else LINEAR for layer in range(40)],
)

HYBRIDS: dict[str, dict[str, Any]] = {
    "Qwen3-Next-80B-A3B": dict(
        model_type="qwen3_next",
        num_hidden_layers=48,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
    ),
    "Qwen3.5-27B": dict(
        model_type="qwen3_5_text",
        hidden_size=5120,
        intermediate_size=17408,
        num_hidden_layers=64,
        num_attention_heads=24,
        num_key_value_heads=4,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        rope_parameters=MROPE,
    ),
    "Qwen3.5-35B-A3B": dict(
        model_type="qwen3_5_moe_text",
        hidden_size=2048,
        num_hidden_layers=40,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        rope_parameters=MROPE,
    ),
    "granite-4.0-h-tiny": GRANITE
    | dict(num_local_experts=64, num_experts_per_tok=6, intermediate_size=512),
    "granite-4.0-h-1b": GRANITE
    | dict(num_local_experts=0, num_experts_per_tok=0, intermediate_size=4096),
    "Falcon-H1-7B": dict(
        model_type="falcon_h1",
        hidden_size=3072,
        intermediate_size=12288,
        num_hidden_layers=44,
        num_attention_heads=12,
        num_key_value_heads=2,
        head_dim=128,
        mamba_d_ssm=3072,
        mamba_n_heads=24,
        mamba_d_head=128,
        mamba_d_state=256,
        mamba_n_groups=1,
        mamba_rms_norm=False,
        embedding_multiplier=5.6,
        lm_head_multiplier=0.02,
        key_multiplier=0.3,
        ssm_in_multiplier=1.2,
        ssm_out_multiplier=0.5,
        attention_out_multiplier=0.9,
        ssm_multipliers=[0.35, 0.25, 0.25, 0.17, 0.3],
        mlp_multipliers=[0.6, 0.2],
    ),
    "Bamba-9B": dict(
        model_type="bamba",
        num_hidden_layers=32,
        attn_layer_indices=[9, 18, 27],
        mamba_n_heads=128,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_n_groups=1,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
        },
    ),
    "Nemotron-3-Nano-30B-A3B": dict(
        model_type="nemotron_h",
        hidden_size=2688,
        hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        num_attention_heads=32,
        num_key_value_heads=2,
        head_dim=128,
        mamba_num_heads=64,
        mamba_head_dim=64,
        n_groups=8,
        ssm_state_size=128,
        n_routed_experts=128,
        num_experts_per_tok=6,
        moe_intermediate_size=1856,
        moe_shared_expert_intermediate_size=3712,
        routed_scaling_factor=2.5,
    ),
    "Nemotron-Nano-9B-v2": dict(
        model_type="nemotron_h",
        hidden_size=4480,
        hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        num_attention_heads=40,
        num_key_value_heads=8,
        head_dim=128,
        mamba_num_heads=128,
        mamba_head_dim=80,
        n_groups=8,
        ssm_state_size=128,
        intermediate_size=15680,
    ),
    "Jamba-3B": dict(
        model_type="jamba",
        num_hidden_layers=28,
        hidden_size=2560,
        num_attention_heads=20,
        num_key_value_heads=1,
        attn_layer_period=14,
        attn_layer_offset=7,
        num_experts=1,
        num_experts_per_tok=1,
    ),
    "LFM2-1.2B": dict(
        model_type="lfm2",
        hidden_size=2048,
        num_hidden_layers=16,
        full_attn_idxs=[2, 5, 8, 10, 12, 14],
    ),
    "LFM2-8B-A1B": dict(
        model_type="lfm2_moe",
        hidden_size=2048,
        num_hidden_layers=24,
        layer_types=[FULL if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)],
    ),
    "Kimi-Linear-48B-A3B": dict(model_type="kimi_linear"),
    "Olmo-Hybrid-7B": dict(model_type="olmo_hybrid"),
}
"""As published; sizes that are a class's defaults are left to it."""

WITH_EXPERTS = frozenset(
    {
        "Qwen3-Next-80B-A3B",
        "Qwen3.5-35B-A3B",
        "granite-4.0-h-tiny",
        "Nemotron-3-Nano-30B-A3B",
        "LFM2-8B-A1B",
        "Kimi-Linear-48B-A3B",
    }
)


def published_config(name: str) -> Any:
    settings = dict(HYBRIDS[name])
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    config._attn_implementation, config._experts_implementation = ATTENTION_NAME, EXPERTS_NAME
    return config


def small_hybrid(name: str, seed: int = 0) -> Any:
    """The whole model in miniature, in fp32, as the library computes it."""
    config = miniature.shrink_config(published_config(name))
    config = copy.deepcopy(config)
    config._attn_implementation = config._experts_implementation = "eager"
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)  # Constructors draw from it, too.
        model = tiny_model(config, seed)
    settle_mixers(model)
    return model
