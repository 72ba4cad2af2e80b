"""Architectures of GGUF files: their names of a model's layers, and the library's.

A file names the parts of a layer by what they do (`blk.3.ffn_up`), the library by where they are in
its class. Some are also stored otherwise: see `changes`. Names of the format's own package are
no help: it maps many names of the library to one of the format's, and this is the way back.
"""

from dataclasses import dataclass, field, replace

from molink.importing.gguf import orders
from molink.importing.gguf.changes import (
    Change,
    convolution,
    copied,
    experts_in_turns,
    flat,
    fused_experts,
    fused_rows,
    latent_expansion,
    logarithms,
    moved,
    moved_columns,
    of_each,
    one_less,
    split_rows,
)
from molink.importing.gguf.metadata import GgufModel

Parts = dict[str, str]
Changes = dict[str, Change]


def _names(text: str) -> Parts:
    """Parts and paths from words of the form PART=PATH."""
    pairs = (word.split("=") for word in text.split())
    return {part: path for part, path in pairs}


def _feed_forward(path: str, names: str = "gate_proj up_proj down_proj") -> Parts:
    """The matrices of a plain layer, and those of each expert."""
    parts = dict(zip(("ffn_gate", "ffn_up", "ffn_down"), names.split(), strict=True))
    experts = {f"{part}_exps": f"{path}.experts.{{}}.{one}" for part, one in parts.items()}
    return {part: f"{path}.{one}" for part, one in parts.items()} | experts


def _shared(path: str) -> Parts:
    """Names of experts that see every token."""
    return {f"ffn_{one}_shexp": f"{path}.{one}_proj" for one in ("gate", "up", "down")}


# -- names ----------------------------------------------------------------------------------------

USUAL = {
    **_names(
        "attn_q=self_attn.q_proj attn_k=self_attn.k_proj attn_v=self_attn.v_proj "
        "attn_output=self_attn.o_proj attn_norm=input_layernorm attn_q_norm=self_attn.q_norm "
        "attn_k_norm=self_attn.k_norm ffn_norm=post_attention_layernorm ffn_gate_inp=mlp.gate "
        "exp_probs_b.bias=mlp.gate.e_score_correction_bias"
    ),
    **_feed_forward("mlp"),
    **_shared("mlp.shared_experts"),
    **_names(
        "nextn.eh_proj=eh_proj nextn.enorm=enorm nextn.hnorm=hnorm nextn.shared_head_norm="
        "shared_head.norm nextn.embed_tokens= nextn.shared_head_head="
    ),
}
"""Paths of the parts of a layer in most classes; the last ones stand around a layer that drafts,
whose embeddings and output matrix are copies of the model's."""

AROUND = _names("token_embd=model.embed_tokens output_norm=model.norm output=lm_head")
"""Parts outside of layers."""

