"""Planned result of an import, by tables of files alone, before it is made.

No torch for a GGUF file: to look at one takes no second. What of a plain model is rounded, its
class says, and that takes torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molink.checkpoint.draft_layer import draft_layer, measured
from molink.checkpoint.gguf.split_files import PART_NAME
from molink.checkpoint.gguf.walk import MAGIC
from molink.checkpoint.held_weights import held_weights
from molink.checkpoint.kv_format import KvDtype
from molink.checkpoint.layer_sizes import planned_of_weights, with_draft_layer
from molink.checkpoint.model_config import shape_of_config, text_settings
from molink.checkpoint.model_shape import PlannedModel
from molink.checkpoint.quantized.declared import declared_quantization
from molink.errors import UserError
from molink.importing.checkpoint_folder import NewTensors
from molink.importing.gguf.config import model_settings
from molink.importing.gguf.file import read_model, with_scheme
from molink.importing.gguf.tensors import checkpoint_tensors

if TYPE_CHECKING:
    from molink.importing.plain_model import WeightBits


def is_gguf(path: Path) -> bool:
    """Whether a path is that of a GGUF file, by how it begins."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def gguf_of(path: Path) -> Path:
    """The GGUF file of a folder that holds one model as such, for any other path the path itself;
    further parts of it and what sees pictures (mmproj) are passed over."""
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return path
    found = [one for one in sorted(path.glob("*.gguf")) if "mmproj" not in one.name.lower()]
    parts = {one: PART_NAME.fullmatch(one.name) for one in found}
    models = [one for one, part in parts.items() if part is None or int(part["number"]) == 1]
    if len(models) > 1:
        names = ", ".join(one.name for one in models)
        raise UserError(f"{path} holds the models {names}: name one of them.")
    return models[0] if models else path


def planned_gguf(path: Path, kv_dtype: KvDtype = "auto") -> PlannedModel:
    """The costs of the checkpoint that a GGUF file would become. Raises UserError for a file that
    cannot be imported."""
    model, architecture = read_model(path)
    settings = with_scheme(model_settings(model, architecture))
    return _planned(path.name, checkpoint_tensors(model, architecture), settings, kv_dtype)


def planned_rounded(
    folder: Path, bits: "WeightBits", group: int, kv_dtype: KvDtype = "auto"
) -> PlannedModel:
    """The costs of a plain model rounded. Raises UserError for a model that cannot be."""
    from molink.importing.plain_model import rounded_model

    tensors, config = rounded_model(folder, bits, group)
    return _planned(f"{folder.name} in {bits}", tensors, config, kv_dtype)


def _planned(
    name: str, tensors: Iterable[NewTensors], config: Mapping[str, Any], kv_dtype: KvDtype
) -> PlannedModel:
    entries = [entry for part in tensors for entry in part.entries]
    settings = {**config, **text_settings(config)}
    shape = replace(shape_of_config(name, settings), kv_dtype=kv_dtype)
    declared = declared_quantization(name, config)
    planned = planned_of_weights(name, shape, held_weights(name, entries, declared), declared)
    layer = draft_layer(config, [entry.name for entry in entries])
    sized = layer and measured(name, layer, entries, declared)
    return with_draft_layer(planned, sized)
