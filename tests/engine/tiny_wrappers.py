"""Tiny random models that take pictures too, saved under the names of published checkpoints."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForImageTextToText

from tests.engine.tiny_models import COMMON, with_weights_that_matter

LAYERS = 5
"""Of the text model, and as many blocks in the part that sees."""

TEXT = COMMON | dict(num_hidden_layers=LAYERS, head_dim=16, tie_word_embeddings=False)
VISION = dict(hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=32)
BLOCKS = dict(depth=LAYERS, hidden_size=32, num_heads=2, intermediate_size=32, out_hidden_size=64)
SECTIONS = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[4, 2, 2]))
HALF_SECTIONS = dict(
    rope_parameters=dict(
        rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[2, 1, 1]
    )
)
LAST_IS_FULL = dict(layer_types=["sliding_attention"] * 4 + ["full_attention"], sliding_window=6)
OTHER_HEADS = dict(global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)

E_SERIES = dict(
    layer_types=[*["sliding_attention", "full_attention"] * 2, "full_attention"],
    sliding_window=6,
    global_head_dim=32,
    num_kv_shared_layers=1,
    use_double_wide_mlp=True,
    hidden_size_per_layer_input=8,
    vocab_size_per_layer_input=COMMON["vocab_size"],
    tie_word_embeddings=True,
)
"""Its last two layers share keys and values."""
HEARS = dict(
    hidden_size=32, num_attention_heads=2, subsampling_conv_channels=[8, 4], output_proj_dims=32
)

WRAPPERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3": (dict(sliding_window=6, query_pre_attn_scalar=16), VISION),
    "gemma4": (
        LAST_IS_FULL
        | OTHER_HEADS
        | dict(hidden_size_per_layer_input=0, enable_moe_block=True)
        | dict(num_experts=4, top_k_experts=2, moe_intermediate_size=24),
        VISION | dict(head_dim=16, num_key_value_heads=2, global_head_dim=16),
    ),
    "gemma4 E2B": (E_SERIES, VISION | dict(head_dim=16, num_key_value_heads=2, global_head_dim=16)),
    "gemma4_unified": (LAST_IS_FULL | OTHER_HEADS, VISION),
    "mistral3": (dict(model_type="mistral"), VISION | dict(head_dim=16)),
    "llava": (dict(model_type="llama"), VISION | dict(model_type="clip_vision_model")),
    "internvl": (dict(model_type="qwen2"), VISION),
    "qwen2_5_vl": (SECTIONS, BLOCKS),
    "qwen3_vl": (SECTIONS, BLOCKS | dict(num_position_embeddings=16, deepstack_visual_indexes=[1])),
    "qwen3_vl_moe": (
        SECTIONS | EXPERTS,
        BLOCKS | dict(num_position_embeddings=16, deepstack_visual_indexes=[1]),
    ),
    "glm4v": (SECTIONS, BLOCKS),
    "glm4v_moe": (
        HALF_SECTIONS | EXPERTS | dict(n_routed_experts=4, n_group=1, topk_group=1),
        BLOCKS,
    ),
    "qwen3_5": (
        dict(
            layer_types=["linear_attention"] * 4 + ["full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
        ),
        BLOCKS | dict(num_position_embeddings=16),
    ),
}
"""Settings of the text model and of the part that sees, by the model type of the whole (and a
name)."""


def save_wrapper(name: str, directory: Path) -> Any:
    """Write a checkpoint as its family publishes it, and return the whole model."""
    text, vision = WRAPPERS[name]
    parts = {"text_config": TEXT | text, "vision_config": vision}
    if text.get("hidden_size_per_layer_input"):
        parts["audio_config"] = HEARS | {"num_hidden_layers": LAYERS}
    config = AutoConfig.for_model(name.split()[0], **parts)
    model = with_weights_that_matter(AutoModelForImageTextToText.from_config(config))
    model.save_pretrained(directory, max_shard_size="120KB")
    return model
