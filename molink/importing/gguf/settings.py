"""Settings of single architectures, beside sizes that all have.

A table of words by the library's model type, and functions for what no word can say. Sizes come
from the matrices themselves where metadata may lack them, kinds of layers from the parts that each
has.
"""

import json
from collections.abc import Callable
from typing import Any

from molink.errors import UnsupportedModelError
from molink.importing.gguf.metadata import WITH_CONFIG, GgufModel
from molink.importing.gguf.rope import rope_parameters
from molink.json_object import JsonObject

FULL, SLIDING = "full_attention", "sliding_attention"

LOCAL_THETA = 10_000.0
"""Base of rotary embeddings in layers with windows."""


def architecture_settings(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Settings that a model type has beside its sizes, or in place of them."""
    kind = settings["model_type"]
    own: JsonObject = {}
    for word in SAID.get(kind, "").split():
        setting, _, said = word.partition("=")
        what, colon, default = said.partition(":")
        value = _value(model, what, required=not colon) if what else None
        if value is None and default:
            own[setting] = json.loads(default)
        elif value is not None:
            own[setting] = value
    for make, kinds in MADE.items():
        own |= make(model, settings) if kind in kinds.split() else {}
    return own


def _value(model: GgufModel, what: str, *, required: bool) -> Any:
    """The value of one word; None where the file has none."""
    names = what[1:].split("|")
    match what[0]:
        case "?":
            return any(model.has(part) or part in model.tensors for part in names)
        case "@":
            return model.kinds(*names)
        case "#":
            return model.inner(*names) if required else model.found_inner(*names)
    if "/" in what:
        whole, part = map(model.number, what.split("/"))
        return max(1, whole // part)
    return model.scalar(what)


# -- what words say -------------------------------------------------------------------------------

USED = "num_experts_per_tok=expert_used_count "
EXPERTS = USED + "num_experts=expert_count "
LOCAL_EXPERTS = USED + "num_local_experts=expert_count "
WIDTH = "moe_intermediate_size=#ffn_down_exps "
SHARED_WIDTH = WIDTH + "shared_expert_intermediate_size=#ffn_down_shexp "
GROUPS = "n_group=expert_group_count topk_group=expert_group_used_count "
WEIGHTS = "routed_scaling_factor=expert_weights_scale norm_topk_prob=expert_weights_norm "
COUNTS = (
    "n_routed_experts=expert_count n_shared_experts=expert_shared_count "
    "first_k_dense_replace=leading_dense_block_count "
)
ROUTED = USED + GROUPS + WEIGHTS + COUNTS
EPS, RMS_EPS = "attention.layer_norm_epsilon ", "attention.layer_norm_rms_epsilon "
WINDOW = "sliding_window=attention.sliding_window "
SOFTCAP = "final_logit_softcapping=final_logit_softcapping"
GELU_TANH = 'hidden_activation=:"gelu_pytorch_tanh" '
CLIPPED = "clip_qkv=attention.clamp_kqv "
SCALES = (
    "attention_multiplier=attention.scale embedding_multiplier=embedding_scale "
    "residual_multiplier=residual_scale logits_scaling=logit_scale "
)
SHARED_MLP = "shared_intermediate_size=#ffn_down_shexp|ffn_down:0 "
JAMBA_SCAN = "mamba_d_state=ssm.state_size mamba_d_conv=ssm.conv_kernel "
EXPAND = "mamba_expand=ssm.inner_size/embedding_length "
SCAN = JAMBA_SCAN + (
    "mamba_n_heads=ssm.time_step_rank mamba_n_groups=ssm.group_count "
    "mamba_d_head=ssm.inner_size/ssm.time_step_rank mamba_conv_bias=?ssm_conv1d.bias "
)
DELTA = (
    "linear_num_key_heads=ssm.group_count linear_num_value_heads=ssm.time_step_rank "
    "linear_key_head_dim=ssm.state_size linear_conv_kernel_dim=ssm.conv_kernel "
    "linear_value_head_dim=ssm.inner_size/ssm.time_step_rank "
    "layer_types=@ssm_a|linear_attention|full_attention "
)
LATENT = "q_lora_rank=attention.q_lora_rank:null kv_lora_rank=attention.kv_lora_rank "
LFM2 = (
    f"norm_eps={RMS_EPS}conv_L_cache=shortconv.l_cache conv_bias=?shortconv.conv.bias "
    "layer_types=@attn_q.weight|full_attention|conv "
)
BIASES = (
    "use_bias=?attn_q.bias|attn_qkv.bias use_qkv_bias=?attn_q.bias|attn_qkv.bias "
    "attention_out_bias=?attn_output.bias lm_head_bias=?output.bias "
    "use_qk_norm=?attn_q_norm.weight qk_layernorm=?attn_q_norm.weight "
)
"""Biases and norms of heads, under the names of several classes."""

SAID = {
    "mixtral": LOCAL_EXPERTS,
    "qwen2_moe": EXPERTS + SHARED_WIDTH + "norm_topk_prob=:false",
    "qwen3_moe": EXPERTS + WIDTH + "norm_topk_prob=:true",
    "qwen3_next": EXPERTS + SHARED_WIDTH + DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": EXPERTS + SHARED_WIDTH + DELTA,
    "gemma": GELU_TANH,
    "gemma2": f"{WINDOW}{SOFTCAP}:30.0 attn_logit_softcapping=attn_logit_softcapping:50.0",
    "gemma3_text": f"{WINDOW}{SOFTCAP} attn_logit_softcapping=:null",
    "gemma4_text": f"{WINDOW}{GELU_TANH}{SOFTCAP} head_dim=attention.key_length_swa "
    "global_head_dim=attention.key_length num_kv_shared_layers=attention.shared_kv_layers "
    "num_experts=expert_count top_k_experts=expert_used_count "
    "enable_moe_block=?ffn_down_exps.weight moe_intermediate_size=#ffn_down_exps: "
    "hidden_size_per_layer_input=embedding_length_per_layer_input:0",
    "phi": f"layer_norm_eps={EPS}{BIASES}",
    "phi3": "pad_token_id=:null",
    "phimoe": LOCAL_EXPERTS + BIASES,
    "gpt_oss": LOCAL_EXPERTS + WINDOW + "attention_bias=:true",
    "glm4_moe": ROUTED + WIDTH + BIASES,
    "deepseek_v2": ROUTED + LATENT + WIDTH,
    "deepseek_v3": ROUTED + LATENT + WIDTH,
    "granite": SCALES,
    "granitemoeshared": SCALES + LOCAL_EXPERTS + SHARED_MLP,
    "granitemoehybrid": f"{SCALES}{SHARED_MLP}{SCAN}{EXPAND}num_local_experts=expert_count:0 "
    "num_experts_per_tok=expert_used_count:0 layer_types=@ssm_a|mamba|attention",
    "falcon_h1": f"{SCAN}mamba_d_ssm=ssm.inner_size mamba_rms_norm=?ssm_norm.weight "
    "projectors_bias=?attn_output.bias|ssm_out.bias mamba_norm_before_gate=:false "
    "mlp_multipliers=:[1.0,1.0] ssm_multipliers=:[1.0,1.0,1.0,1.0,1.0]",  # They are in the weights.
    "nemotron_h": f"{USED}{WEIGHTS}{COUNTS}layer_norm_epsilon={RMS_EPS}"
    "mamba_num_heads=ssm.time_step_rank mamba_head_dim=ssm.inner_size/ssm.time_step_rank "
    "n_groups=ssm.group_count ssm_state_size=ssm.state_size conv_kernel=ssm.conv_kernel "
    "expand=ssm.inner_size/embedding_length use_conv_bias=?ssm_conv1d.bias mlp_bias=?ffn_up.bias "
    "moe_latent_size=moe_latent_size moe_intermediate_size=#ffn_down_exps: "
    "moe_shared_expert_intermediate_size=#ffn_down_shexp: "
    "n_group=expert_group_count:1 topk_group=expert_group_used_count:1",
    "lfm2": LFM2 + "block_auto_adjust_ff_dim=:false",
    "lfm2_moe": LFM2 + EXPERTS + WIDTH + "num_dense_layers=leading_dense_block_count",
    "jamba": f"{JAMBA_SCAN}{EXPAND}{USED}num_experts=expert_count:1 "
    "mamba_dt_rank=ssm.time_step_rank use_mamba_kernels=:false",
    "olmo": CLIPPED,
    "olmo3": WINDOW,
    "olmoe": EXPERTS + CLIPPED + "norm_topk_prob=:false",
    "cohere": f"layer_norm_eps={EPS}logit_scale=logit_scale {BIASES}",
    "cohere2": f"layer_norm_eps={EPS}logit_scale=logit_scale {WINDOW}",
    "starcoder2": f"norm_epsilon={EPS}sliding_window=:null {BIASES}",
    "stablelm": f"layer_norm_eps={EPS}use_parallel_residual=use_parallel_residual {BIASES}",
    "smollm3": "use_sliding_window=:false",
    "exaone4": WINDOW,
    "exaone_moe": f"{EXPERTS}{GROUPS}{WEIGHTS}{WINDOW}{WIDTH}"
    "num_shared_experts=expert_shared_count mlp_layer_types=@ffn_gate_inp.weight|sparse|dense",
    "seed_oss": BIASES,
    "nemotron": f"norm_eps={EPS}",
    "ernie4_5": BIASES,
    "ernie4_5_moe": f"{WIDTH}{BIASES}moe_num_experts=expert_count moe_k=expert_used_count "
    "moe_num_shared_experts=expert_shared_count moe_layer_interval=interleave_moe_layer_step "
    "moe_layer_start_index=leading_dense_block_count",
    "hunyuan_v1_moe": "num_experts=expert_count moe_topk=expert_used_count",
    "minimax_m2": LOCAL_EXPERTS + "rotary_dim=rope.dimension_count",
    "dots1": ROUTED + WIDTH,
}
"""Settings by model type, as words of the form SETTING=WHAT:DEFAULT. WHAT is a key under the
architecture; KEY/KEY, a quotient; ?PART|PART, whether any layer has one of the parts; #PART|PART,
the inputs of the first matrix there is; @PART|KIND|OTHER, a kind for each layer, by whether it has
the part. DEFAULT is JSON; without it a key that a file lacks leaves the class its own."""


# -- what is worked out ---------------------------------------------------------------------------


def windows(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Settings of windows: as the file says, else in three of four layers; none without a size."""
    if model.find("attention.sliding_window") is None:
        return {"layer_types": [FULL] * model.layers, "sliding_window": None}
    pattern = model.each("attention.sliding_window_pattern")
    pattern = pattern or [(layer + 1) % 4 != 0 for layer in range(model.layers)]
    return {"layer_types": [SLIDING if one else FULL for one in pattern]}


LAYERS_OF_27B = {"gemma2": 46, "gemma3_text": 62}


def query_scale(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Number by whose root queries are divided: a head's size, but not in the models of 27B."""
    is_27b = settings["num_hidden_layers"] == LAYERS_OF_27B[settings["model_type"]]
    by_heads = settings["hidden_size"] // settings["num_attention_heads"]
    return {"query_pre_attn_scalar": by_heads if is_27b else settings["head_dim"]}


def gemma3(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Rotary embeddings of both kinds of layers."""
    whole = rope_parameters(model, settings["head_dim"])
    if model.find("rope.freq_base") is None:
        whole["rope_theta"] = 1_000_000.0
    return {"rope_parameters": {FULL: whole, SLIDING: _local(model)}}


def _local(model: GgufModel) -> JsonObject:
    theta = model.amount("rope.freq_base_swa", LOCAL_THETA)
    return {"rope_type": "default", "rope_theta": theta}


def gemma4(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Settings of Gemma 4: both kinds of layers, layers that share KV, and inputs of each layer."""
    kinds = windows(model, settings)["layer_types"]
    last = model.layers - 1 - kinds[::-1].index(FULL) if FULL in kinds else 0
    factors = model.floats("rope_freqs.weight")
    whole = {
        "rope_type": "proportional",
        "rope_theta": model.amount("rope.freq_base", 1_000_000.0),
        "partial_rotary_factor": 1.0 if factors is None else float((factors == 1).mean()),
    }
    attending = (one for one in range(model.layers) if model.has("attn_k.weight", one))
    own = {
        "layer_types": kinds,
        "rope_parameters": {FULL: whole, SLIDING: _local(model)},
        "vocab_size_per_layer_input": settings["vocab_size"],
        "attention_k_eq_v": not all(model.has("attn_v.weight", one) for one in attending),
    }
    widths = model.each("feed_forward_length")
    if widths is not None and len(set(widths)) > 1:
        own |= {"use_double_wide_mlp": True, "intermediate_size": widths[0]}
    if (counts := model.each("attention.head_count_kv")) is not None:
        own |= {"num_key_value_heads": counts[0], "num_global_key_value_heads": counts[last]}
    return own


def phi3(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Rotary embedding with factors for short and for long texts."""
    size, length = settings["head_dim"], settings["max_position_embeddings"]
    original = model.find("rope.scaling.original_context_length") or length
    rope: JsonObject = {
        "rope_type": "default",
        "rope_theta": model.amount("rope.freq_base", 10000.0),
        "partial_rotary_factor": model.count("rope.dimension_count", size) / size,
    }
    long, short = (model.floats(f"rope_factors_{kind}.weight") for kind in ("long", "short"))
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
    return {
        "rope_parameters": rope,
        "original_max_position_embeddings": original,
        "sliding_window": model.find("attention.sliding_window") or None,
    }


def _rope(model: GgufModel, size: int, **more: Any) -> JsonObject:
    """A rotary embedding of the usual kind with some settings of its own; None: it lacks one."""
    given = {name: value for name, value in more.items() if value is not None}
    return {"rope_parameters": rope_parameters(model, size) | given}


def gpt_oss(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Rotary embedding whose ramp is not cut to whole numbers."""
    is_yarn = model.find("rope.scaling.type") == "yarn"
    return _rope(model, settings["head_dim"], truncate=False if is_yarn else None)


def sections(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Rotary embedding of pictures' coordinates, all equal in text."""
    three = model.header.array(f"{model.name}.rope.dimension_sections") or [11, 11, 10]
    return _rope(model, settings["head_dim"], mrope_section=three[:3], mrope_interleaved=True)


def ministral(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Rotary embedding with the scale of queries of long texts."""
    log = model.scalar("rope.scaling.yarn_log_multiplier")
    own = {"llama_4_scaling_beta": model.scalar("attention.temperature_scale")}
    return _rope(model, settings["head_dim"], mscale=log, mscale_all_dim=log, **own)


def latent(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Parts of a head in latent attention, which older files name otherwise; of experts, whether
    they are chosen among all, or among the best groups."""
    rotary = model.number("rope.dimension_count")
    ending = "" if model.find("attention.key_length_mla") is None else "_mla"
    log = model.amount("rope.scaling.yarn_log_multiplier", 0.0) * 10 or None
    is_grouped = (model.scalar("expert_group_count") or 1) > 1
    return _rope(model, rotary, mscale=log, mscale_all_dim=log) | {
        "head_dim": rotary,
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": model.number(f"attention.key_length{ending}") - rotary,
        "v_head_dim": model.number(f"attention.value_length{ending}"),
        "num_key_value_heads": settings["num_attention_heads"],
        "topk_method": "group_limited_greedy" if is_grouped else "greedy",
    }


def granite_positions(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Kind of positions of Granite's heads: rotary ones, or none."""
    rotates = model.find("rope.scaling.finetuned") is not False
    return {"position_embedding_type": "rope" if rotates else "nope"}


NEMOTRON_KINDS = {"ssm_a": "mamba", "attn_q.weight": "attention", "ffn_gate_inp.weight": "moe"}


def nemotron_h(model: GgufModel, settings: JsonObject) -> JsonObject:
    """The one thing that each layer does."""
    kinds = [
        next((kind for part, kind in NEMOTRON_KINDS.items() if model.has(part, layer)), "mlp")
        for layer in range(model.layers)
    ]
    return {"layers_block_type": kinds}


def jamba(model: GgufModel, settings: JsonObject) -> JsonObject:
    """Periods of layers with attention and with experts."""
    own: JsonObject = {}
    for name, part in {"attn": "attn_q.weight", "expert": "ffn_gate_inp.weight"}.items():
        found = [layer for layer in range(model.layers) if model.has(part, layer)]
        period = found[1] - found[0] if len(found) > 1 else model.layers
        own |= {f"{name}_layer_offset": found[0], f"{name}_layer_period": period} if found else {}
    return own


MADE: dict[Callable[[GgufModel, JsonObject], JsonObject], str] = {
    sections: "qwen3_5_text qwen3_5_moe_text",
    query_scale: "gemma2 gemma3_text",
    gemma3: "gemma3_text",
    gemma4: "gemma4_text",
    phi3: "phi3 phimoe",
    gpt_oss: "gpt_oss",
    latent: "deepseek_v2 deepseek_v3",
    granite_positions: "granitemoehybrid",
    nemotron_h: "nemotron_h",
    jamba: "jamba",
    windows: "olmo3 cohere2 exaone4 exaone_moe",
    ministral: "ministral3",
}
"""Functions that work settings out, and the model types that have them."""
