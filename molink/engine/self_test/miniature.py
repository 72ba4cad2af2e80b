"""The config of a miniature: the same class and switches as a model, sizes of a toy.

The self-test builds it with random weights, so that an architecture is judged in half a second and
before its weights are there. What is a choice (norms, biases, kinds of layers, scales) stays; what
is a size is made small (`toy_sizes`), and so is every length beyond which a model computes
otherwise, for nobody tests with thousands of tokens. Layers are left out until each kind of them
occurs once: a kind that the miniature lost would be served untested, so that is refused.
"""

import copy
from typing import Any

from molink.checkpoint.layers_together import SHARING
from molink.engine.self_test.toy_sizes import shrink_sizes, smaller
from molink.errors import UnsupportedModelError
from molink.json_object import JsonObject

LAYERS_MIN = 4
"""Three stages of uneven size."""

SHARING_MODES = "kv_sharing_modes"
"""Setting that says which layers store KV for later ones, and which reuse it; computed from the
number of the last layers that do."""

VOCABULARIES = ("vocab_size", "vocab_size_per_layer_input")

TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")

Overrides = list[JsonObject]
"""Settings of each layer that differ from the config's own."""


def shrink_config(config: Any) -> Any:
    """Config of a miniature of the model; `config` stays as it is.

    Sizes that no rule knows stay as they are: the miniature is then larger, or does not build and
    the model is refused. Raises UnsupportedModelError, with the end of a sentence, where no
    miniature could tell.
    """
    plain = copy.deepcopy(config)
    overrides = _take_overrides(plain)
    if not getattr(plain, "num_attention_heads", None):
        raise UnsupportedModelError("it has no attention layers")
    for kept in (_first_of_each_kind(plain, overrides), _first_layers(plain)):
        small = copy.deepcopy(plain)
        _cut_layers(small, kept)
        if _kinds(small) == _kinds(plain):
            break
    else:
        raise UnsupportedModelError("a miniature of it lacks a kind of its layers")
    shrink_sizes(small)
    _forget_token_ids(small)
    _put_overrides(small, plain, [overrides[layer] for layer in kept])
    return small


def shorten_config(config: Any, layers: int | None, words: int) -> None:
    """Leave a config so many of its first layers (None: all of them), each as large as before, and
    so many words."""
    for name in VOCABULARIES:
        if getattr(config, name, None) is not None:
            setattr(config, name, min(words, getattr(config, name)))
    _forget_token_ids(config)
    if layers is not None:
        _cut_layers(config, list(range(layers)))


def _forget_token_ids(config: Any) -> None:
    for name in TOKEN_IDS:
        if getattr(config, name, None) is not None:
            setattr(config, name, 0)


# -- which layers ---------------------------------------------------------------------------------


def _layer_lists(config: Any) -> dict[str, list[Any]]:
    """Settings that are given per layer; lists of layers' numbers are not."""
    count = config.num_hidden_layers
    return {
        name: list(value)
        for name, value in vars(config).items()
        if isinstance(value, list | tuple)
        and len(value) == count
        and list(value) != list(range(count))
        and not name.startswith("_")
    }


def _derived_kinds(config: Any) -> dict[str, list[str]]:
    """Kinds of layers that the class computes from periods or numbers."""
    count = config.num_hidden_layers
    names = [name for name in dir(type(config)) if _is_property(type(config), name)]
    values = {name: getattr(config, name, None) for name in names}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, list)
        and len(value) == count
        and all(isinstance(kind, str | None) for kind in value)
    }


def _is_property(config_class: type, name: str) -> bool:
    return not name.startswith("_") and isinstance(getattr(config_class, name, None), property)


def _kinds(config: Any) -> dict[str, set[str]]:
    """Every kind of layer that occurs, by the setting that tells it."""
    lists = _layer_lists(config) | _derived_kinds(config)
    return {name: {repr(kind) for kind in values} for name, values in lists.items()}


def _first_of_each_kind(config: Any, overrides: Overrides) -> list[int]:
    """The first layer of each kind, and others up to the number that three stages need."""
    sharing = getattr(config, SHARING_MODES, [None] * config.num_hidden_layers)
    lists = [*_layer_lists(config).values(), overrides, sharing]
    first: dict[str, int] = {}
    for layer in range(config.num_hidden_layers):
        first.setdefault(repr([values[layer] for values in lists]), layer)
    kept = set(first.values())
    for layer in range(config.num_hidden_layers):
        if len(kept) >= LAYERS_MIN:
            break
        kept.add(layer)
    return sorted(kept)


def _first_layers(config: Any) -> list[int]:
    """First layers, as many as it takes until each kind has occurred: where kinds follow from a
    layer's number, layers cannot be picked."""
    lists = [*_layer_lists(config).values(), *_derived_kinds(config).values()]
    last_new = max((values.index(kind) for values in lists for kind in values), default=0)
    return list(range(min(config.num_hidden_layers, max(LAYERS_MIN, last_new + 1))))


def _cut_layers(config: Any, kept: list[int]) -> None:
    sharing = getattr(config, SHARING, None) or 0
    own = config.num_hidden_layers - sharing
    for name, values in _layer_lists(config).items():
        setattr(config, name, [values[layer] for layer in kept])
    config.num_hidden_layers = len(kept)
    if sharing:
        setattr(config, SHARING, sum(layer >= own for layer in kept))


# -- settings of single layers --------------------------------------------------------------------


def _take_overrides(config: Any) -> Overrides:
    """Take the settings of single layers off the config, which then speaks for all of them."""
    spec = getattr(config, "_heterogeneity_spec", None)
    overrides: dict[int, JsonObject] = spec.per_layer_overrides if spec is not None else {}
    config.per_layer_config = None
    return [overrides.get(layer, {}) for layer in range(config.num_hidden_layers)]


def _put_overrides(small: Any, plain: Any, overrides: Overrides) -> None:
    """Put them back: what was larger than the config's own size is larger than its small one."""
    changed = {
        layer: {name: _override(small, plain, name, value) for name, value in settings.items()}
        for layer, settings in enumerate(overrides)
        if settings
    }
    if changed:
        small.per_layer_config = changed


def _override(small: Any, plain: Any, name: str, value: Any) -> Any:
    usual, small_usual = getattr(plain, name, None), getattr(small, name, None)
    if not isinstance(usual, int) or not isinstance(small_usual, int) or isinstance(value, bool):
        return value
    return smaller(value, usual, small_usual) if isinstance(value, int) else value
