"""Folder that is given as a model: where its model lies, or why there is none in it.

People give what they have: a folder of the hub's cache, a clone without the large files, an
adapter, a model that scores. Each of these is either served as it was meant, or refused with what
to do.

No torch: the coordinator and agents ask before anything is loaded.
"""

import atexit
import json
import re
import shutil
import tempfile
from codecs import BOM_UTF8
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from molink.errors import CheckpointError, UnsupportedModelError
from molink.json_object import JsonObject
from molink.utf8 import utf8_text

TEXT_SUFFIXES = (".json", ".jinja", ".txt")

TEMPLATES = "additional_chat_templates"
"""Folder of the templates beside the usual one."""

READ_SUFFIXES = (*TEXT_SUFFIXES, ".model", ".safetensors")

UNREAD = "consolidated"
"""How the names of weights in their makers' own form begin, which lie beside others."""

MARKS = re.compile(b"^(" + BOM_UTF8 + b")+")

LFS_MARK = b"version https://git-lfs"
"""Beginning of a pointer of Git LFS."""

NAMES_SHOWN = 3

SCORERS = re.compile(r"Classification|Reward|QuestionAnswering|MultipleChoice|Regress|Detection")
"""Words in names of classes that give scores."""

HEADLESS = re.compile(r"(?<!LMHead)(?<!DoubleHeads)(?<!Omni)(?<!Chat)Model$|ForMaskedLM$")
"""Words in names of classes that give vectors, or fill gaps."""

EMBEDDING_FILES = ("modules.json", "config_sentence_transformers.json")
"""Files of models that turn texts into vectors, whatever their class."""

WITHOUT_CONFIG = "{model} holds weights and no config.json: fetch the model's other files too"

INSTEAD = {
    "adapter_config.json": "{model} is an adapter of {base} and cannot be served without it: merge "
    "it into that model (merge_and_unload of peft) and give the merged folder",
    "model_index.json": "{model} makes pictures or sound (it is for diffusers), and MoLink serves "
    "models that write text: give one of those",
    "*.gguf": "{model} holds GGUF files: run `molink import` with one of them and give the folder "
    "that it makes",
    "params.json": "{model} is in its makers' own form: give the one for transformers, which has a "
    "config.json",
    "models--*": "{model} holds several models of the hub's cache: give the folder of one, or the "
    "model's name as owner/name",
    "*.safetensors": WITHOUT_CONFIG,
    "*.bin": WITHOUT_CONFIG,
}
"""Files by which a folder without a config.json is recognised, and the advice for each."""


def model_folder(given: Path, model: str) -> Path:
    """The folder with the files of the model that is given as `model`, which are readable. Raises
    CheckpointError where there is none."""
    folder = _snapshot(given, model)
    names = _names(folder, model)
    if "config.json" not in names:
        raise CheckpointError(_instead(folder, model, names))
    read = [one for one in names if one.endswith(READ_SUFFIXES) and not one.startswith(UNREAD)]
    if pointers := _beginning(read, folder, LFS_MARK):
        shown = ", ".join(pointers[:NAMES_SHOWN]) + " and others" * (len(pointers) > NAMES_SHOWN)
        raise CheckpointError(
            f"{model} has only pointers of Git LFS for {shown}: run `git lfs pull` in that folder"
        )
    if templates := {f"{TEMPLATES}/{one.name}" for one in (folder / TEMPLATES).glob("*.jinja")}:
        names = names - {TEMPLATES} | templates
    texts = [one for one in names if one.endswith(TEXT_SUFFIXES)]
    marked = _beginning(texts, folder, BOM_UTF8)
    return _without_boms(folder, names, marked) if marked else folder


def read_object(path: Path, name: str) -> JsonObject:
    """The JSON object in a file of the model `name`. Raises CheckpointError."""
    try:
        value = json.loads(utf8_text(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} of {name} cannot be read ({error}): repair it"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name} of {name} is not a JSON object")
    return value


