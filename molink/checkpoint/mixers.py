"""Mixers of a model's layers: which attend, and what those weigh that do not.

Hybrid models keep keys and values in every fourth or tenth layer only; the others have a recurrence
or a convolution, whose state does not grow with the context. Configs tell the kinds in one of four
ways: by a list, by the numbers of the layers that attend, by a period, or by a pattern of letters.

Some layers that attend see a window of the context only, and stages keep no more of a request there
where that pays (`kv.layer_class`). They learn windows from the layers' own calls; a plan takes them
from the config. Where that names a window and not its layers, a list of model types says which they
are; of other types every layer counts as one that keeps all, which plans too much room.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from molink_scheduler.batch import DRAFTS_MAX
from molink_scheduler.kv.layer_class import pays, room_tokens

STATE_NUMBER_BYTES = 4
"""Recurrences are kept in fp32, whatever a stage computes in."""

KERNELS = (*("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_L_cache"),)
KERNEL_USUAL = 4
"""Width of a convolution that the config leaves out."""

WITHOUT_MIXER = ("mlp", "moe")

Config = Mapping[str, Any]

KINDS = ("layer_types", "layers_block_type")
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Kinds of layers by their letter in a pattern."""
NUMBERS = {"attn_layer_indices": 0, "full_attn_idxs": 0, "full_attn_layers": 1}
"""Lists of the layers that attend, and the number that they give to a model's first layer."""
KIMI_SIZES = {
    "linear_num_heads": "num_heads",
    "linear_head_dim": "head_dim",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}
PERIODS = ("full_attention_interval", "layer_group_size", "attn_layer_period")

SLIDING = "sliding_attention"
"""Kind of a layer with a window, in lists of layers."""

WINDOW_PERIODS = {
    **dict.fromkeys(("mistral", "mixtral", "phi3", "starcoder2"), 0),
    **dict.fromkeys(("gemma2", "gpt_oss"), 2),
    "gemma3_text": 6,
}
"""Model types whose configs may name no layers: the last of so many sees all; 0: none does."""

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len")
LENGTH_USUAL = 32_768


@dataclass(frozen=True, slots=True)
class StateSize:
    """Size of one request's state in one layer, whatever the request's length."""

    recurrent: int = 0
    """Numbers of the recurrence, which are fp32."""
    columns: int = 0
    """Numbers of the convolution's last columns, and of rows of drafts that the state has yet to
    take in, in the format that the stage computes in."""

    def bytes_in(self, element_bytes: int) -> int:
        """Bytes in a stage whose numbers take `element_bytes`."""
        return STATE_NUMBER_BYTES * self.recurrent + element_bytes * self.columns


NO_STATE = StateSize()


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """Kinds of a model's layers, in order."""

    attends: tuple[bool, ...]
    """Whether each layer keeps keys and values; all do, where the config says nothing."""
    recurs: tuple[bool, ...]
    """Whether each layer keeps a state; in some models the same layers do both."""


def layer_kinds(config: Config, layers: int) -> LayerKinds:
    """The kinds of a model's layers: which keep keys and values, and which keep a state."""
    kinds = _named_kinds(config, layers)
    if kinds is not None:
        attends = tuple(_attends(kind) for kind in kinds)
        mixers = (kind not in WITHOUT_MIXER for kind in kinds)
        has_state = (
            mixes and (kind == "hybrid" or not _attends(kind))
            for kind, mixes in zip(kinds, mixers, strict=True)
        )
        return LayerKinds(attends, tuple(has_state))
    attending = _by_numbers(config)
    if attending is None:
        attending = _by_period(config, layers)
    if attending is None:  # Where there are sizes of a recurrence, every layer has both.
        return LayerKinds((True,) * layers, (True,) * layers)
    attends = tuple(layer in attending for layer in range(layers))
    return LayerKinds(attends, tuple(not one for one in attends))


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


def state_size(config: Config) -> StateSize:
    """State of one request in one layer's recurrence or convolution, with places for drafts;
    nothing without one."""
    sizes = _Sizes(config)
    numbers, width = _state_sizes(sizes)
    if not width:
        return NO_STATE
    columns = width * (sizes.first(*KERNELS) or KERNEL_USUAL)
    return StateSize(numbers, columns + DRAFTS_MAX * sizes.first("hidden_size"))


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


class _Sizes:
    """Whole numbers of a config; what is anything else counts as absent."""

    def __init__(self, config: Config) -> None:
        self._config = {**_kimi_sizes(config), **config}

    def first(self, *names: str) -> int:
        """The first of `names` that is there; 0 where none is."""
        values = (self._config.get(name) for name in names)
        return next((v for v in values if isinstance(v, int) and v > 0), 0)


def _kimi_sizes(config: Config) -> Config:
    """Sizes that published Kimi-Linear checkpoints keep in an entry of its own."""
    parts = config.get("linear_attn_config")
    if not isinstance(parts, dict):
        return {}
    return {name: parts.get(key) for name, key in KIMI_SIZES.items()}


def _named_kinds(config: Config, layers: int) -> list[object] | None:
    """The kind of each layer by name; None where the config names none."""
    for name in KINDS:
        kinds = config.get(name)
        if isinstance(kinds, list) and kinds:
            return [*kinds, *["attention"] * layers][:layers]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        kinds = [LETTERS.get(one, one) for one in pattern]
        return [*kinds, *["attention"] * layers][:layers]
    return None


def _attends(kind: object) -> bool:
    return kind == "hybrid" or ("attention" in str(kind) and "linear" not in str(kind))


def _by_numbers(config: Config) -> frozenset[int] | None:
    """The layers that attend, where they are listed by number."""
    for name, first in NUMBERS.items():
        numbers = config.get(name)
        parts = config.get("linear_attn_config")
        if numbers is None and isinstance(parts, dict):
            numbers = parts.get(name)
        if isinstance(numbers, list):
            return frozenset(one - first for one in numbers if isinstance(one, int))
    return None


def _by_period(config: Config, layers: int) -> frozenset[int] | None:
    period = _Sizes(config).first(*PERIODS)
    if not period:
        return None
    at = _Sizes(config).first("attn_layer_offset") if "attn_layer_period" in config else period - 1
    return frozenset(range(at, layers, period))


@dataclass(frozen=True, slots=True)
class Windows:
    """Layers of a model that keep a window only."""

    room_tokens: int = 0
    """Tokens for which they have room for each request."""
    layers: tuple[bool, ...] = ()
    """Whether each layer keeps a window only; empty: none does."""


NO_WINDOWS = Windows()


def windows_of(config: Config, layers: int) -> Windows:
    """Windows of the model, as far as they pay."""
    window = config.get("sliding_window")
    has_none = config.get("use_sliding_window") is False or config.get("kv_lora_rank")
    if has_none or not isinstance(window, int) or window < 1:
        return NO_WINDOWS
    lengths = (config.get(name) for name in LENGTHS)
    length = next((one for one in lengths if isinstance(one, int)), LENGTH_USUAL)
    windowed = _windowed(config, layers)
    if not any(windowed) or not pays(window, length):
        return NO_WINDOWS
    return Windows(room_tokens(window), windowed)


def _windowed(config: Config, layers: int) -> tuple[bool, ...]:
    """Whether each layer has a window."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(kind == SLIDING for kind in kinds)
    period = config.get("sliding_window_pattern", WINDOW_PERIODS.get(str(config.get("model_type"))))
    if not isinstance(period, int) or period < 0:
        return (False,) * layers
    return tuple(not period or (layer + 1) % period > 0 for layer in range(layers))
