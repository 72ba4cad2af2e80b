"""Settings of single architectures, beside sizes that all have.

Three tables by the library's model type: what the metadata say under another name, what one value
is right for, and functions for all that must be worked out.
"""

from collections.abc import Callable
from typing import Any

from molink.importing.gguf import worked_out as out
from molink.importing.gguf.metadata import GgufModel

__all__ = ["architecture_settings"]

Settings = dict[str, Any]


def architecture_settings(model: GgufModel, settings: Settings) -> Settings:
    """What a model type has beside its sizes, or in place of them."""
    kind = settings["model_type"]
    pairs = (word.split("=") for word in NAMED.get(kind, "").split())
    found = {key: model.find(name) for key, name in pairs}
    own = {key: value for key, value in found.items() if value is not None}
    own |= FIXED.get(kind, {})
    for make in MADE.get(kind, ()):
        own |= make(model, settings)
    return own


# -- by other names -------------------------------------------------------------------------------

USED = "num_experts_per_tok=expert_used_count "
EXPERTS = USED + "num_experts=expert_count "
LOCAL_EXPERTS = USED + "num_local_experts=expert_count "
GROUPS = "n_group=expert_group_count topk_group=expert_group_used_count "
WEIGHTS = "routed_scaling_factor=expert_weights_scale norm_topk_prob=expert_weights_norm "
ROUTED = (
    f"{USED}{GROUPS}{WEIGHTS}n_routed_experts=expert_count n_shared_experts=expert_shared_count "
    "first_k_dense_replace=leading_dense_block_count "
)
EPS = "attention.layer_norm_epsilon"
WINDOW = "sliding_window=attention.sliding_window "
SCALES = (
    "attention_multiplier=attention.scale embedding_multiplier=embedding_scale "
    "residual_multiplier=residual_scale logits_scaling=logit_scale "
)
SCAN = (
    "mamba_n_heads=ssm.time_step_rank mamba_n_groups=ssm.group_count mamba_d_state=ssm.state_size "
    "mamba_d_conv=ssm.conv_kernel "
)
DELTA = (
    "linear_num_key_heads=ssm.group_count linear_num_value_heads=ssm.time_step_rank "
    "linear_key_head_dim=ssm.state_size linear_conv_kernel_dim=ssm.conv_kernel "
)
LATENT = "q_lora_rank=attention.q_lora_rank kv_lora_rank=attention.kv_lora_rank "

NAMED = {
    "mixtral": LOCAL_EXPERTS,
    "qwen2_moe": EXPERTS,
    "qwen3_moe": EXPERTS,
    "qwen3_next": EXPERTS + DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": EXPERTS + DELTA,
    "gemma2": WINDOW,
    "gemma3_text": WINDOW + "final_logit_softcapping=final_logit_softcapping",
    "gemma4_text": WINDOW
    + "final_logit_softcapping=final_logit_softcapping head_dim=attention.key_length_swa "
    "global_head_dim=attention.key_length num_kv_shared_layers=attention.shared_kv_layers "
    "num_experts=expert_count top_k_experts=expert_used_count "
    "hidden_size_per_layer_input=embedding_length_per_layer_input",
    "phi": f"layer_norm_eps={EPS}",
    "phimoe": LOCAL_EXPERTS,
    "gpt_oss": LOCAL_EXPERTS + WINDOW,
    "glm4_moe": ROUTED,
    "deepseek_v2": ROUTED + LATENT,
    "deepseek_v3": ROUTED + LATENT,
    "granite": SCALES,
    "granitemoeshared": SCALES + LOCAL_EXPERTS,
    "granitemoehybrid": SCALES + LOCAL_EXPERTS + SCAN,
    "falcon_h1": SCAN + "mamba_d_ssm=ssm.inner_size",
    "nemotron_h": ROUTED
    + "layer_norm_epsilon=attention.layer_norm_rms_epsilon mamba_num_heads=ssm.time_step_rank "
    "n_groups=ssm.group_count ssm_state_size=ssm.state_size conv_kernel=ssm.conv_kernel "
    "moe_latent_size=moe_latent_size",
    "lfm2": "norm_eps=attention.layer_norm_rms_epsilon conv_L_cache=shortconv.l_cache",
    "lfm2_moe": EXPERTS
    + "norm_eps=attention.layer_norm_rms_epsilon conv_L_cache=shortconv.l_cache "
    "num_dense_layers=leading_dense_block_count",
    "jamba": EXPERTS
    + "mamba_d_state=ssm.state_size mamba_d_conv=ssm.conv_kernel mamba_dt_rank=ssm.time_step_rank",
    "olmo": "clip_qkv=attention.clamp_kqv",
    "olmo3": WINDOW,
    "olmoe": EXPERTS + "clip_qkv=attention.clamp_kqv",
    "cohere": f"layer_norm_eps={EPS} logit_scale=logit_scale",
    "cohere2": f"layer_norm_eps={EPS} logit_scale=logit_scale " + WINDOW,
    "starcoder2": f"norm_epsilon={EPS}",
    "stablelm": f"layer_norm_eps={EPS} use_parallel_residual=use_parallel_residual",
    "exaone4": WINDOW,
    "exaone_moe": EXPERTS + GROUPS + WEIGHTS + WINDOW + "num_shared_experts=expert_shared_count",
    "nemotron": f"norm_eps={EPS}",
    "ernie4_5_moe": "moe_num_experts=expert_count moe_k=expert_used_count "
    "moe_num_shared_experts=expert_shared_count moe_layer_interval=interleave_moe_layer_step "
    "moe_layer_start_index=leading_dense_block_count",
    "hunyuan_v1_moe": "num_experts=expert_count moe_topk=expert_used_count",
    "minimax_m2": LOCAL_EXPERTS + "rotary_dim=rope.dimension_count",
    "dots1": ROUTED,
}
"""Words of the form SETTING=KEY; a key that a file lacks leaves the class its default."""