def check_writes_text(folder: Path, model: str, config: Mapping[str, Any]) -> None:
    """Raise UnsupportedModelError for a model that was trained for something else: with its words'
    table for an output matrix it would write nonsense."""
    classes = config.get("architectures")
    classes = [one for one in classes if isinstance(one, str)] if isinstance(classes, list) else []
    if any(map(SCORERS.search, classes)):
        does = f"scores texts ({classes[0]:.60})"
    elif any((folder / one).is_file() for one in EMBEDDING_FILES):
        does = "turns texts into vectors (it is for sentence-transformers)"
    elif classes and all(map(HEADLESS.search, classes)):
        _check_known(model, classes[0], config.get("model_type"))
        does = f"turns its input into vectors ({classes[0]:.60})"
    else:
        return
    raise UnsupportedModelError(f"{model} {does} and writes none: give a model that writes text")


def _check_known(model: str, name: str, model_type: object) -> None:
    """Raise UnsupportedModelError for a class that only its makers' code can compute."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if model_type not in CONFIG_MAPPING_NAMES:
        raise UnsupportedModelError(
            f"{model} is computed by code of its own ({name:.60}), which is not in the library and "
            "which MoLink does not run: give a version for transformers (often named -hf)"
        )


def _names(folder: Path, model: str) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()}
    except OSError as error:
        raise CheckpointError(
            f"the model directory {model} cannot be read ({error.strerror})"
        ) from error


def _snapshot(given: Path, model: str) -> Path:
    """Snapshot of a folder in the hub's cache: that which its main branch names, or the only one;
    any other folder as it is."""
    names = _names(given, model)
    if "snapshots" not in names or "config.json" in names:
        return given
    snapshots = sorted(one for one in (given / "snapshots").iterdir() if one.is_dir())
    main = given / "refs" / "main"
    named = main.read_text().strip() if main.is_file() else ""
    for one in snapshots:
        if one.name == named or len(snapshots) == 1:
            return one
    listed = ", ".join(f"snapshots/{one.name}" for one in snapshots[:NAMES_SHOWN])
    raise CheckpointError(
        f"{model} is a folder of the hub's cache: give one of its snapshots "
        f"({listed or 'none is there yet'})"
    )


def _instead(folder: Path, model: str, names: Collection[str]) -> str:
    """Why a folder without a config.json is no model."""
    if not names:
        return f"{model} is empty: fetch the model's files into it"
    for pattern, sentence in INSTEAD.items():
        if any(Path(name).match(pattern) for name in names):
            return sentence.format(model=model, base=_base_of(folder))
    within = sorted(one.parent.name for one in folder.glob("*/config.json"))
    if within:
        return f"{model} holds no config.json, but its folder {within[0]} does: give that"
    return f"{model} holds no config.json, so it is not a model directory"


def _base_of(folder: Path) -> str:
    path = folder / "adapter_config.json"
    base = read_object(path, str(folder)).get("base_model_name_or_path") if path.is_file() else None
    return str(base or "another model")[:100]


def _beginning(names: Collection[str], folder: Path, mark: bytes) -> list[str]:
    """The files that begin with some bytes."""
    found = []
    for name in sorted(one for one in names if (folder / one).is_file()):
        with suppress(OSError), (folder / name).open("rb") as file:
            found += [name] * (file.read(len(mark)) == mark)
    return found


def _without_boms(folder: Path, names: Collection[str], marked: Collection[str]) -> Path:
    """A folder of this process's with the same files, those that begin with a byte-order mark
    without it: the libraries that read them take none."""
    clean = Path(tempfile.mkdtemp(prefix="molink-model-"))
    atexit.register(shutil.rmtree, clean, ignore_errors=True)
    for name in names:
        (clean / name).parent.mkdir(exist_ok=True)
        if name in marked:
            (clean / name).write_bytes(MARKS.sub(b"", (folder / name).read_bytes()))
        else:
            (clean / name).symlink_to((folder / name).resolve())
    return clean