GATE_UP = _names("ffn_up=mlp.gate_up_proj")
QKV = _names("attn_qkv=self_attn.{}_proj")
POST_NORM = _names("post_attention_norm=post_attention_layernorm")
FOUR_NORMS = POST_NORM | _names(
    "ffn_norm=pre_feedforward_layernorm post_ffw_norm=post_feedforward_layernorm"
)
HUNYUAN = _names("attn_q_norm=self_attn.query_layernorm attn_k_norm=self_attn.key_layernorm")
SPARSE_MOE = _feed_forward("block_sparse_moe", "w1 w3 w2") | _names(
    "ffn_gate_inp=block_sparse_moe.gate exp_probs_b.bias=block_sparse_moe.e_score_correction_bias"
)
FUSED_MOE = _names(
    "ffn_gate_inp=block_sparse_moe.router.layer ffn_gate_exps=block_sparse_moe.input_linear "
    "ffn_up_exps= ffn_down_exps=block_sparse_moe.output_linear "
    "ffn_gate_shexp=shared_mlp.input_linear ffn_up_shexp= ffn_down_shexp=shared_mlp.output_linear"
)
GATED = _shared("mlp.shared_expert") | _names("ffn_gate_inp_shexp=mlp.shared_expert_gate")
LATENT = _names(
    "attn_q_a=self_attn.q_a_proj attn_q_a_norm=self_attn.q_a_layernorm "
    "attn_q_b=self_attn.q_b_proj attn_kv_a_mqa=self_attn.kv_a_proj_with_mqa "
    "attn_kv_a_norm=self_attn.kv_a_layernorm attn_kv_b=self_attn.kv_b_proj "
    "attn_k_b=self_attn.kv_b_proj attn_v_b="
)
DELTA = POST_NORM | _names(
    "attn_qkv=linear_attn.in_proj_qkv attn_gate=linear_attn.in_proj_z "
    "ssm_alpha=linear_attn.in_proj_a ssm_beta=linear_attn.in_proj_b ssm_ba=linear_attn.in_proj_ba "
    "ssm_conv1d=linear_attn.conv1d ssm_norm=linear_attn.norm ssm_out=linear_attn.out_proj "
    "ssm_a=linear_attn.A_log ssm_dt.bias=linear_attn.dt_bias"
)
MAMBA = _names(
    "ssm_in=mamba.in_proj ssm_conv1d=mamba.conv1d ssm_norm=mamba.norm ssm_out=mamba.out_proj "
    "ssm_a=mamba.A_log ssm_d=mamba.D ssm_dt.bias=mamba.dt_bias"
)
MIXER = {
    **{part: path.replace("mamba", "mixer") for part, path in MAMBA.items()},
    **{part: path.replace("mlp", "mixer") for part, path in USUAL.items()},
    **{f"attn_{one}": f"mixer.{one[0]}_proj" for one in ("q", "k", "v", "output")},
    **_names(
        "attn_norm=norm ffn_latent_down=mixer.fc1_latent_proj ffn_latent_up=mixer.fc2_latent_proj"
    ),
}
FEED_FORWARD = _feed_forward("feed_forward") | _names(
    "ffn_norm=pre_ff_layernorm.weight ffn_gate_inp=feed_forward.router"
)
JAMBA = FEED_FORWARD | _names(
    "ssm_x=mamba.x_proj ssm_dt=mamba.dt_proj ssm_dt.bias=mamba.dt_proj.bias "
    "ssm_dt_norm=mamba.dt_layernorm ssm_b_norm=mamba.b_layernorm ssm_c_norm=mamba.c_layernorm"
)
LFM2 = _feed_forward("feed_forward", "w1 w3 w2") | _names(
    "attn_output=self_attn.out_proj attn_q_norm=self_attn.q_layernorm "
    "attn_k_norm=self_attn.k_layernorm attn_norm=operator_norm ffn_norm=ffn_norm "
    "shortconv.conv=conv.conv shortconv.in_proj=conv.in_proj shortconv.out_proj=conv.out_proj "
    "ffn_gate_inp=feed_forward.gate exp_probs_b.bias=feed_forward.expert_bias"
)
GEMMA_4 = FOUR_NORMS | _names(
    "inp_gate=per_layer_input_gate proj=per_layer_projection post_norm=post_per_layer_input_norm "
    "post_ffw_norm_1=post_feedforward_layernorm_1 post_ffw_norm_2=post_feedforward_layernorm_2 "
    "pre_ffw_norm_2=pre_feedforward_layernorm_2 layer_output_scale.weight=layer_scalar "
    "ffn_gate_inp=router.proj ffn_gate_inp.scale=router.scale "
    "ffn_down_exps.scale=router.per_expert_scale ffn_gate_up_exps.weight=experts.gate_up_proj "
    "ffn_gate_exps.weight=experts.gate_up_proj ffn_up_exps.weight= "
    "ffn_down_exps.weight=experts.down_proj"
)
GPT_OSS = POST_NORM | _names(
    "attn_sinks.weight=self_attn.sinks ffn_gate_inp=mlp.router "
    "ffn_gate_exps.weight=mlp.experts.gate_up_proj ffn_up_exps= "
    "ffn_gate_exps.bias=mlp.experts.gate_up_proj_bias "
    "ffn_down_exps.weight=mlp.experts.down_proj ffn_down_exps.bias=mlp.experts.down_proj_bias"
)

