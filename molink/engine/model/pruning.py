"""Pruning of a whole-model class to a stage that owns some of its layers.

The model's own class is subclassed. Once its constructor has built the skeleton (on the meta
device, so nothing is allocated), every part that another stage owns is replaced by a module without
weights: `Skip` hands its input on, `Zero` stands for position embeddings that were added at the
head. The list of layers keeps its length, so layer numbers and per-layer settings stay true, and
loading, conversion and tying remain the library's own code.

Building the class from a config with fewer layers was rejected: every per-layer list of every
architecture would have to be cut by hand.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from molink.checkpoint.shard_plan import (
    ADDED_POSITIONS,
    AFTER_LAYERS,
    BEFORE_LAYERS,
    TOKEN_INPUTS,
)
from molink.engine.model.token_inputs import take_finished_inputs, takes_token_ids
from molink.engine.proof import hooks
from molink.errors import UnsupportedModelError

EMBEDDING_SCALES = ("embedding_multiplier", "scale_emb", "embed_scale", "emb_scale")
"""Numbers that a decoder's forward multiplies into its input; past the head they have been applied.
"""


ROWS_DIMENSIONS = 3
"""Hidden states between layers are [1, rows, width]."""

RETURNS_MAX = 3
"""Things that a layer may return at most."""


class Skip(nn.Module):
    """Module in place of one that another stage owns: returns its first argument.

    It answers what a decoder's forward asks its layers about themselves (kind of layer, for
    example), and returns as many things as they do.
    """

    def __init__(self, replaced: nn.Module | None = None) -> None:
        super().__init__()
        for name, value in vars(replaced).items() if replaced is not None else ():
            is_plain = value is None or isinstance(value, str | int | float | bool)
            if is_plain and not name.startswith("_") and name != "training":
                setattr(self, name, value)
        self.returns: int | None = None
        """Length of the tuple that it returns; None: no tuple."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the input, unchanged."""
        first = args[0] if args else next(iter(kwargs.values()))
        return first if self.returns is None else (first, *[None] * (self.returns - 1))


class Zero(nn.Module):
    """Module in place of position embeddings, which the head has already added."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return a zero that broadcasts."""
        first = args[0] if args else next(iter(kwargs.values()))
        return torch.zeros((), device=first.device)


def stage_class(
    model_class: Any, layers: range, *, is_head: bool, is_tail: bool, embeds: bool = False
) -> Any:
    """A subclass of `model_class` that owns `layers`, and the embeddings or the head where it
    should; `embeds`: it has the embeddings whether it is the head or not.

    Name and module stay those of the library: its weight conversions are looked up by them.
    """

    def __init__(self: Any, config: Any) -> None:
        model_class.__init__(self, config)
        _prune(self, layers, is_head=is_head, is_tail=is_tail, embeds=embeds)

    names = {"__init__": __init__, "__module__": model_class.__module__, "__doc__": None}
    return type(model_class.__name__, (model_class,), names)


def decoder_layers(model: Any) -> tuple[str, nn.ModuleList]:
    """Name and list of the decoder's layers. Raises UnsupportedModelError unless there is exactly
    one list.
    """
    decoder = model.get_decoder()
    count = model.config.get_text_config().num_hidden_layers
    lists = [
        (name, module)
        for name, module in decoder.named_children()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if len(lists) != 1:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be cut into stages: "
            f"it has {len(lists)} lists of {count} layers, not one"
        )
    return lists[0]


def fit_skips(model: Any, trial: Callable[[], object]) -> None:
    """Let skipped layers return as many things as owned ones do; `trial` runs the model once.

    Where none of the numbers serves they return one thing, and the next run says what is wrong.
    """
    _, layers = decoder_layers(model)
    skips = [layer for layer in layers if isinstance(layer, Skip)]
    owned = [layer for layer in layers if not isinstance(layer, Skip)]
    for returns in (None, *range(1, RETURNS_MAX + 1)) if skips else ():
        _set_returns(skips, returns)
        outputs = _outputs(owned, trial)
        if outputs:
            _set_returns(skips, len(outputs[0]) if isinstance(outputs[0], tuple) else None)
            return
    _set_returns(skips, None)


