"""Settings of single architectures that must be worked out of a file.

Sizes come from the matrices themselves where metadata may lack them, kinds of layers from the parts
that each has.
"""

from typing import Any

from molink.errors import UnsupportedModelError
from molink.importing.gguf.metadata import WITH_CONFIG, GgufModel
from molink.importing.gguf.rope import rope_parameters

__all__ = [
    "biases",
    "deepseek_v2",
    "delta",
    "ernie_moe",
    "exaone_moe",
    "expert_widths",
    "falcon_h1",
    "gemma2",
    "gemma3",
    "gemma4",
    "gpt_oss",
    "granite_hybrid",
    "hunyuan_moe",
    "jamba",
    "latent",
    "lfm2",
    "ministral",
    "nemotron_h",
    "phi3",
    "sections",
    "shared_mlp",
    "windows",
]

Settings = dict[str, Any]

FULL, SLIDING, RECURRENT = "full_attention", "sliding_attention", "linear_attention"

LOCAL_THETA = 10_000.0
"""Base of rotary embeddings in layers with windows."""


def expert_widths(model: GgufModel, settings: Settings) -> Settings:
    """Rows of each expert, and of the one that sees every token."""
    shared = model.has("ffn_down_shexp.weight")
    widths = {"moe_intermediate_size": model.inner("ffn_down_exps")}
    return widths | (
        {"shared_expert_intermediate_size": model.inner("ffn_down_shexp")} if shared else {}
    )


def windows(model: GgufModel, settings: Settings) -> Settings:
    """Which layers have windows: as the file says, else three of four; none without a size."""
    if model.find("attention.sliding_window") is None:
        return {"layer_types": [FULL] * model.layers, "sliding_window": None}
    pattern = model.each("attention.sliding_window_pattern")
    pattern = pattern or [(layer + 1) % 4 != 0 for layer in range(model.layers)]
    return {"layer_types": [SLIDING if one else FULL for one in pattern]}


