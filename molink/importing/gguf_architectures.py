"""What a GGUF file calls the layers of a model, and what the library calls them.

A file names the parts of a layer by what they do (`blk.3.ffn_up`), the library by where they are in
its class. Some are also stored otherwise: rows of q and k in the order of another rotary
embedding, norms with one added to them, experts as a stack for each projection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ARCHITECTURES", "AROUND", "Architecture"]

AROUND = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""Parts outside of layers."""

ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
}
QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
MLP = {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """How files of one architecture name and store what a class of the library holds."""

    model_type: str
    model_class: str
    layer: Mapping[str, str]
    """Part of a layer in a file, and its path in the library's layer."""
    experts: Mapping[str, str] = field(default_factory=dict)
    """The same for stacks of experts; `{}` stands for the number of the expert."""
    rotary_rows: bool = False
    """Whether rows of q and k are in the order of the other rotary embedding."""
    one_added: bool = False
    """Whether norms are stored with one added."""
    interleaved_experts: bool = False
    """Whether the class wants rows of gate and up in turns, and exponents apart from codes."""


LLAMA = Architecture("llama", "LlamaForCausalLM", ATTENTION | MLP, rotary_rows=True)
MIXTRAL = Architecture(
    "mixtral",
    "MixtralForCausalLM",
    ATTENTION | {"ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "block_sparse_moe.gate"},
    {
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    },
    rotary_rows=True,
)
QWEN3_MOE = Architecture(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    ATTENTION | QK_NORMS | {"ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"},
    {
        "ffn_gate_exps": "mlp.experts.{}.gate_proj",
        "ffn_up_exps": "mlp.experts.{}.up_proj",
        "ffn_down_exps": "mlp.experts.{}.down_proj",
    },
)
GPT_OSS = Architecture(
    "gpt_oss",
    "GptOssForCausalLM",
    ATTENTION
    | {
        "attn_sinks": "self_attn.sinks",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.router",
    },
    {
        "ffn_gate_exps": "mlp.experts.gate_up_proj",
        "ffn_up_exps": "mlp.experts.gate_up_proj",
        "ffn_down_exps": "mlp.experts.down_proj",
    },
    interleaved_experts=True,
)

ARCHITECTURES = {
    "llama": LLAMA,
    "llama with experts": MIXTRAL,
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", ATTENTION | MLP),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", ATTENTION | QK_NORMS | MLP),
    "qwen3moe": QWEN3_MOE,
    "gemma2": Architecture(
        "gemma2", "Gemma2ForCausalLM", ATTENTION | MLP | FOUR_NORMS, one_added=True
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        ATTENTION | QK_NORMS | MLP | FOUR_NORMS,
        one_added=True,
    ),
    "phi3": Architecture(
        "phi3",
        "Phi3ForCausalLM",
        {
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
    ),
    "gpt-oss": GPT_OSS,
}
"""By `general.architecture` of a file; Mistral's files are llama's."""
