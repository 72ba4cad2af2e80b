"""The config of a miniature: the same class and switches as a model, sizes of a toy.

The self-test builds it with random weights, so that an architecture is judged in half a second and
before its weights are there.
"""

import copy
from collections.abc import Callable
from typing import Any

__all__ = ["shrink_config"]

LAYERS_MIN = 4
"""Three stages of uneven size."""

HEAD_SIZE = 16
"""Half of it is still even, as rotary embeddings need, and so is a quarter."""

GROUP_MAX = 8
"""Query heads per kv head, at most."""

WINDOW = 5
"""Shorter than the self-test's sequences, so that windows matter."""

VOCABULARY = 128

SIZES = {
    "vocab_size": VOCABULARY,
    "intermediate_size": 48,
    "ffn_dim": 48,
    "n_inner": 48,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "intermediate_size_mlp": 48,
    "shared_intermediate_size": 24,
    "dense_intermediate_size": 48,
    "q_lora_rank": 24,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 24,
    "v_head_dim": 12,
    "rotary_dim": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "moe_num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "sliding_window": WINDOW,
    "attention_chunk_size": WINDOW,
}
"""New values of sizes; a size that is absent, None or already smaller stays."""

TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")


def shrink_config(config: Any) -> Any:
    """Config of a miniature of the model: same class, same switches, sizes of a toy.

    `config` stays as it is. Everything that is a size is made small under the constraints that
    architectures put on sizes (heads divide, groups of experts fit, rope factor lists have half the
    rotary width); everything that is a choice (norms, biases, windows, layer types, scales) stays.
    Sizes that no rule knows stay as they are: the miniature is then larger, or does not build and
    the model is refused.
    """
    small = copy.deepcopy(config)
    kept = _kept_layers(small)
    _cut_layer_lists(small, kept)
    _shrink_heads(small)
    for name, size in SIZES.items():
        _lower(small, name, size)
    for name in TOKEN_IDS:
        if getattr(small, name, None) is not None:
            setattr(small, name, 0)
    _shrink_rope(small)
    return small


def _lower(config: Any, name: str, size: int) -> None:
    value = getattr(config, name, None)
    if isinstance(value, int) and not isinstance(value, bool) and value > size:
        setattr(config, name, size)


def _layer_lists(config: Any) -> dict[str, list[Any]]:
    """Settings that are given per layer."""
    count = config.num_hidden_layers
    return {
        name: list(value)
        for name, value in vars(config).items()
        if isinstance(value, list | tuple) and len(value) == count and not name.startswith("_")
    }


def _kept_layers(config: Any) -> list[int]:
    """The first layer of each kind, and others up to the number that three stages need."""
    count = config.num_hidden_layers
    lists = list(_layer_lists(config).values())
    first_of_kind: dict[str, int] = {}
    for layer in range(count):
        first_of_kind.setdefault(repr([values[layer] for values in lists]), layer)
    kept = set(first_of_kind.values())
    for layer in range(count):
        if len(kept) >= LAYERS_MIN:
            break
        kept.add(layer)
    return sorted(kept)


def _cut_layer_lists(config: Any, kept: list[int]) -> None:
    for name, values in _layer_lists(config).items():
        setattr(config, name, [values[layer] for layer in kept])
    config.num_hidden_layers = len(kept)


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
    if head_size is not None:
        is_rope_part = head_size == getattr(config, "qk_rope_head_dim", None)
        config.head_dim = SIZES["qk_rope_head_dim"] if is_rope_part else HEAD_SIZE


def _shrink_rope(config: Any) -> None:
    """Cut lists of factors to half the rotary width."""
    rotary = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
    rotary = rotary or config.hidden_size // config.num_attention_heads

    def cut(rope: dict[str, Any]) -> None:
        share = rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None)
        half = int(rotary * (share or 1.0)) // 2
        for name in ("short_factor", "long_factor"):
            if isinstance(rope.get(name), list):
                rope[name] = rope[name][:half]
        if isinstance(rope.get("mrope_section"), list):
            rope["mrope_section"] = _shares(rope["mrope_section"], half)

    for name in ("rope_parameters", "rope_scaling"):
        _each_rope(getattr(config, name, None), cut)


def _each_rope(rope: Any, change: Callable[[dict[str, Any]], None]) -> None:
    if isinstance(rope, dict):
        change(rope)
        for part in rope.values():
            _each_rope(part, change)


def _shares(sections: list[int], total: int) -> list[int]:
    """Sections in about the same proportion that add up to `total`."""
    shares = [section * total // sum(sections) for section in sections]
    shares[0] += total - sum(shares)
    return shares
