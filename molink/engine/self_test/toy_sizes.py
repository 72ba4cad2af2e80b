"""Sizes of a miniature, under the constraints that architectures put on them.

Most sizes stand alone and are in one table. The others depend on one another: heads divide, the
heads of a recurrence are as wide together as the rows that it works on, rope has factors for half
the rotary width. Each group of those has its function.
"""

from collections.abc import Callable
from typing import Any

from molink.json_object import JsonObject

HEAD_SIZE = 16
"""Size of a head. Half of it is still even, as rotary embeddings need, and so is a quarter."""

GROUP_MAX = 8
"""Query heads per kv head, at most."""

RECURRENT_HEADS = 4

VOCABULARY = 128

SHORT = 5
"""Length beyond which a miniature computes otherwise: shorter than the self-test's sequences, so
that it matters."""

SIZES = {
    # tables of tokens
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    # between a layer's projections
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "intermediate_size_mlp"), 48),
    "dense_intermediate_size": 48,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 8,
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 8),
    "moe_num_experts": 8,
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    "moe_intermediate_size": 24,
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size"), 24),
    **dict.fromkeys(
        ("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size"), 24
    ),
    "moe_latent_size": 16,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    # latent attention, and rotary parts of heads
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_head_dim"), 24),
    "qk_nope_head_dim": 16,
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 8),
    "v_head_dim": 12,
    # attention that sees a part of what came before
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), SHORT),
    **dict.fromkeys(("floor_scale", "log_scaling_n_floor", "index_topk"), SHORT),
    **dict.fromkeys(("index_block_size", "index_topk_blocks", "index_n_heads"), 2),
    "index_head_dim": HEAD_SIZE,
    # recurrences and convolutions
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), HEAD_SIZE),
    "linear_num_heads": 2,
    **dict.fromkeys(("mamba_d_state", "ssm_state_size"), 16),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups", "n_groups"), 2),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), 8),
    "mamba_dt_rank": 4,
    "adapter_rank": 8,
}
"""New values of sizes; a size that is absent, None or already smaller stays."""


def shrink_sizes(config: Any) -> None:
    """Make every size of a config small that a rule knows."""
    _shrink_heads(config)
    _shrink_delta_rule(config)
    for name, size in SIZES.items():
        _lower(config, name, size)
    _shrink_scans(config)
    _shrink_rope(config)


def smaller(value: int, usual: int, small_usual: int) -> int:
    """A size beside `small_usual` as `value` stands beside `usual`: smaller, equal or larger."""
    if value > usual:
        return 2 * small_usual
    return small_usual if value == usual else max(1, small_usual // 2)


def _lower(config: Any, name: str, size: int) -> None:
    value = getattr(config, name, None)
    if isinstance(value, int) and not isinstance(value, bool) and value > size:
        setattr(config, name, size)
    elif isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        setattr(config, name, [min(one, size) for one in value])


def _shrink_heads(config: Any) -> None:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    # Multi-query stays multi-query, and as many query heads share a kv head as before.
    small_kv_heads = 2 if kv_heads > 1 else 1
    small_heads = small_kv_heads * min(GROUP_MAX, max(1, heads // kv_heads))
    head_size = getattr(config, "head_dim", None)
    # Where the heads together are not as wide as the rows, they shall not be in the miniature.
    square = head_size is None or head_size * heads == config.hidden_size
    small_hidden = small_heads * HEAD_SIZE if square else small_heads * HEAD_SIZE + 32
    if getattr(config, "word_embed_proj_dim", None) is not None:
        same = config.word_embed_proj_dim == config.hidden_size
        config.word_embed_proj_dim = small_hidden if same else small_hidden // 2
    config.hidden_size = small_hidden
    config.num_attention_heads = small_heads
    if getattr(config, "num_key_value_heads", None) is not None:
        config.num_key_value_heads = small_kv_heads
    if head_size is not None and not isinstance(getattr(type(config), "head_dim", None), property):
        is_rope_part = head_size == getattr(config, "qk_rope_head_dim", None)
        config.head_dim = SIZES["qk_rope_head_dim"] if is_rope_part else HEAD_SIZE


def _shrink_delta_rule(config: Any) -> None:
    """Shrink the heads, and let as many heads of values share one of keys as before."""
    keys = getattr(config, "linear_num_key_heads", None)
    if keys:
        values = getattr(config, "linear_num_value_heads", None) or keys
        config.linear_num_key_heads = 2
        config.linear_num_value_heads = 2 * min(GROUP_MAX, max(1, values // keys))


def _shrink_scans(config: Any) -> None:
    """Heads of a state-space scan: together as wide as its inner rows, or of sizes of their own."""
    inner = config.hidden_size * (getattr(config, "mamba_expand", None) or 1)
    if getattr(config, "mamba_d_ssm", None):
        config.mamba_d_ssm = inner
    for heads, size in (("mamba_n_heads", "mamba_d_head"), ("n_mamba_heads", "mamba_headdim")):
        if getattr(config, heads, None):
            setattr(config, heads, RECURRENT_HEADS)
            setattr(config, size, inner // RECURRENT_HEADS)
    _lower(config, "mamba_num_heads", RECURRENT_HEADS)
    _lower(config, "mamba_head_dim", HEAD_SIZE)


def _shrink_rope(config: Any) -> None:
    """Cut lists of factors to half the rotary width."""
    rotary = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
    rotary = rotary or config.hidden_size // config.num_attention_heads

    def cut(rope: JsonObject) -> None:
        share = rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None)
        half = int(rotary * (share or 1.0)) // 2
        for name in ("short_factor", "long_factor"):
            if isinstance(rope.get(name), list):
                rope[name] = rope[name][:half]
        if isinstance(rope.get("mrope_section"), list):
            rope["mrope_section"] = _shares(rope["mrope_section"], half)

    for name in ("rope_parameters", "rope_scaling"):
        _each_rope(getattr(config, name, None), cut)


def _each_rope(rope: Any, change: Callable[[JsonObject], None]) -> None:
    if isinstance(rope, dict):
        change(rope)
        for part in rope.values():
            _each_rope(part, change)


def _shares(sections: list[int], total: int) -> list[int]:
    """Sections in about the same proportion that add up to `total`."""
    shares = [section * total // sum(sections) for section in sections]
    shares[0] += total - sum(shares)
    return shares