# -- changes --------------------------------------------------------------------------------------

STACKS: Changes = dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), of_each)
ROTARY: Changes = STACKS | {"attn_q": moved(orders.rotary), "attn_k": moved(orders.rotary)}
NORMS = ("attn_norm", "ffn_norm", "output_norm", "attn_q_norm", "attn_k_norm")
DRAFT_NORMS = ("nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
ONE_ADDED: Changes = STACKS | dict.fromkeys(
    (f"{one}.weight" for one in (*NORMS, *DRAFT_NORMS, "post_attention_norm", "post_ffw_norm")),
    one_less,
)
FUSED: Changes = {
    **ROTARY,
    "ffn_gate_exps": fused_experts,
    "ffn_down_exps": copied,
    "ffn_gate_shexp": fused_rows("ffn_up_shexp"),
}
SCAN: Changes = {
    "ssm_a": logarithms(),
    "ssm_d": flat,
    "ssm_norm": flat,
    "ssm_conv1d.weight": convolution(),
}
BY_KEY: Changes = {
    "attn_qkv": moved(orders.channels_by_key),
    "ssm_conv1d.weight": convolution(orders.channels_by_key),
    "ssm_a": logarithms(orders.heads_by_key),
    "ssm_out": moved_columns(orders.heads_by_key),
} | dict.fromkeys(("attn_gate", "ssm_alpha", "ssm_beta", "ssm_dt.bias"), moved(orders.heads_by_key))
QKVZ: Changes = {
    "attn_qkv": fused_rows("attn_gate", orders.grouped_qkvz),
    "ssm_conv1d.weight": convolution(),
    "ssm_a": logarithms(),
}


def _qkv_rows(model: GgufModel) -> tuple[int, int, int]:
    size = model.find("attention.key_length") or model.number("embedding_length") // model.heads
    return model.heads * size, model.kv_heads * size, model.kv_heads * size


SPLIT: Changes = {"attn_qkv": split_rows("qkv", _qkv_rows)}

# -- architectures --------------------------------------------------------------------------------

PARALLEL = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
DENSE = (*PARALLEL, "ffn_norm")
SPARSE = (*PARALLEL[:5], "ffn_gate_inp", "ffn_up_exps", "ffn_down_exps")
NORMED_AFTER = ("post_attention_norm", "post_ffw_norm", *PARALLEL[1:])
MIXED = ("attn_norm",)


@dataclass(frozen=True, slots=True)
class Architecture:
    """How files of one architecture name and store what a class of the library holds."""

    model_type: str
    names: Parts = field(default_factory=dict)
    """Parts of a layer whose paths in the library's layer are not the usual ones; a part may be one
    tensor with its ending. "" where another part brings it along."""
    changes: Changes = field(default_factory=lambda: STACKS)
    """Changes to parts that are stored otherwise."""
    every: tuple[str, ...] = (*DENSE, "ffn_gate")
    """Parts that each layer has."""
    around: Parts = field(default_factory=lambda: AROUND)
    layers: str = "model.layers"
    """Path of the library's layers."""

    def name(self, tensor: str, layer: int | None = None) -> str | None:
        """The library's name for a tensor of a layer or outside; "" where another tensor brings it
        along, None where it is not known."""
        parts = self.around if layer is None else USUAL | self.names
        part, _, ending = tensor.rpartition(".")
        path = parts.get(tensor, parts.get(part))
        if not path:
            return path
        whole = tensor in parts or path.endswith(f".{ending}")
        path = path if whole else f"{path}.{ending}"
        return path if layer is None else f"{self.layers}.{layer}.{path}"

    def change(self, tensor: str) -> Change | None:
        """Change that is made to a tensor; None: it stays as it is."""
        return self.changes.get(tensor) or self.changes.get(tensor.rpartition(".")[0])


def _final(norm: str, more: str = "") -> Parts:
    return AROUND | {"output_norm": norm} | _names(more)


NEMOTRON_H = Architecture(
    "nemotron_h",
    MIXER,
    STACKS | SCAN,
    MIXED,
    _final("backbone.norm_f", "token_embd=backbone.embeddings"),
    "backbone.layers",
)
DEEPSEEK = Architecture(
    "deepseek_v3", LATENT, STACKS | {"attn_k_b": latent_expansion}, ("attn_norm", "ffn_norm")
)
LFM2_AROUND = _final("model.embedding_norm", "token_embd_norm=model.embedding_norm")
LFM2_CHANGES: Changes = STACKS | {"shortconv.conv.weight": convolution()}
GEMMA_4_AROUND = AROUND | _names(
    "per_layer_token_embd=model.embed_tokens_per_layer "
    "per_layer_model_proj=model.per_layer_model_projection "
    "per_layer_proj_norm=model.per_layer_projection_norm"
)
DELTA_EVERY = ("attn_norm", "post_attention_norm")
PHI_2 = _names("attn_output=self_attn.dense ffn_up=mlp.fc1 ffn_down=mlp.fc2")
GLM_4 = _names("post_attention_norm=post_self_attn_layernorm post_ffw_norm=post_mlp_layernorm")
STARCODER = _names("ffn_up=mlp.c_fc ffn_down=mlp.c_proj")
STABLELM = _names(
    "attn_q_norm=self_attn.q_layernorm.norms.{} attn_k_norm=self_attn.k_layernorm.norms.{}"
)
APERTUS = _names("attn_norm=attention_layernorm ffn_norm=feedforward_layernorm")
GRANITE_MLP = _names("ffn_gate=shared_mlp.input_linear ffn_up= ffn_down=shared_mlp.output_linear")
HUNYUAN_MOE = HUNYUAN | _shared("mlp.shared_mlp") | _names("ffn_gate_inp=mlp.gate.wg")
MOE_STATICS = _names("exp_probs_b.bias=mlp.moe_statics.e_score_correction_bias")
EXAONE_MOE = _names("exp_probs_b.bias=mlp.e_score_correction_bias")
QWEN_3_NEXT = DELTA | GATED | _names("attn_qkv=linear_attn.in_proj_qkvz attn_gate=")

ARCHITECTURES = {
    "llama": Architecture("llama", {}, ROTARY),
    "llama with experts": Architecture("mixtral", SPARSE_MOE, ROTARY, (*SPARSE, "ffn_norm")),
    "mistral3": Architecture("ministral3", {}, ROTARY),
    "qwen2": Architecture("qwen2"),
    "qwen2moe": Architecture("qwen2_moe", GATED, every=SPARSE),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": Architecture("qwen3_moe", every=(*SPARSE, "ffn_norm")),
    "qwen3next": Architecture("qwen3_next", QWEN_3_NEXT, ONE_ADDED | QKVZ, DELTA_EVERY),
    "qwen35": Architecture("qwen3_5_text", DELTA, ONE_ADDED | BY_KEY, DELTA_EVERY),
    "qwen35moe": Architecture("qwen3_5_moe_text", DELTA | GATED, ONE_ADDED | BY_KEY, DELTA_EVERY),
    "gemma": Architecture("gemma", {}, ONE_ADDED),
    "gemma2": Architecture("gemma2", FOUR_NORMS, ONE_ADDED, (*DENSE, "post_ffw_norm")),
    "gemma3": Architecture("gemma3_text", FOUR_NORMS, ONE_ADDED, (*DENSE, "post_ffw_norm")),
    "gemma4": Architecture(
        "gemma4_text", GEMMA_4, {"ffn_gate_exps": fused_experts}, MIXED, GEMMA_4_AROUND
    ),
    "phi2": Architecture("phi", PHI_2 | QKV, SPLIT, MIXED, _final("model.final_layernorm")),
    "phi3": Architecture(
        "phi3", GATE_UP | _names("attn_qkv=self_attn.qkv_proj"), every=("attn_qkv", *DENSE[4:])
    ),
    "phimoe": Architecture("phimoe", SPARSE_MOE, every=SPARSE),
    "gpt-oss": Architecture("gpt_oss", GPT_OSS, {"ffn_gate_exps": experts_in_turns}, SPARSE),
    "chatglm": Architecture("glm", GATE_UP | QKV, SPLIT, DENSE[4:]),
    "glm4": Architecture("glm4", GATE_UP | GLM_4, every=(*DENSE, *GLM_4)),
    "glm4moe": Architecture("glm4_moe", POST_NORM, every=(*PARALLEL[:5], *POST_NORM)),
    "deepseek2": DEEPSEEK,
    "deepseek2 without bias": replace(DEEPSEEK, model_type="deepseek_v2"),
    "granite": Architecture("granite", {}, ROTARY),
    "granitemoe": Architecture("granitemoeshared", FUSED_MOE, FUSED, SPARSE),
    "granitehybrid": Architecture(
        "granitemoehybrid",
        MAMBA | FUSED_MOE | GRANITE_MLP,
        {**FUSED, **SCAN, "ffn_gate": fused_rows("ffn_up")},
        ("attn_norm", "ffn_norm"),
    ),
    "falcon-h1": Architecture(
        "falcon_h1", MAMBA | FEED_FORWARD, SCAN, PARALLEL, _final("model.final_layernorm")
    ),
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "lfm2": Architecture("lfm2", LFM2, LFM2_CHANGES, MIXED, LFM2_AROUND),
    "lfm2moe": Architecture("lfm2_moe", LFM2, LFM2_CHANGES, MIXED, LFM2_AROUND),
    "jamba": Architecture(
        "jamba", MAMBA | JAMBA, STACKS | SCAN, MIXED, _final("model.final_layernorm")
    ),
    "olmo": Architecture("olmo", {}, ROTARY, PARALLEL[1:]),
    "olmo2": Architecture("olmo2", FOUR_NORMS, every=NORMED_AFTER),
    "olmo2 with windows": Architecture("olmo3", FOUR_NORMS, every=NORMED_AFTER),
    "olmoe": Architecture("olmoe", every=SPARSE),
    "command-r": Architecture("cohere", every=PARALLEL),
    "cohere2": Architecture("cohere2", every=PARALLEL),
    "starcoder2": Architecture("starcoder2", STARCODER, every=DENSE),
    "stablelm": Architecture(
        "stablelm", STABLELM, {"attn_q_norm": of_each, "attn_k_norm": of_each}, PARALLEL
    ),
    "smollm3": Architecture("smollm3", {}, ROTARY),
    "exaone4": Architecture("exaone4", FOUR_NORMS, every=NORMED_AFTER),
    "exaone-moe": Architecture("exaone_moe", EXAONE_MOE, every=PARALLEL[:5]),
    "seed_oss": Architecture("seed_oss", POST_NORM, every=PARALLEL),
    "apertus": Architecture("apertus", APERTUS, every=DENSE),
    "arcee": Architecture("arcee", {}, ROTARY, DENSE),
    "nemotron": Architecture("nemotron", {}, ONE_ADDED, DENSE),
    "ernie4_5": Architecture("ernie4_5"),
    "ernie4_5-moe": Architecture("ernie4_5_moe", MOE_STATICS, every=PARALLEL[:5]),
    "hunyuan-dense": Architecture("hunyuan_v1_dense", HUNYUAN),
    "hunyuan-moe": Architecture("hunyuan_v1_moe", HUNYUAN_MOE, every=SPARSE),
    "minimax-m2": Architecture("minimax_m2", SPARSE_MOE, every=SPARSE),
    "dots1": Architecture("dots1", every=PARALLEL[:5]),
}
"""Architectures by `general.architecture` of a file, and what else tells it apart; most of
Mistral's files are llama's."""
