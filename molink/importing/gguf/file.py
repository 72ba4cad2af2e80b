"""Import of a GGUF file into a checkpoint that nodes fetch by layers."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from molink.checkpoint.checkpoint import INDEX, SMALL_FILES, open_checkpoint
from molink.checkpoint.gguf.header import GgufHeader
from molink.checkpoint.gguf.split_files import read_gguf_parts
from molink.checkpoint.gguf.walk import TAKE_INSTEAD, GgufArray
from molink.errors import CheckpointError, UnsupportedModelError
from molink.importing.checkpoint_folder import Progress, files_identity, write_checkpoint
from molink.importing.gguf.architectures import Architecture
from molink.importing.gguf.config import QUANTIZATION, gguf_model, model_settings
from molink.importing.gguf.metadata import WITH_CONFIG, GgufModel
from molink.importing.gguf.tensors import checkpoint_tensors
from molink.importing.gguf.tokenizer import KEY, end_tokens, tokenizer_files
from molink.json_object import JsonObject
from molink.printable import printable_line

MMPROJ = "clip"
"""The `general.architecture` of what sees or hears for a model."""

SAMPLING = {
    "temp": ("temperature", 0.0, 100.0),
    "top_k": ("top_k", 0, 2**31),
    "top_p": ("top_p", 0.0, 1.0),
    "min_p": ("min_p", 0.0, 1.0),
    "penalty_repeat": ("repetition_penalty", 0.01, 100.0),
}
"""Keys under `general.sampling.`: the library's names, and their least and greatest values."""

DIGITS = 6
"""Digits of a setting that the file has in fp32."""


def import_gguf(path: Path, folder: Path, config: Path | None, progress: Progress) -> int:
    """Write the checkpoint `folder` from a GGUF file, with the config and tokenizer of the folder
    `config` if one is given, else made from the file's metadata. Returns the bytes of its weights.

    Raises UserError with one sentence for what cannot be imported, before anything is written.
    """
    model, architecture = read_model(path)
    header = model.header
    tensors = checkpoint_tensors(model, architecture)
    settings = model_settings(model, architecture) if config is None else {}
    if config is None:
        small = _made_files(header, settings)
    else:
        small = small_files_of(config)
        settings = _given_settings(model, architecture, config)
    small["config.json"] = _json(with_scheme(settings))
    write_checkpoint(folder, tensors, small, progress, files_identity(_files(header, path)))
    return sum(part.size for part in tensors)


def read_model(path: Path) -> tuple[GgufModel, Architecture]:
    """The model in a file, from its table alone. Raises UnsupportedModelError with all that is
    missing here, CheckpointError for a file that is damaged."""
    header = read_gguf_parts(path)
    counts = ", ".join(f"{count} of {name}" for name, count in sorted(header.unread.items()))
    missing = f"{path} holds tensors of types that MoLink does not read ({counts})"
    try:
        _check_kind(header)
        found = gguf_model(header)
    except UnsupportedModelError as error:
        if not counts:
            raise
        raise UnsupportedModelError(f"{missing}; {error}") from error
    if counts:
        raise UnsupportedModelError(f"{missing}: {TAKE_INSTEAD}")
    return found


def _check_kind(header: GgufHeader) -> None:
    """Whether it is a language model, and its table no bomb."""
    name = header.metadata.get("general.architecture")
    if name == MMPROJ:
        raise UnsupportedModelError(
            f"{header.path} is what sees or hears for a model (mmproj): give the model's own file"
        )
    layers = header.metadata.get(f"{name}.block_count")
    if isinstance(layers, int) and layers > len(header.tensors) + header.unread.total():
        raise CheckpointError(
            f"{header.path} promises {layers} layers and holds {len(header.tensors)} tensors: "
            "fetch it again"
        )


def recoded_line(path: Path) -> str | None:
    """Types that an import of a file writes anew with the numbers of their tensors, in a sentence;
    None where there are none."""
    stored = (tensor.stored for tensor in read_gguf_parts(path).tensors)
    counts = sorted(Counter(one.type.name for one in stored if one is not None).items())
    named = ", ".join(f"{count} in {name}" for name, count in counts)
    if not named:
        return None
    return f"Written anew in 8 bits, which takes more room than in the file: tensors {named}."


def with_scheme(settings: Mapping[str, Any]) -> JsonObject:
    """Settings of a model as those of its checkpoint, whose weights are blocks."""
    tied = bool(settings.get("tie_word_embeddings"))
    return {**settings, "tie_word_embeddings": tied, "quantization_config": QUANTIZATION}


def _files(header: GgufHeader, path: Path) -> list[Path]:
    """All files of a model, also one with nothing but metadata."""
    return sorted({path, header.path, *(tensor.path for tensor in header.tensors)})


def _made_files(header: GgufHeader, settings: JsonObject) -> dict[str, bytes]:
    """The tokenizer's files and generation_config.json; token numbers go into the settings too."""
    files = tokenizer_files(header, settings["max_position_embeddings"])
    tokens: JsonObject = {"eos_token_id": end_tokens(header) or None}
    for name, key in {"bos": "bos", "pad": "padding"}.items():
        token = header.metadata.get(f"{KEY}{key}_token_id")
        tokens[f"{name}_token_id"] = token if type(token) is int else None
    settings |= tokens
    known = {name: value for name, value in tokens.items() if value is not None}
    return files | {"generation_config.json": _json(known | sampling_settings(header))}


def sampling_settings(header: GgufHeader) -> JsonObject:
    """Sampling settings that the makers give, in the library's names. Raises CheckpointError for
    values that no setting can have."""
    found: JsonObject = {}
    for key, (name, least, most) in SAMPLING.items():
        value: Any = header.metadata.get(f"general.sampling.{key}")
        if value is None:
            continue
        if isinstance(value, bool | str | GgufArray) or not least <= value <= most:
            raise CheckpointError(
                f"{header.path} gives {printable_line(repr(value))[:40]} as general.sampling."
                f"{key}, which is no number from {least:g} to {most:g}: fetch it again, or "
                f"{WITH_CONFIG}"
            )
        found[name] = int(value) if name == "top_k" else round(value, DIGITS)
    return found | ({"do_sample": found.get("temperature") != 0} if found else {})


def small_files_of(folder: Path) -> dict[str, bytes]:
    """Config, tokenizer and chat template of a model's folder. Raises CheckpointError when it is
    none."""
    checkpoint = open_checkpoint(str(folder))
    if checkpoint.hub_id is not None:
        raise CheckpointError(f"There is no folder {folder}.")
    paths = [path for pattern in SMALL_FILES for path in checkpoint.directory.glob(pattern)]
    return {path.name: path.read_bytes() for path in paths if path.name != INDEX}


def _given_settings(model: GgufModel, architecture: Architecture, folder: Path) -> JsonObject:
    """The config of the original model, which must be that of the same one."""
    settings = open_checkpoint(str(folder)).config()
    compared = {
        "model_type": architecture.model_type,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
    }
    for key, wanted in compared.items():
        if settings.get(key) not in (wanted, None):
            raise CheckpointError(
                f"{folder} is of another model: its {key} is {settings[key]}, that of "
                f"{model.header.path.name} {wanted}."
            )
    tied = model.tied and model.tensors["token_embd.weight"].is_plain
    return settings | {"tie_word_embeddings": tied}


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()