def _set_returns(skips: Sequence[Skip], returns: int | None) -> None:
    for skip in skips:
        skip.returns = returns


def _outputs(layers: Sequence[nn.Module], trial: Callable[[], object]) -> list[Any]:
    """Outputs of the layers in a trial, of those that were handed whole rows."""
    outputs: list[Any] = []

    def note(
        _: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, object], output: Any
    ) -> None:
        first = args[0] if args else next(iter(kwargs.values()))
        if isinstance(first, torch.Tensor) and first.dim() == ROWS_DIMENSIONS:
            outputs.append(output)

    # A wrong number shows as any error; a right one that fails later, in the next run.
    with (
        suppress(Exception),
        hooks(layer.register_forward_hook(note, with_kwargs=True) for layer in layers),
    ):
        trial()
    return outputs


def _prune(model: Any, layers: range, *, is_head: bool, is_tail: bool, embeds: bool) -> None:
    layers_name, module_list = decoder_layers(model)
    if is_head and is_tail:
        return  # Nothing is another stage's, whatever its names.
    for index in range(len(module_list)):
        if index not in layers:
            module_list[index] = Skip(module_list[index])
    _prune_around(model, layers_name, is_head=is_head, is_tail=is_tail, embeds=embeds)
    if not is_head:
        _unscale_input(model.get_decoder())
        take_finished_inputs(model.get_decoder())
    if not is_tail:
        _remove_output_head(model)
    for part in (model, model.get_decoder()):
        part._init_weights = partial(_init_owned, part._init_weights)


def _init_owned(init_weights: Callable[[nn.Module], None], module: nn.Module) -> None:
    """Let the library fill in what no checkpoint holds (buffers), past layers of other stages."""
    whole = {
        name: child
        for name, child in module._modules.items()
        if isinstance(child, nn.ModuleList) and any(isinstance(one, Skip) for one in child)
    }
    for name, layers in whole.items():
        module._modules[name] = nn.ModuleList(one for one in layers if not isinstance(one, Skip))
    try:
        init_weights(module)
    finally:
        module._modules.update(whole)


def _prune_around(
    model: Any, layers_name: str, *, is_head: bool, is_tail: bool, embeds: bool
) -> None:
    """Replace what surrounds the layers and belongs to the head or the tail only."""
    decoder, embeddings = model.get_decoder(), model.get_input_embeddings()
    is_looked_up = is_head or embeds or takes_token_ids(model)
    keeps_embeddings = is_looked_up or (is_tail and _is_tied(model))
    for name, module in list(decoder.named_children()):
        replacement: nn.Module | None = None
        if name == layers_name or name in TOKEN_INPUTS:
            continue
        if module is embeddings:
            replacement = None if keeps_embeddings else Skip(module)
        elif name in ADDED_POSITIONS:
            replacement = None if is_head else Zero()
        elif name in BEFORE_LAYERS:
            replacement = None if is_head else Skip(module)
        elif name in AFTER_LAYERS:
            replacement = None if is_tail else Skip(module)
        elif any(True for _ in module.parameters()):
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be cut into stages: "
                f"nobody knows which stage its {name!r} belongs to"
            )
        if replacement is not None:
            setattr(decoder, name, replacement)


def _is_tied(model: Any) -> bool:
    return bool(getattr(model, "all_tied_weights_keys", None))


def _unscale_input(decoder: Any) -> None:
    for name in EMBEDDING_SCALES:
        if isinstance(getattr(decoder, name, None), int | float):
            setattr(decoder, name, 1.0)


def _remove_output_head(model: Any) -> None:
    head = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is head)
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, Skip())
    model.all_tied_weights_keys = {}
