"""Which layers of a model attend, and what those weigh that do not.

Hybrid models keep keys and values in every fourth or tenth layer only; the others have a recurrence
or a convolution, whose state does not grow with the context. Configs tell the kinds in one of four
ways: by a list, by the numbers of the layers that attend, by a period, or by a pattern of letters.
"""

from collections.abc import Mapping
from typing import Any

__all__ = [
    "STATE_CONTEXT_TOKENS",
    "attending_layers",
    "mean_state_bytes",
    "recurrent_parameters",
]

STATE_CONTEXT_TOKENS = 4_096
"""KV that memory is kept free for with every request's states: an ordinary conversation."""

STATE_NUMBER_BYTES, COLUMN_NUMBER_BYTES = 4, 2
"""Recurrences are kept in fp32, the last columns of a convolution as the model computes."""

WITHOUT_MIXER = ("mlp", "moe")

Config = Mapping[str, Any]

KINDS = ("layer_types", "layers_block_type")
NUMBERS = ("attn_layer_indices", "full_attn_idxs")
PERIODS = ("full_attention_interval", "layer_group_size", "attn_layer_period")


def attending_layers(config: Config, layers: int) -> int:
    """How many of a model's layers keep keys and values; all, where its config says nothing."""
    counts = (_by_kinds(config), _by_numbers(config), _by_period(config, layers))
    found = next((count for count in counts if count is not None), layers)
    return min(found, layers)


def recurrent_parameters(config: Config, hidden: int) -> int:
    """Parameters of one layer's recurrence or convolution, without its few vectors; 0 where the
    config names none."""
    sizes = _Sizes(config)
    if heads := sizes.first("linear_num_value_heads", "linear_num_heads"):
        keys = sizes.first("linear_num_key_heads", "linear_num_heads")
        key_width = keys * sizes.first("linear_key_head_dim", "linear_head_dim")
        value_width = heads * sizes.first("linear_value_head_dim", "linear_head_dim")
        return hidden * (2 * key_width + 3 * value_width + 2 * heads)
    if heads := sizes.first("mamba_n_heads", "mamba_num_heads"):
        inner = heads * sizes.first("mamba_d_head", "mamba_head_dim")
        states = sizes.first("mamba_n_groups", "n_groups") * sizes.first(
            "mamba_d_state", "ssm_state_size"
        )
        return hidden * (3 * inner + 2 * states + heads)
    if sizes.first("mamba_expand"):
        return 3 * sizes.first("mamba_expand") * hidden * hidden
    return 4 * hidden * hidden if sizes.first("conv_L_cache") else 0


def mean_state_bytes(config: Config, layers: int) -> int:
    """Bytes of one request's states, whatever its length: a mean over all layers."""
    sizes = _Sizes(config)
    kernel = sizes.first("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_L_cache")
    numbers, columns = _state_sizes(sizes)
    each = STATE_NUMBER_BYTES * numbers + COLUMN_NUMBER_BYTES * columns * (kernel or 4)
    return -(-each * _recurrent_layers(config, layers) // layers)


def _state_sizes(sizes: "_Sizes") -> tuple[int, int]:
    """Numbers of one layer's recurrence, and width of its convolution."""
    if heads := sizes.first("linear_num_value_heads", "linear_num_heads"):
        key, value = (
            sizes.first(f"linear_{one}_head_dim", "linear_head_dim") for one in ("key", "value")
        )
        keys = sizes.first("linear_num_key_heads", "linear_num_heads")
        return heads * key * value, 2 * keys * key + heads * value
    states = sizes.first("mamba_d_state", "ssm_state_size")
    if heads := sizes.first("mamba_n_heads", "mamba_num_heads"):
        inner = heads * sizes.first("mamba_d_head", "mamba_head_dim")
        groups = sizes.first("mamba_n_groups", "n_groups") or 1
        return inner * states, inner + 2 * groups * states
    if expand := sizes.first("mamba_expand"):
        inner = expand * sizes.first("hidden_size")
        return inner * (states or 16), inner
    return 0, sizes.first("hidden_size") if sizes.first("conv_L_cache") else 0


def _recurrent_layers(config: Config, layers: int) -> int:
    for name in KINDS:
        kinds = config.get(name)
        if isinstance(kinds, list) and kinds:
            mixers = [kind for kind in kinds if kind not in WITHOUT_MIXER]
            return sum(kind == "hybrid" or not _attends(kind) for kind in mixers)
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("M")
    # Where every layer attends and there are sizes of a recurrence, every layer has both.
    return (layers - attending_layers(config, layers)) or layers


class _Sizes:
    """Whole numbers of a config; what is anything else counts as absent."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def first(self, *names: str) -> int:
        """The first of `names` that is there; 0 where none is."""
        values = (self._config.get(name) for name in names)
        return next((v for v in values if isinstance(v, int) and v > 0), 0)


def _by_kinds(config: Config) -> int | None:
    for name in KINDS:
        kinds = config.get(name)
        if isinstance(kinds, list) and kinds:
            return sum(_attends(kind) for kind in kinds)
    pattern = config.get("hybrid_override_pattern")
    return pattern.count("*") if isinstance(pattern, str) else None


def _attends(kind: object) -> bool:
    return kind == "hybrid" or ("attention" in str(kind) and "linear" not in str(kind))


def _by_numbers(config: Config) -> int | None:
    parts = config.get("linear_attn_config")
    lists = [config.get(name) for name in NUMBERS]
    lists += [parts.get("full_attn_layers")] if isinstance(parts, dict) else []
    return next((len(numbers) for numbers in lists if isinstance(numbers, list)), None)


def _by_period(config: Config, layers: int) -> int | None:
    period = _Sizes(config).first(*PERIODS)
    if not period:
        return None
    at = _Sizes(config).first("attn_layer_offset") if "attn_layer_period" in config else period - 1
    return len(range(at, layers, period))
