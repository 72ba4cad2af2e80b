"""From a GGUF file to a checkpoint that nodes fetch by layers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from molink.checkpoint.checkpoint import INDEX, SMALL_FILES, open_checkpoint
from molink.checkpoint.gguf.header import GgufHeader
from molink.checkpoint.gguf.split_files import read_gguf_parts
from molink.errors import CheckpointError
from molink.importing.checkpoint_folder import (
    NewTensors,
    Progress,
    files_identity,
    write_checkpoint,
)
from molink.importing.gguf_architectures import Architecture
from molink.importing.gguf_config import QUANTIZATION, gguf_model, model_settings
from molink.importing.gguf_metadata import GgufModel
from molink.importing.gguf_tensors import checkpoint_tensors
from molink.importing.gguf_tokenizer import KEY, end_tokens, tokenizer_files

__all__ = ["import_gguf", "small_files_of", "with_scheme"]

COMPARED = ("model_type", "num_hidden_layers", "hidden_size", "num_attention_heads")
"""Settings by which another model's config is told from this one's."""


def import_gguf(path: Path, folder: Path, config: Path | None, progress: Progress) -> int:
    """Write the checkpoint `folder` from a GGUF file, with the config and tokenizer of the folder
    `config` if one is given, else made from the file's metadata. Returns the bytes of its weights.

    Raises UserError with one sentence for what cannot be imported, before anything is written.
    """
    header = read_gguf_parts(path)
    model, architecture = gguf_model(header)
    tensors = checkpoint_tensors(model, architecture)
    settings = model_settings(model, architecture) if config is None else {}
    if config is None:
        small = _made_files(header, settings)
    else:
        small = small_files_of(config)
        settings = _given_settings(model, architecture, config)
    small["config.json"] = _json(with_scheme(settings))
    write_checkpoint(folder, tensors, small, progress, files_identity(_files(header, path)))
    return _size(tensors)


def with_scheme(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a model as those of its checkpoint, whose weights are blocks."""
    tied = bool(settings.get("tie_word_embeddings"))
    return {**settings, "tie_word_embeddings": tied, "quantization_config": QUANTIZATION}


def _files(header: GgufHeader, path: Path) -> list[Path]:
    """All files of a model, also one with nothing but metadata."""
    return sorted({path, header.path, *(tensor.path for tensor in header.tensors)})


def _size(tensors: list[NewTensors]) -> int:
    return sum(part.size for part in tensors)


def _made_files(header: GgufHeader, settings: dict[str, Any]) -> dict[str, bytes]:
    """The tokenizer's files and generation_config.json; token numbers go into the settings too."""
    files = tokenizer_files(header, settings["max_position_embeddings"])
    tokens: dict[str, Any] = {"eos_token_id": end_tokens(header) or None}
    for name, key in {"bos": "bos", "pad": "padding"}.items():
        tokens[f"{name}_token_id"] = header.metadata.get(f"{KEY}{key}_token_id")
    settings |= tokens
    known = {name: value for name, value in tokens.items() if value is not None}
    return files | {"generation_config.json": _json(known)}


def small_files_of(folder: Path) -> dict[str, bytes]:
    """Config, tokenizer and chat template of a model's folder. Raises CheckpointError when it is
    none."""
    checkpoint = open_checkpoint(str(folder))
    if checkpoint.hub_id is not None:
        raise CheckpointError(f"There is no folder {folder}.")
    paths = [path for pattern in SMALL_FILES for path in checkpoint.directory.glob(pattern)]
    return {path.name: path.read_bytes() for path in paths if path.name != INDEX}


def _given_settings(model: GgufModel, architecture: Architecture, folder: Path) -> dict[str, Any]:
    """The config of the original model, which must be that of the same one."""
    settings = open_checkpoint(str(folder)).config()
    metadata_of: Mapping[str, Any] = {
        "model_type": architecture.model_type,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
    }
    for key in COMPARED:
        wanted = metadata_of.get(key)
        if wanted is not None and settings.get(key) not in (wanted, None):
            raise CheckpointError(
                f"{folder} is of another model: its {key} is {settings[key]}, that of "
                f"{model.header.path.name} {wanted}."
            )
    tied = model.tied and model.tensors["token_embd.weight"].is_plain
    return settings | {"tie_word_embeddings": tied}


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()
