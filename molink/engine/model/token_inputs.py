"""Inputs that each layer reads of the token itself, on a stage that has some of the layers.

In models with per-layer embeddings (Gemma 4 E2B and E4B) a layer gets, beside its rows, a part of a
wide table that is looked up by the token, plus a projection of the token's embedding. All of that
follows from token ids. So every stage has the token embeddings and its own layers' columns of the
table and of the projection, and ids travel with the rows, four bytes each. Sending what the head
has looked up was rejected: for E4B it is 21 KB a row, four times the row itself.

The library's own code makes the inputs of all layers at once. It goes on doing that: modules that
have columns for some layers compute those and zeros beside them.

Shapes: T rows, L layers of the whole model, P width of a layer's input.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from molink.checkpoint.shard_plan import TOKEN_INPUTS, TOKEN_TABLE
from molink.engine.layers.quantized_linear import QuantizedLinear
from molink.errors import UnsupportedModelError


class OwnColumns(nn.Module):
    """Module that computes some layers' columns of what the whole model computes for all layers,
    and zeros beside them."""

    def __init__(self, inner: nn.Module, before: int, behind: int) -> None:
        super().__init__()
        self.inner = inner
        self._beside = (before, behind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows [..., L * P] in which the other layers' columns are zero."""
        return F.pad(self.inner(x), self._beside)


def takes_token_ids(model: Any) -> bool:
    """Whether the layers of a model read something of the token itself."""
    return hasattr(model.get_decoder(), TOKEN_TABLE)


def take_finished_inputs(decoder: Any) -> None:
    """Let a decoder that is given rows and `token_inputs` use these as they are."""
    if hasattr(decoder, TOKEN_TABLE):
        decoder.project_per_layer_inputs = _finished


def _finished(rows: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    return inputs


def token_inputs(model: Any, ids_T: torch.Tensor) -> torch.Tensor:
    """Inputs [1, T, L, P] of a stage's layers for these tokens, for a stage behind the head; those
    of other layers mean nothing."""
    decoder = model.get_decoder()
    looked_up = decoder.get_per_layer_inputs(ids_T[None])
    embedded = model.get_input_embeddings()(ids_T[None])
    inputs: torch.Tensor = type(decoder).project_per_layer_inputs(decoder, embedded, looked_up)
    return inputs


def keep_own_columns(model: Any, layers: range, layers_total: int) -> None:
    """Drop the other layers' columns of what makes these inputs, where there is any."""
    decoder = model.get_decoder()
    if not takes_token_ids(model) or len(layers) == layers_total:
        return
    for name in sorted(TOKEN_INPUTS):
        module = getattr(decoder, name)
        width = decoder.hidden_size_per_layer_input
        own = range(layers.start * width, layers.stop * width)
        if isinstance(module, nn.Embedding):
            _keep_columns(module, own)
        elif isinstance(module, nn.Linear | QuantizedLinear) and module.bias is None:
            module = _with_outputs(module, own)
        elif sum(parameter.numel() for parameter in module.parameters()) == width:
            continue  # A norm of each layer's part alone.
        else:
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be cut into stages: its {name!r} is no table"
            )
        behind = layers_total * width - own.stop
        setattr(decoder, name, OwnColumns(module, own.start, behind))


def _keep_columns(table: nn.Embedding, own: range) -> None:
    """A table of which only these columns were read has them already. It is no parameter from then
    on, since those are copied out of their files, and this is a copy."""
    weight = table.weight.detach()
    if weight.shape[1] != len(own):
        weight = weight[:, own.start : own.stop].clone()
    del table.weight
    table.register_buffer("weight", weight, persistent=False)
    table.embedding_dim = len(own)


def _with_outputs(linear: nn.Linear | QuantizedLinear, own: range) -> nn.Module:
    if isinstance(linear, QuantizedLinear):
        return QuantizedLinear(linear.quantized.rows(own.start, own.stop), None, linear.dtype)
    linear.weight = nn.Parameter(linear.weight[own.start : own.stop].clone(), requires_grad=False)
    linear.out_features = len(own)
    return linear