def gpt_oss(model: GgufModel, settings: Settings) -> Settings:
    """Rotary embedding whose ramp is not cut to whole numbers."""
    rope = rope_parameters(model, settings["head_dim"])
    return {"rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == "yarn" else {})}


def gemma2(model: GgufModel, settings: Settings) -> Settings:
    """Scale of queries, and the caps on scores and logits."""
    return {
        "query_pre_attn_scalar": _gemma_scalar(settings, layers_of_27b=46),
        "attn_logit_softcapping": model.amount("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": model.amount("final_logit_softcapping", 30.0),
    }


def gemma3(model: GgufModel, settings: Settings) -> Settings:
    """Rotary embeddings of both kinds of layers, and the scale of queries."""
    whole = rope_parameters(model, settings["head_dim"])
    if model.find("rope.freq_base") is None:
        whole["rope_theta"] = 1_000_000.0
    local = {"rope_type": "default", "rope_theta": model.amount("rope.freq_base_swa", LOCAL_THETA)}
    return {
        "rope_parameters": {FULL: whole, SLIDING: local},
        "query_pre_attn_scalar": _gemma_scalar(settings, layers_of_27b=62),
        "attn_logit_softcapping": None,
    }


def _gemma_scalar(settings: Settings, layers_of_27b: int) -> int:
    """What queries are divided by the root of: a head's size, but not in the models of 27B."""
    if settings["num_hidden_layers"] == layers_of_27b:
        return int(settings["hidden_size"]) // int(settings["num_attention_heads"])
    return int(settings["head_dim"])


def gemma4(model: GgufModel, settings: Settings) -> Settings:
    """Both kinds of layers, layers that share KV, inputs of each layer, and experts."""
    kinds = windows(model, settings)["layer_types"]
    last = model.layers - 1 - kinds[::-1].index(FULL) if FULL in kinds else 0
    factors = model.floats("rope_freqs.weight")
    rotated = 1.0 if factors is None else float((factors == 1).mean())
    theta = model.amount("rope.freq_base", 1_000_000.0)
    local = model.amount("rope.freq_base_swa", LOCAL_THETA)
    own = {
        "layer_types": kinds,
        "rope_parameters": {
            FULL: {
                "rope_type": "proportional",
                "rope_theta": theta,
                "partial_rotary_factor": rotated,
            },
            SLIDING: {"rope_type": "default", "rope_theta": local},
        },
        "hidden_size_per_layer_input": model.find("embedding_length_per_layer_input") or 0,
        "vocab_size_per_layer_input": settings["vocab_size"],
        "enable_moe_block": bool(model.find("expert_count")),
    }
    widths = model.each("feed_forward_length")
    if widths is not None and len(set(widths)) > 1:
        own |= {"use_double_wide_mlp": True, "intermediate_size": widths[0]}
    if (counts := model.each("attention.head_count_kv")) is not None:
        own["num_key_value_heads"] = counts[0]
        own["num_global_key_value_heads"] = counts[last]
    own["attention_k_eq_v"] = not all(
        model.has("attn_v.weight", layer)
        for layer in range(model.layers)
        if model.has("attn_k.weight", layer)
    )
    if model.has("ffn_down_exps.weight"):
        own["moe_intermediate_size"] = model.inner("ffn_down_exps")
    return own


def phi3(model: GgufModel, settings: Settings) -> Settings:
    """Rotary embedding with factors for short and for long texts."""
    length = settings["max_position_embeddings"]
    rope: Settings = {"rope_type": "default", "rope_theta": model.amount("rope.freq_base", 10000.0)}
    long, short = (model.floats(f"rope_factors_{kind}.weight") for kind in ("long", "short"))
    original = model.find("rope.scaling.original_context_length") or length
    if long is not None and short is not None:
        if settings["model_type"] == "phimoe":
            raise UnsupportedModelError(
                f"{model.header.path} lacks the scales of its long rotary embedding: {WITH_CONFIG}"
            )
        rope |= {
            "rope_type": "longrope",
            "long_factor": long.tolist(),
            "short_factor": short.tolist(),
            "original_max_position_embeddings": original,
        }
    size = settings["head_dim"]
    rope["partial_rotary_factor"] = model.count("rope.dimension_count", size) / size
    return {
        "rope_parameters": rope,
        "original_max_position_embeddings": original,
        "sliding_window": model.find("attention.sliding_window") or None,
    }


def delta(model: GgufModel, settings: Settings) -> Settings:
    """Sizes of the delta rule, and which layers compute it."""
    heads = model.number("ssm.time_step_rank")
    return {
        "linear_value_head_dim": model.number("ssm.inner_size") // heads,
        "layer_types": model.kinds("ssm_a", RECURRENT, FULL),
    }


def sections(model: GgufModel, settings: Settings) -> Settings:
    """Rotary embedding of pictures' coordinates, all equal in text."""
    rope = rope_parameters(model, settings["head_dim"])
    sections = model.header.array(f"{model.name}.rope.dimension_sections") or [11, 11, 10]
    return {"rope_parameters": rope | {"mrope_section": sections[:3], "mrope_interleaved": True}}


def latent(model: GgufModel, settings: Settings) -> Settings:
    """Parts of a head in latent attention; older files name them otherwise."""
    rotary = model.number("rope.dimension_count")
    old = model.find("attention.key_length_mla") is None
    ending = "" if old else "_mla"
    rope = rope_parameters(model, rotary)
    if log := model.find("rope.scaling.yarn_log_multiplier"):
        rope |= {"mscale": log * 10, "mscale_all_dim": log * 10}
    return {
        "rope_parameters": rope,
        "head_dim": rotary,
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": model.number(f"attention.key_length{ending}") - rotary,
        "v_head_dim": model.number(f"attention.value_length{ending}"),
        "num_key_value_heads": settings["num_attention_heads"],
        "q_lora_rank": model.find("attention.q_lora_rank"),
    }


def deepseek_v2(model: GgufModel, settings: Settings) -> Settings:
    """How experts are chosen: among all, or among the best groups."""
    grouped = (model.find("expert_group_count") or 1) > 1
    return {"topk_method": "group_limited_greedy" if grouped else "greedy"}


def shared_mlp(model: GgufModel, settings: Settings) -> Settings:
    """Rows of the part that sees every token, and of experts."""
    for part in ("ffn_down_shexp", "ffn_down"):
        if model.has(f"{part}.weight"):
            width = {"shared_intermediate_size": model.inner(part)}
            routed = model.has("ffn_down_exps.weight")
            return width | ({"intermediate_size": model.inner("ffn_down_exps")} if routed else {})
    return {"shared_intermediate_size": 0}


def granite_hybrid(model: GgufModel, settings: Settings) -> Settings:
    """Which layers scan, and the sizes of their heads."""
    inner = model.number("ssm.inner_size")
    rotates = model.find("rope.scaling.finetuned") is not False
    return {
        "layer_types": model.kinds("ssm_a", "mamba", "attention"),
        "mamba_d_head": inner // model.number("ssm.time_step_rank"),
        "mamba_expand": inner // settings["hidden_size"],
        "mamba_conv_bias": model.has("ssm_conv1d.bias"),
        "position_embedding_type": "rope" if rotates else "nope",
        "num_local_experts": model.find("expert_count") or 0,
        "num_experts_per_tok": model.find("expert_used_count") or 0,
    }


def falcon_h1(model: GgufModel, settings: Settings) -> Settings:
    """Sizes of scans; multipliers are in the weights of a file."""
    return {
        "mamba_d_head": model.number("ssm.inner_size") // model.number("ssm.time_step_rank"),
        "mamba_rms_norm": model.has("ssm_norm.weight"),
        "mamba_conv_bias": model.has("ssm_conv1d.bias"),
        "projectors_bias": model.has("attn_output.bias") or model.has("ssm_out.bias"),
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
    }


NEMOTRON_KINDS = {"ssm_a": "mamba", "attn_q.weight": "attention", "ffn_gate_inp.weight": "moe"}


def nemotron_h(model: GgufModel, settings: Settings) -> Settings:
    """The one thing that each layer does, and sizes of scans and experts."""
    kinds = [
        next((kind for part, kind in NEMOTRON_KINDS.items() if model.has(part, layer)), "mlp")
        for layer in range(model.layers)
    ]
    widths: Settings = {}
    if "moe" in kinds:
        shared = "moe_shared_expert_intermediate_size"
        widths = {shared: model.inner("ffn_down_shexp")} | expert_widths(model, settings)
    return widths | {
        "layers_block_type": kinds,
        "mamba_head_dim": model.number("ssm.inner_size") // model.number("ssm.time_step_rank"),
        "expand": max(1, model.number("ssm.inner_size") // settings["hidden_size"]),
        "use_conv_bias": model.has("ssm_conv1d.bias"),
        "mlp_bias": model.has("ffn_up.bias"),
        "n_group": model.find("expert_group_count") or 1,
        "topk_group": model.find("expert_group_used_count") or 1,
    }


def lfm2(model: GgufModel, settings: Settings) -> Settings:
    """Which layers are convolutions."""
    return {
        "layer_types": model.kinds("attn_q.weight", FULL, "conv"),
        "conv_bias": model.has("shortconv.conv.bias"),
    }


def jamba(model: GgufModel, settings: Settings) -> Settings:
    """Periods of layers with attention and with experts."""
    own: Settings = {"mamba_expand": model.number("ssm.inner_size") // settings["hidden_size"]}
    for name, part in {"attn": "attn_q.weight", "expert": "ffn_gate_inp.weight"}.items():
        found = [layer for layer in range(model.layers) if model.has(part, layer)]
        period = found[1] - found[0] if len(found) > 1 else model.layers
        own |= {f"{name}_layer_offset": found[0], f"{name}_layer_period": period} if found else {}
    return own | {"num_experts": model.find("expert_count") or 1, "use_mamba_kernels": False}


def biases(model: GgufModel, settings: Settings) -> Settings:
    """Biases and norms of heads, under the names of several classes."""
    return {
        "use_bias": model.has_biases,
        "use_qkv_bias": model.has_biases,
        "attention_out_bias": model.has("attn_output.bias"),
        "lm_head_bias": "output.bias" in model.tensors,
        "use_qk_norm": model.has("attn_q_norm.weight"),
        "qk_layernorm": model.has("attn_q_norm.weight"),
    }


def ministral(model: GgufModel, settings: Settings) -> Settings:
    """Rotary embedding with the scale of queries of long texts."""
    rope = rope_parameters(model, settings["head_dim"])
    log = model.find("rope.scaling.yarn_log_multiplier")
    beta = model.find("attention.temperature_scale")
    more = {"mscale": log, "mscale_all_dim": log, "llama_4_scaling_beta": beta}
    return {"rope_parameters": rope | {key: one for key, one in more.items() if one is not None}}


def ernie_moe(model: GgufModel, settings: Settings) -> Settings:
    """The last layer with experts."""
    return {"moe_layer_end_index": model.layers - 1}


def hunyuan_moe(model: GgufModel, settings: Settings) -> Settings:
    """Sizes of experts, for each layer."""
    width, chosen = model.inner("ffn_down_exps"), model.number("expert_used_count")
    return {
        "intermediate_size": width,
        "moe_intermediate_size": [width] * model.layers,
        "moe_topk": [chosen] * model.layers,
    }


def exaone_moe(model: GgufModel, settings: Settings) -> Settings:
    """Which layers have experts."""
    return {"mlp_layer_types": model.kinds("ffn_gate_inp.weight", "sparse", "dense")}