GELU_TANH = {"hidden_activation": "gelu_pytorch_tanh"}
FIXED: dict[str, Settings] = {
    "qwen2_moe": {"norm_topk_prob": False},
    "qwen3_moe": {"norm_topk_prob": True},
    "gemma": GELU_TANH,
    "gemma4_text": GELU_TANH,
    "phi3": {"pad_token_id": None},
    "gpt_oss": {"attention_bias": True},
    "falcon_h1": {"mamba_norm_before_gate": False},  # Multipliers are in the weights.
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "olmoe": {"norm_topk_prob": False},
    "smollm3": {"use_sliding_window": False},
    "starcoder2": {"sliding_window": None},
}
"""Settings with one value for all models of a type."""


Make = Callable[[GgufModel, Settings], Settings]
MADE: dict[str, tuple[Make, ...]] = {
    "qwen2_moe": (out.expert_widths,),
    "qwen3_moe": (out.expert_widths,),
    "qwen3_next": (out.expert_widths, out.delta),
    "qwen3_5_text": (out.delta, out.sections),
    "qwen3_5_moe_text": (out.expert_widths, out.delta, out.sections),
    "gemma2": (out.gemma2,),
    "gemma3_text": (out.gemma3,),
    "gemma4_text": (out.gemma4,),
    "phi": (out.biases,),
    "phi3": (out.phi3,),
    "phimoe": (out.phi3, out.biases),
    "gpt_oss": (out.gpt_oss,),
    "glm4_moe": (out.expert_widths, out.biases),
    "deepseek_v2": (out.expert_widths, out.latent, out.deepseek_v2),
    "deepseek_v3": (out.expert_widths, out.latent),
    "granitemoeshared": (out.shared_mlp,),
    "granitemoehybrid": (out.shared_mlp, out.granite_hybrid),
    "falcon_h1": (out.falcon_h1,),
    "nemotron_h": (out.nemotron_h,),
    "lfm2": (out.lfm2,),
    "lfm2_moe": (out.lfm2, out.expert_widths),
    "jamba": (out.jamba,),
    "olmo3": (out.windows,),
    "cohere": (out.biases,),
    "cohere2": (out.windows,),
    "starcoder2": (out.biases,),
    "stablelm": (out.biases,),
    "exaone4": (out.windows,),
    "exaone_moe": (out.windows, out.expert_widths, out.exaone_moe),
    "seed_oss": (out.biases,),
    "ernie4_5": (out.biases,),
    "ernie4_5_moe": (out.expert_widths, out.biases, out.ernie_moe),
    "hunyuan_v1_moe": (out.hunyuan_moe,),
    "dots1": (out.expert_widths,),
    "ministral3": (out.ministral,),
}
"""What must be worked out, by model type."""
