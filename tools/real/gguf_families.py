"""Miniatures of every family whose GGUF files are imported: settings that differ from defaults.

What a file must carry (bases of rotary embeddings, windows, scales) has unusual values here, so
that a setting that is lost or guessed shows in the logits.
"""

import copy
from typing import Any

__all__ = ["FAMILIES", "miniature_settings"]

FULL, SLIDING, RECURRENT = "full_attention", "sliding_attention", "linear_attention"
LAYERS = 4
WINDOW = 5
"""Shorter than the texts that are compared."""

COMMON: dict[str, Any] = dict(
    vocab_size=160,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    rms_norm_eps=3e-6,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
ROPE: dict[str, Any] = dict(rope_parameters={"rope_type": "default", "rope_theta": 20000.0})
HALF: dict[str, Any] = dict(
    rope_parameters={"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.5}
)
HALF_OF_10000: dict[str, Any] = dict(
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
)
"""For converters that write no base."""

YARN: dict[str, Any] = dict(
    rope_parameters={
        "rope_type": "yarn",
        "rope_theta": 20000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
    }
)
LAYERED: dict[str, Any] = dict(layer_types=[SLIDING, SLIDING, SLIDING, FULL], sliding_window=WINDOW)
DELTA: dict[str, Any] = dict(
    layer_types=[RECURRENT, RECURRENT, RECURRENT, FULL],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    head_dim=32,
)
MROPE: dict[str, Any] = dict(
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 20000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    }
)
EXPERTS: dict[str, Any] = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
ROUTED: dict[str, Any] = dict(
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    n_shared_experts=2,
    first_k_dense_replace=1,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
)
LATENT: dict[str, Any] = dict(
    num_key_value_heads=4,
    q_lora_rank=24,
    kv_lora_rank=16,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
)
MULTIPLIED: dict[str, Any] = dict(
    embedding_multiplier=3.0,
    logits_scaling=2.0,
    residual_multiplier=0.5,
    attention_multiplier=0.2,
)
SCANS: dict[str, Any] = dict(
    mamba_n_heads=8, mamba_n_groups=2, mamba_d_state=16, mamba_d_head=16, mamba_chunk_size=8
)
GEMMA_4: dict[str, Any] = dict(
    head_dim=16,
    global_head_dim=32,
    hidden_size_per_layer_input=0,
    final_logit_softcapping=20.0,
    rope_parameters={
        FULL: {"rope_type": "proportional", "rope_theta": 70000.0, "partial_rotary_factor": 0.25},
        SLIDING: {"rope_type": "default", "rope_theta": 9000.0},
    },
    tie_word_embeddings=True,
)
HYBRID: dict[str, Any] = dict(
    layer_types=["mamba", "mamba", "attention", "mamba"],
    shared_intermediate_size=48,
    **SCANS,
    **MULTIPLIED,
)

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": ROPE,
    "llama tied": dict(model_type="llama", tie_word_embeddings=True),
    "llama yarn": dict(model_type="llama", **YARN),
    "mistral": dict(sliding_window=None, head_dim=24, **ROPE),
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2, **ROPE),
    "qwen2": ROPE,
    "qwen2_moe": dict(
        shared_expert_intermediate_size=48, norm_topk_prob=False, decoder_sparse_step=1, **EXPERTS
    ),
    "qwen3": dict(head_dim=24, **ROPE),
    "qwen3_moe": dict(norm_topk_prob=True, head_dim=16, **EXPERTS),
    "qwen3_next": dict(shared_expert_intermediate_size=48, **DELTA, **EXPERTS, **HALF),
    "qwen3_5_text": dict(**DELTA, **MROPE),
    "qwen3_5_moe_text": dict(shared_expert_intermediate_size=48, **DELTA, **EXPERTS, **MROPE),
    "gemma": dict(head_dim=24),
    "gemma2": dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW),
    "gemma3_text": dict(
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=WINDOW,
        num_hidden_layers=7,
        rope_parameters={
            FULL: {"rope_type": "linear", "rope_theta": 70000.0, "factor": 8.0},
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "gemma4_text": dict(**GEMMA_4, **LAYERED, num_global_key_value_heads=1, attention_k_eq_v=True),
    "gemma4_text shared": dict(
        GEMMA_4,
        model_type="gemma4_text",
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=160,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        num_hidden_layers=6,
        sliding_window=WINDOW,
        layer_types=[SLIDING, SLIDING, FULL] * 2,
    ),
    "gemma4_text moe": dict(
        GEMMA_4,
        **LAYERED,
        model_type="gemma4_text",
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=32,
    ),
    "phi": dict(layer_norm_eps=3e-5, num_key_value_heads=4, **HALF_OF_10000),
    "phi3": {},
    "phimoe": dict(
        num_local_experts=4, num_experts_per_tok=2, original_max_position_embeddings=256, **ROPE
    ),
    "glm": dict(head_dim=16, rms_norm_eps=1e-5, **HALF_OF_10000),
    "glm4": dict(head_dim=16, **HALF),
    "glm4_moe": dict(ROUTED, head_dim=16, use_qk_norm=True, n_group=1, topk_group=1, **HALF),
    "glm4_moe no norms": dict(
        ROUTED,
        model_type="glm4_moe",
        head_dim=16,
        use_qk_norm=False,
        attention_bias=True,
        n_group=1,
        topk_group=1,
        **HALF,
    ),
    "glm4_moe_lite": dict(
        ROUTED, n_group=1, topk_group=1, mlp_layer_types=["dense"] + ["sparse"] * 3, **LATENT
    ),
    "deepseek_v2": dict(
        {**ROUTED, **LATENT},
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        norm_topk_prob=False,
        q_lora_rank=None,
        head_dim=8,
    ),
    "deepseek_v3": dict(ROUTED, n_group=2, topk_group=1, head_dim=8, **LATENT),
    "deepseek_v3 yarn": dict(
        ROUTED,
        model_type="deepseek_v3",
        n_group=2,
        topk_group=1,
        head_dim=8,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 20000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        **LATENT,
    ),
    "granite": dict(**MULTIPLIED, **ROPE),
    "granitemoe": dict(num_local_experts=4, num_experts_per_tok=2, **MULTIPLIED, **ROPE),
    "granitemoeshared": dict(
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=48,
        **MULTIPLIED,
        **ROPE,
    ),
    "granitemoehybrid": dict(
        HYBRID, num_local_experts=4, num_experts_per_tok=2, position_embedding_type="nope"
    ),
    "granitemoehybrid dense": dict(
        HYBRID,
        model_type="granitemoehybrid",
        num_local_experts=0,
        num_experts_per_tok=0,
        position_embedding_type="nope",
    ),
    "falcon_h1": dict(
        SCANS,
        head_dim=16,
        mamba_d_ssm=128,
        mamba_rms_norm=True,
        mamba_norm_before_gate=False,
        embedding_multiplier=5.6,
        lm_head_multiplier=0.5,
        key_multiplier=0.3,
        attention_out_multiplier=0.9,
        ssm_in_multiplier=1.2,
        ssm_out_multiplier=0.5,
        ssm_multipliers=[0.35, 0.25, 0.25, 0.17, 0.3],
        mlp_multipliers=[0.6, 0.2],
        **ROPE,
    ),
    "nemotron_h": dict(
        layers_block_type=["mamba", "moe", "attention", "moe", "mamba"],
        num_hidden_layers=5,
        head_dim=16,
        mamba_num_heads=8,
        mamba_head_dim=16,
        n_groups=2,
        ssm_state_size=16,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=48,
        routed_scaling_factor=2.5,
        layer_norm_epsilon=3e-6,
        chunk_size=8,
    ),
    "lfm2": dict(
        layer_types=["conv", "conv", FULL, "conv"],
        conv_L_cache=3,
        norm_eps=3e-6,
        block_auto_adjust_ff_dim=False,
        **ROPE,
    ),
    "lfm2_moe": dict(
        layer_types=["conv", "conv", FULL, "conv"],
        conv_L_cache=3,
        norm_eps=3e-6,
        num_dense_layers=1,
        **EXPERTS,
        **ROPE,
    ),
    "jamba": dict(
        num_experts=4,
        num_experts_per_tok=2,
        attn_layer_period=4,
        attn_layer_offset=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=16,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "olmo": dict(clip_qkv=2.0, **ROPE),
    "olmo2": ROPE,
    "olmo3": dict(**LAYERED, **ROPE),
    "olmoe": dict(num_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-5, **ROPE),
    "cohere": dict(logit_scale=0.25, layer_norm_eps=3e-5, **ROPE),
    "cohere2": dict(
        logit_scale=0.25, layer_norm_eps=3e-5, rotary_pct=1.0, head_dim=16, **LAYERED, **ROPE
    ),
    "starcoder2": dict(
        use_bias=True, norm_epsilon=3e-5, tie_word_embeddings=True, sliding_window=None, **ROPE
    ),
    "stablelm": dict(
        layer_norm_eps=3e-5, use_qkv_bias=True, use_parallel_residual=False, **HALF_OF_10000
    ),
    "smollm3": dict(
        num_hidden_layers=5, no_rope_layer_interval=4, use_sliding_window=False, **ROPE
    ),
    "exaone4": dict(**LAYERED, **ROPE),
    "exaone_moe": dict(
        **LAYERED,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        num_shared_experts=1,
        first_k_dense_replace=1,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        n_group=1,
        topk_group=1,
        mlp_layer_types=["dense"] + ["sparse"] * 3,
        **ROPE,
    ),
    "seed_oss": dict(head_dim=24, attention_bias=True, attention_out_bias=False, **ROPE),
    "apertus": ROPE,
    "arcee": ROPE,
    "nemotron": dict(norm_eps=3e-5, head_dim=16, **HALF),
    "ernie4_5": dict(head_dim=16, **ROPE),
    "ernie4_5_moe": dict(
        head_dim=16,
        moe_num_experts=4,
        moe_k=2,
        moe_intermediate_size=32,
        moe_num_shared_experts=2,
        moe_layer_start_index=1,
        moe_layer_end_index=3,
        moe_layer_interval=1,
        **ROPE,
    ),
    "hunyuan_v1_dense": dict(head_dim=16, **ROPE),
    "hunyuan_v1_moe": dict(
        head_dim=16,
        num_experts=4,
        moe_topk=[2] * LAYERS,
        moe_intermediate_size=[96] * LAYERS,
        num_shared_expert=[1] * LAYERS,
        **ROPE,
    ),
    "minimax_m2": dict(
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=16,
        rotary_dim=8,
        **HALF,
    ),
    "dots1": dict(
        ROUTED,
        n_group=1,
        topk_group=1,
        head_dim=16,
        **ROPE,
    ),
    "internlm3": dict(head_dim=16, **ROPE),
    "ministral3": dict(
        head_dim=16,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 20000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    ),
}
"""By the name of a trial: the library's model type, where the settings name no other. gpt-oss is
not among them: its experts are read in MXFP4, which the converter makes of nothing but MXFP4."""


def miniature_settings(name: str) -> dict[str, Any]:
    """All settings of a miniature, with its `model_type`."""
    return copy.deepcopy({**COMMON, "model_type": name, **FAMILIES[name]})
