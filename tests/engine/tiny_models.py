"""Tiny random models of real architectures, written to disk as ordinary checkpoints."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from molink.engine.device.devices import DTYPES

LAYERS = 7
WINDOW = 6
COMMON: dict[str, Any] = dict(
    vocab_size=160,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
EXPERTS: dict[str, Any] = dict(num_experts_per_tok=2, moe_intermediate_size=32)

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied_llama": dict(model_type="llama", tie_word_embeddings=True),
    "qwen2": {},
    "qwen3": dict(head_dim=24),
    "mistral": dict(sliding_window=WINDOW),
    "gemma2": dict(sliding_window=WINDOW, head_dim=16, query_pre_attn_scalar=16),
    "gemma3_text": dict(sliding_window=WINDOW, head_dim=16, query_pre_attn_scalar=16),
    "phi3": {},
    "olmo2": {},
    "gpt2": dict(n_embd=64, n_layer=LAYERS, n_head=4, n_positions=256),
    "opt": dict(ffn_dim=96, word_embed_proj_dim=64),
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": dict(num_experts=4, head_dim=16, **EXPERTS),
    "gpt_oss": dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=WINDOW),
    "glm4": dict(head_dim=16),
    "gemma4_text": dict(
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        sliding_window=WINDOW,
    ),
    "hunyuan_v1_moe": dict(
        num_experts=4, moe_topk=2, moe_intermediate_size=32, head_dim=16, attention_dropout=0.0
    ),
    "deepseek_v3": dict(
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=2,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=12,
        num_key_value_heads=4,
        **EXPERTS,
    ),
}

KINDS = (
    "llama",
    "tied_llama",
    "gemma2",
    "gpt2",
    "mixtral",
    "gpt_oss",
    "gemma4_text",
    "deepseek_v3",
)
"""One of each: plain, with tied embeddings, with softcaps and windows, with learned positions, with
experts, with sinks, with KV of two shapes, with latent attention."""

OWN_NAMES = {"gpt2": ("hidden_size", "intermediate_size", "num_hidden_layers"), "opt": ()}
"""Common settings that an architecture calls by another name."""


def tiny_config(name: str, **overrides: Any) -> Any:
    settings = {**COMMON, **ARCHITECTURES.get(name, {}), **overrides}
    model_type = settings.pop("model_type", name)
    for key in OWN_NAMES.get(name, ()):
        settings.pop(key, None)
    return AutoConfig.for_model(model_type, **settings)


def tiny_model(config: Any, seed: int = 0) -> Any:
    return with_weights_that_matter(AutoModelForCausalLM.from_config(config), seed)


def with_weights_that_matter(model: Any, seed: int = 0) -> Any:
    """The model with weights far from their small or constant initial values."""
    model = model.float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(noise * 0.1)
    model.generation_config.eos_token_id = None
    return model


def save_tiny(name: str, directory: Path, dtype: str = "float32", **overrides: Any) -> Any:
    """Write a checkpoint of several shards, and return the model."""
    model = tiny_model(tiny_config(name, **overrides)).to(DTYPES[dtype])
    model.save_pretrained(directory, max_shard_size="120KB")
    return model


def generate(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """What the library itself generates greedily."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
    )
    return output[0, len(prompt) :].tolist()
