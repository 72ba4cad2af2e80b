"""The tensors of a GGUF file as those of a safetensors checkpoint, blocks byte for byte.

Blocks that kernels read keep their bytes (`recoding` has the others): a packed weight becomes U8
[rows, bytes of a row] under the plain name with the type at its end. What the file has in another
order (see `changes`) is moved in whole rows, which blocks never cross. A tied embedding in blocks
is written once more as the head: the first stage looks up its rows, the last multiplies by it, and
on a ring these are different PCs. Of the layers behind the model's own, which guess later tokens,
the first is kept as the checkpoint's drafting layer.
"""

import logging
import re
from functools import partial

import numpy as np

from molink.checkpoint.gguf.header import GgufTensor
from molink.errors import CheckpointError, UnsupportedModelError
from molink.importing.checkpoint_folder import NewTensors, one_tensor
from molink.importing.gguf.architectures import Architecture
from molink.importing.gguf.changes import copied
from molink.importing.gguf.metadata import GgufModel
from molink.printable import printable_line

log = logging.getLogger(__name__)

LAYER_TENSOR = re.compile(r"blk\.(\d{1,5})\.([\w.]+)", re.ASCII)

OF_THE_CONFIG = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Parts that are settings, not weights."""

NAME_CHARACTERS_MAX = 80

XIELU = {"alpha_n": (1,), "alpha_p": (1,), "beta": (), "eps": ()}
"""Parameters of Apertus' activation, and their shapes in the library."""


def checkpoint_tensors(model: GgufModel, architecture: Architecture) -> list[NewTensors]:
    """All tensors of the new checkpoint. Raises CheckpointError for a file that lacks some, and
    UnsupportedModelError for a file with tensors that are not known."""
    _check_complete(model, architecture)
    new: list[NewTensors] = []
    for tensor in _taken(model, architecture):
        new += _new_tensors(model, architecture, tensor)
        if tensor.name == "token_embd.weight" and model.tied and not tensor.is_plain:
            new += copied(model, tensor, "lm_head.weight")
    return new + _generated(model, architecture)


def _taken(model: GgufModel, architecture: Architecture) -> list[GgufTensor]:
    """The tensors of the model and of its first layer that drafts, which is left out, with a
    warning, where a part of it is not known."""
    ends = model.layers + (model.find("nextn_predict_layers") or 0)
    others = [one for one in model.header.tensors if not model.layers <= _place(one)[0] < ends]
    drafting = [one for one in model.header.tensors if _place(one)[0] == model.layers < ends]
    parts = [_place(one)[1] for one in drafting]
    unknown = [one for one in parts if architecture.name(one, model.layers) is None]
    if not unknown:
        return others + drafting
    log.warning(
        "The layer of %s that drafts is left out: MoLink knows no %s in one of a %s model.",
        model.header.path,
        printable_line(unknown[0])[:NAME_CHARACTERS_MAX],
        architecture.model_type,
    )
    return others


def _place(tensor: GgufTensor) -> tuple[int, str]:
    """Layer of a tensor, -1 outside of layers, and the name of its part."""
    match = LAYER_TENSOR.fullmatch(tensor.name)
    return (int(match[1]), match[2]) if match else (-1, tensor.name)


def _new_tensors(
    model: GgufModel, architecture: Architecture, tensor: GgufTensor
) -> list[NewTensors]:
    layer, part = _place(tensor)
    if part in OF_THE_CONFIG:
        return []
    is_known = layer < model.layers + bool(model.find("nextn_predict_layers"))
    name = architecture.name(part, None if layer < 0 else layer) if is_known else None
    if name is None:
        raise UnsupportedModelError(
            f"{model.header.path} holds {printable_line(tensor.name)[:NAME_CHARACTERS_MAX]}, which "
            f"is no part of a {architecture.model_type} model as MoLink knows it: take another "
            "version"
        )
    change = architecture.change(part) or copied
    return change(model, tensor, name) if name else []


def _check_complete(model: GgufModel, architecture: Architecture) -> None:
    parts = (f"{part}.weight" for part in architecture.every)
    wanted = {f"blk.{layer}.{part}" for part in parts for layer in range(model.layers)}
    wanted |= {"token_embd.weight"}
    if missing := sorted(wanted - model.tensors.keys()):
        raise CheckpointError(
            f"{model.header.path} lacks {missing[0]} and {len(missing) - 1} other tensors of a "
            f"{architecture.model_type} model of {model.layers} layers: fetch it again"
        )


def _generated(model: GgufModel, architecture: Architecture) -> list[NewTensors]:
    """Tensors that a file has among its settings: one number of each kind for each layer."""
    new = []
    for key, shape in XIELU.items() if architecture.model_type == "apertus" else ():
        values = model.header.array(f"xielu.{key}") or []
        for layer, value in enumerate(values[: model.layers]):
            raw = np.array(value, np.float32).tobytes()
            name = f"{architecture.layers}.{layer}.mlp.act_fn.{key}"
            new.append(one_tensor(name, "F32", shape, len(raw), partial(iter, [raw])))
    return new
