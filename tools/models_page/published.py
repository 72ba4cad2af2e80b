"""Settings of published checkpoints: what differs from the defaults of their config classes.

A class's defaults prove little: sizes and kinds of layers are often missing there. Each entry is
the text model's part of a config.json, under the name of the checkpoint; the self-test makes it
small.
"""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["PUBLISHED", "Published"]

FULL, SLIDING, RECURRENT, CONVOLUTION = (
    *("full_attention", "sliding_attention"),
    *("linear_attention", "conv"),
)


@dataclass(frozen=True, slots=True)
class Published:
    """A published checkpoint, by the settings of its text model."""

    name: str
    model_type: str
    """Of the text model's config class."""
    settings: dict[str, Any] = field(default_factory=dict)
    home: bool = False
    """Whether it is among the models that are run most at home."""
    four_bits: dict[str, Any] | None = None
    """The `quantization_config` that it is published with, where that has four bits."""


def every(count: int, period: int, special: str, usual: str, at: int | None = None) -> list[str]:
    """Kinds of layers of which each `period`-th is special, the last of them or the one `at`."""
    place = period - 1 if at is None else at
    return [special if number % period == place else usual for number in range(count)]


def llama(
    layers: int, hidden: int, inner: int, heads: int, kv: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    """Settings that nearly all families of ordinary attention share."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocabulary,
    } | more


ROPE_SECTIONS = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    }
}
ROPE_OF_PICTURES = {"rope_type": "default", "rope_theta": 1e6}
HALF_ROPE_OF_PICTURES = ROPE_OF_PICTURES | {
    "partial_rotary_factor": 0.5,
    "mrope_section": [8, 12, 12],
}
GEMMA_3 = {"head_dim": 256, "sliding_window": 1024, "tie_word_embeddings": True}
GEMMA_4 = {
    "head_dim": 256,
    "global_head_dim": 512,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 1024,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
GRANITE_4 = {
    "position_embedding_type": "nope",
    "embedding_multiplier": 12,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0078125,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "tie_word_embeddings": True,
    "layer_types": every(40, 10, FULL, RECURRENT, 5),
}
NANO_3 = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
NANO_9B = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
MXFP4 = {"quant_method": "mxfp4"}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0] * 48,
    "long_factor": [2.0] * 48,
    "original_max_position_embeddings": 4096,
}

PUBLISHED = (
    Published(
        "Llama 3.2 3B",
        "llama",
        llama(28, 3072, 8192, 24, 8, 128256, head_dim=128, tie_word_embeddings=True),
        home=True,
    ),
    Published("Llama 3.1 8B", "llama", llama(32, 4096, 14336, 32, 8, 128256), home=True),
    Published("Llama 3.3 70B", "llama", llama(80, 8192, 28672, 64, 8, 128256), home=True),
    Published("Qwen3 8B", "qwen3", llama(36, 4096, 12288, 32, 8, 151936, head_dim=128), home=True),
    Published("Qwen3 32B", "qwen3", llama(64, 5120, 25600, 64, 8, 151936, head_dim=128), home=True),
    Published(
        "Qwen3 30B-A3B",
        "qwen3_moe",
        llama(48, 2048, 6144, 32, 4, 151936, head_dim=128)
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        home=True,
    ),
    Published(
        "Qwen3.5 9B",
        "qwen3_5_text",
        llama(32, 4096, 12288, 16, 4, 248320, head_dim=256)
        | ROPE_SECTIONS
        | {"linear_num_key_heads": 16, "linear_num_value_heads": 32},
        home=True,
    ),
    Published(
        "Qwen3.5 27B",
        "qwen3_5_text",
        llama(64, 5120, 17408, 24, 4, 248320, head_dim=256)
        | ROPE_SECTIONS
        | {"linear_num_key_heads": 16, "linear_num_value_heads": 48},
        home=True,
    ),
    Published(
        "Qwen3.5 35B-A3B",
        "qwen3_5_moe_text",
        llama(40, 2048, 512, 16, 2, 248320, head_dim=256)
        | ROPE_SECTIONS
        | {"linear_num_key_heads": 16, "linear_num_value_heads": 32},
        home=True,
    ),
    Published("Qwen3-Next 80B-A3B", "qwen3_next", {"num_hidden_layers": 48}),
    Published(
        "gpt-oss 20B", "gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}, True, MXFP4
    ),
    Published(
        "gpt-oss 120B", "gpt_oss", {"num_hidden_layers": 36, "num_local_experts": 128}, True, MXFP4
    ),
    Published(
        "Gemma 3 12B", "gemma3_text", llama(48, 3840, 15360, 16, 8, 262208) | GEMMA_3, home=True
    ),
    Published(
        "Gemma 3 27B",
        "gemma3_text",
        llama(62, 5376, 21504, 32, 16, 262208)
        | GEMMA_3
        | {"head_dim": 128, "query_pre_attn_scalar": 168},
        home=True,
    ),
    Published("Gemma 4 12B", "gemma4_unified_text"),
    Published(
        "Gemma 4 26B-A4B",
        "gemma4_text",
        llama(30, 2816, 2112, 16, 8, 262144, num_global_key_value_heads=2)
        | GEMMA_4
        | {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8}
        | {"moe_intermediate_size": 704},
        home=True,
    ),
    Published(
        "Gemma 4 31B",
        "gemma4_text",
        llama(60, 5376, 21504, 32, 16, 262144, num_global_key_value_heads=4) | GEMMA_4,
        home=True,
    ),
    Published(
        "Gemma 4 E4B",
        "gemma4_text",
        llama(42, 2560, 10240, 8, 2, 262144, head_dim=256, global_head_dim=512)
        | {"hidden_size_per_layer_input": 256, "num_kv_shared_layers": 18, "sliding_window": 512},
    ),
    Published(
        "Gemma 4 E2B",
        "gemma4_text",
        llama(35, 1536, 6144, 8, 1, 262144, head_dim=256, global_head_dim=512)
        | {"hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20, "sliding_window": 512}
        | {"use_double_wide_mlp": True, "layer_types": every(35, 5, FULL, SLIDING)},
    ),
    Published("Gemma 3n E4B", "gemma3n_text"),
    Published(
        "Mistral Small 3.2 24B",
        "mistral",
        llama(40, 5120, 32768, 32, 8, 131072, head_dim=128),
        home=True,
    ),
    Published(
        "Ministral 8B",
        "ministral",
        llama(36, 4096, 12288, 32, 8, 131072, head_dim=128, sliding_window=32768)
        | {"layer_types": every(36, 4, FULL, SLIDING, 0)},
    ),
    Published(
        "GLM-4.5-Air",
        "glm4_moe",
        llama(46, 4096, 10944, 96, 8, 151552, head_dim=128)
        | {"moe_intermediate_size": 1408, "n_routed_experts": 128, "num_experts_per_tok": 8}
        | {"partial_rotary_factor": 0.5, "use_qk_norm": False},
        home=True,
    ),
    Published("GLM-4.7-Flash", "glm4_moe_lite", home=True),
    Published(
        "Granite 4.0 H Tiny",
        "granitemoehybrid",
        llama(40, 1536, 512, 12, 4, 100352, mamba_n_heads=48)
        | GRANITE_4
        | {"num_local_experts": 64, "num_experts_per_tok": 6, "shared_intermediate_size": 1024},
        home=True,
    ),
    Published(
        "Granite 4.0 H 1B",
        "granitemoehybrid",
        llama(40, 1536, 4096, 12, 4, 100352, mamba_n_heads=48)
        | GRANITE_4
        | {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 4096},
    ),
    Published(
        "Granite 4.0 Micro",
        "granitemoehybrid",
        llama(40, 2560, 8192, 40, 8, 100352, mamba_n_heads=80, mamba_d_head=64)
        | {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 8192}
        | {"position_embedding_type": "rope", "layer_types": [FULL] * 40},
    ),
    Published(
        "LFM2 1.2B",
        "lfm2",
        {"hidden_size": 2048, "num_hidden_layers": 16, "full_attn_idxs": [2, 5, 8, 10, 12, 14]},
    ),
    Published(
        "LFM2 8B-A1B",
        "lfm2_moe",
        llama(24, 2048, 7168, 32, 8, 65536, moe_intermediate_size=1792, num_experts=32)
        | {"num_experts_per_tok": 4, "num_dense_layers": 2, "tie_word_embeddings": True}
        | {
            "layer_types": [FULL if n in (2, 6, 10, 14, 18, 21) else CONVOLUTION for n in range(24)]
        },
        home=True,
    ),
    Published("Phi-4 14B", "phi3", llama(40, 5120, 17920, 40, 10, 100352), home=True),
    Published(
        "Phi-4-mini",
        "phi3",
        llama(32, 3072, 8192, 24, 8, 200064, rope_parameters=LONGROPE, tie_word_embeddings=True)
        | {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096},
    ),
    Published(
        "Nemotron 3 Nano 30B-A3B",
        "nemotron_h",
        llama(52, 2688, 1856, 32, 2, 131072, head_dim=128, hybrid_override_pattern=NANO_3)
        | {"mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128}
        | {"n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856}
        | {"moe_shared_expert_intermediate_size": 3712, "routed_scaling_factor": 2.5},
    ),
    Published(
        "Nemotron Nano 9B v2",
        "nemotron_h",
        llama(56, 4480, 15680, 40, 8, 131072, head_dim=128, hybrid_override_pattern=NANO_9B)
        | {"mamba_num_heads": 128, "mamba_head_dim": 80, "n_groups": 8, "ssm_state_size": 128},
    ),
    Published("Nemotron-4 and Minitron", "nemotron", {"num_key_value_heads": 8, "head_dim": 128}),
    Published(
        "Falcon-H1 7B",
        "falcon_h1",
        llama(44, 3072, 12288, 12, 2, 130048, head_dim=128, mamba_d_ssm=3072, mamba_n_heads=24)
        | {"mamba_d_head": 128, "mamba_d_state": 256, "mamba_n_groups": 1, "mamba_rms_norm": False}
        | {"embedding_multiplier": 5.6, "lm_head_multiplier": 0.02, "key_multiplier": 0.3}
        | {"ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.5, "attention_out_multiplier": 0.9}
        | {"ssm_multipliers": [0.35, 0.25, 0.25, 0.17, 0.3], "mlp_multipliers": [0.6, 0.2]},
    ),
    Published(
        "Bamba 9B",
        "bamba",
        {"num_hidden_layers": 32, "attn_layer_indices": [9, 18, 27], "mamba_n_groups": 1},
    ),
    Published(
        "Jamba 3B",
        "jamba",
        llama(28, 2560, 8192, 20, 1, 65536, num_experts=1, num_experts_per_tok=1)
        | {"attn_layer_period": 14, "attn_layer_offset": 7},
    ),
    Published("Jamba Mini", "jamba"),
    Published("Kimi-Linear 48B-A3B", "kimi_linear"),
    Published("Olmo-Hybrid 7B", "olmo_hybrid"),
    Published("Ling and Ring 2.5", "bailing_hybrid"),
    Published("Hunyuan 7B", "hunyuan_v1_dense", {"head_dim": 128, "num_key_value_heads": 8}),
    Published(
        "Hunyuan-A13B",
        "hunyuan_v1_moe",
        {"head_dim": 128, "num_key_value_heads": 8, "num_experts": 64, "moe_topk": 8}
        | {"moe_intermediate_size": 3072},
    ),
    Published(
        "DeepSeek-V2-Lite",
        "deepseek_v2",
        llama(27, 2048, 10944, 16, 16, 102400, q_lora_rank=None, kv_lora_rank=512)
        | {"n_routed_experts": 64, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1}
        | {"topk_method": "greedy", "moe_intermediate_size": 1408, "n_shared_experts": 2}
        | {"first_k_dense_replace": 1},
    ),
    Published("DeepSeek-V3 and Kimi K2", "deepseek_v3"),
    Published("DeepSeek-V3.2", "deepseek_v32"),
    Published(
        "dots.llm1",
        "dots1",
        {"n_routed_experts": 128, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 1408}
        | {"n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
    ),
    Published("MiniMax-M2", "minimax_m2"),
    Published(
        "MiniMax-M3",
        "minimax_m3_vl_text",
        {"num_hidden_layers": 8, "layer_types": [FULL] * 3 + ["minimax_m3_sparse"] * 5},
    ),
    Published("MiniMax-01", "minimax"),
    Published("ERNIE 4.5 21B-A3B", "ernie4_5_moe"),
    Published(
        "Olmo 3 7B",
        "olmo3",
        {"num_hidden_layers": 32, "layer_types": every(32, 4, FULL, SLIDING)},
    ),
    Published(
        "EXAONE 4",
        "exaone4",
        {"num_hidden_layers": 32, "layer_types": every(32, 4, FULL, SLIDING)},
    ),
    Published("SmolLM3", "smollm3"),
    Published("Seed-OSS 36B", "seed_oss"),
    Published(
        "Qwen2.5-VL 7B",
        "qwen2_5_vl",
        {
            "text_config": llama(28, 3584, 18944, 28, 4, 152064)
            | {"rope_parameters": ROPE_OF_PICTURES | {"mrope_section": [16, 24, 24]}}
        },
    ),
    Published(
        "Qwen2-VL 7B",
        "qwen2_vl",
        {
            "text_config": llama(28, 3584, 18944, 28, 4, 152064)
            | {"rope_parameters": ROPE_OF_PICTURES | {"mrope_section": [16, 24, 24]}}
        },
    ),
    Published(
        "GLM-4.1V 9B",
        "glm4v",
        {
            "text_config": llama(40, 4096, 13696, 32, 2, 151552)
            | {"rope_parameters": HALF_ROPE_OF_PICTURES}
        },
    ),
    Published(
        "GLM-4.5V",
        "glm4v_moe",
        {
            "text_config": llama(46, 4096, 10944, 96, 8, 151552, head_dim=128)
            | {"rope_parameters": HALF_ROPE_OF_PICTURES, "n_routed_experts": 128}
        },
    ),
    Published("Llama 4 Scout", "llama4_text", {"num_hidden_layers": 48}),
)
"""By name; in the order of the page."""
