"""Location of a model: a directory or a hub id, and which of its files hold what.

A MODEL is a directory or a hub id. From the hub only the small files come first (config, tokenizer,
index); weight files follow when they are asked for by name, so that a stage downloads no more
than the shards of its layers. Fetching the whole snapshot was rejected: it would be the download of
the entire model on every PC of the ring.

Only safetensors are read. Pickled checkpoints can run code when they are opened, so they are
refused.

No torch here: the coordinator asks these questions too, and does not load it.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from molink.checkpoint.model_folder import model_folder, read_object
from molink.checkpoint.safetensors_header import read_header
from molink.errors import CheckpointError
from molink.json_object import JsonObject

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

NAME_BYTES_MAX = 255
"""Most bytes of a file's name, on every usual file system."""

HUB_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
"""Name on the hub, owner/name, or a name of its first years."""

PART = re.compile(r"(?P<begin>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors")
"""Name of one weight file of several."""

SMALL_FILES = (
    "*.json",
    "*.jinja",
    "*.model",
    "*.txt",
)
"""Config, tokenizer, chat template and index: what can be fetched before it is known which layers
are ours.
"""

SMALL_BYTES_MAX, SMALL_FILES_MAX = 64 * 2**20, 256
"""Limits on small files together: twice the largest vocabulary, and more files than any model."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Model on disk: its small files are on this machine, weight files where they were fetched."""

    name: str
    """Name as the user gave it."""
    directory: Path
    hub_id: str | None
    """None for a local directory, whose weight files are all there or missing."""
    cache: Path | None = None
    """Folder of files from the hub; None: the one where its client keeps them for everybody."""

    def config(self) -> JsonObject:
        """The JSON object in its config.json."""
        return self.small_file("config.json")

    def small_file(self, name: str) -> JsonObject:
        """The JSON object in one of its small files."""
        return read_object(self.directory / name, self.name)

    def weight_map(self) -> dict[str, str]:
        """File name of every tensor."""
        if (self.directory / INDEX).is_file():
            return _index_weight_map(self.directory / INDEX, self.name)
        files = [SINGLE]
        if self.hub_id is None and not (self.directory / SINGLE).is_file():
            files = _unindexed_files(self.directory, self.name)
        tables = {file: read_header(self.weight_file(file)) for file in files}
        return {one.name: file for file, table in tables.items() for one in table.tensors}

    def weight_file(self, name: str, bar: type[Any] | None = None, *, again: bool = False) -> Path:
        """Path of one weight file, downloaded if need be, or `again` in any case. `bar` is the
        class of progress bar that the hub's client shall use."""
        path = self.directory / name
        if path.is_file() and not again:
            return path
        if self.hub_id is not None:
            return _download(self.hub_id, name, self._options(bar, again))
        raise CheckpointError(
            f"{self.name} lacks the weight file {name} that its index names: fetch it again"
        )

    def _options(self, bar: type[Any] | None, again: bool) -> dict[str, Any]:
        """Options for the hub's client; only those that differ from its own."""
        options: dict[str, Any] = {"force_download": True} if again else {}
        return options | ({"tqdm_class": bar} if bar else {}) | _kept_in(self.cache)


def open_checkpoint(model: str, cache: Path | None = None) -> Checkpoint:
    """Find a model by directory or hub id, which is kept in `cache`. Raises CheckpointError when it
    is neither.
    """
    directory = Path(model).expanduser()
    if directory.is_dir():
        return Checkpoint(model, model_folder(directory, model), None)
    if directory.is_file():
        is_gguf = directory.suffix == ".gguf"
        does = "run `molink import` with it and give the folder that it makes"
        raise CheckpointError(
            f"{model} is a file: {does if is_gguf else 'give the folder with the whole model'}"
        )
    if not _looks_like_hub_id(model):
        raise CheckpointError(
            f"there is no model directory {model}; give a directory or a hub id such as owner/name"
        )
    folder = model_folder(_fetch_small_files(model, cache), model)
    return Checkpoint(model, folder, model, cache)


def open_hub_checkpoint(hub_id: str, cache: Path, bytes_max: int | None = None) -> Checkpoint:
    """A model of the hub that somebody else has named: never a directory of this PC. Raises
    CheckpointError when there is none, it is no hub id, or all but its weights is more than
    `bytes_max`."""
    if HUB_ID.fullmatch(hub_id) is None or ".." in hub_id:
        raise CheckpointError("The model that was asked for is no hub id such as owner/name.")
    folder = model_folder(_fetch_small_files(hub_id, cache, bytes_max), hub_id)
    return Checkpoint(hub_id, folder, hub_id, cache)


def _looks_like_hub_id(model: str) -> bool:
    return model.count("/") <= 1 and not model.startswith((".", "/", "~")) and "\\" not in model


def _index_weight_map(path: Path, name: str) -> dict[str, str]:
    """File name of every tensor; an index that was written elsewhere may lead to it by a path."""
    weight_map = read_object(path, name).get("weight_map")
    named = weight_map if isinstance(weight_map, Mapping) else {"": None}
    files = {tensor: _last_name(file) for tensor, file in named.items()}
    if not all(files.values()):
        raise CheckpointError(
            f"{path.name} of {name} holds no weight map from tensor names to file names: fetch it "
            "again"
        )
    return files


def _last_name(path: Any) -> str:
    """The file's own name; empty: it is none, or longer than any file's."""
    name = re.split(r"[\\/]", path)[-1] if isinstance(path, str) else ""
    is_too_long = len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX
    return "" if name in (".", "..") or is_too_long else name


def _unindexed_files(directory: Path, name: str) -> list[str]:
    """The weight files of a checkpoint without an index. Raises CheckpointError where there are
    none, or not all."""
    files = sorted(path.name for path in directory.glob("*.safetensors"))
    parts = [found for found in map(PART.fullmatch, files) if found]
    if parts:
        begin, count = parts[0]["begin"], parts[0]["count"]
        wanted = [f"{begin}-{n:05d}-of-{count}.safetensors" for n in range(1, int(count) + 1)]
        lacking = [one for one in wanted if one not in files]
        if lacking:
            raise CheckpointError(f"{name} lacks the weight file {lacking[0]}: fetch it again")
        return wanted
    files = [one for one in files if not one.startswith(("adapter_", "consolidated"))]
    if files:
        return files
    pickled = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]
    remedy = "fetch its weights"
    if pickled:
        remedy = (
            f"{pickled[0].name} is of a form that can run code, so load it with transformers and "
            "write it anew with save_pretrained"
        )
    raise CheckpointError(
        f"{name} holds neither {SINGLE} nor {INDEX}, and MoLink reads safetensors checkpoints "
        f"only: {remedy}"
    )


# -- the hub --------------------------------------------------------------------------------------


def _fetch_small_files(hub_id: str, cache: Path | None, bytes_max: int | None = None) -> Path:
    """The folder of all but the weights. What is in it is asked before a byte of it comes."""
    from huggingface_hub import snapshot_download

    answers, most = _hub_answers(), min(SMALL_BYTES_MAX, bytes_max or SMALL_BYTES_MAX)
    options = {"local_files_only": not answers, **_kept_in(cache)}
    wanted = list(SMALL_FILES)
    try:
        if answers:
            found = snapshot_download(hub_id, allow_patterns=wanted, dry_run=True, **options)
            wanted = [one.filename for one in found if _is_used(one.filename)]
            size = sum(one.file_size or 0 for one in found if one.filename in wanted)
            if size > most or len(wanted) > SMALL_FILES_MAX:
                raise CheckpointError(
                    f"{hub_id} has {len(wanted)} files of {size / 2**20:.0f} MiB beside its "
                    f"weights; {SMALL_FILES_MAX} and {most / 2**20:.0f} MiB are the most"
                )
        return Path(snapshot_download(hub_id, allow_patterns=wanted, **options))
    except (OSError, ValueError) as error:
        raise CheckpointError(_hub_message(hub_id, error)) from error


def _is_used(name: str) -> bool:
    """Whether a file of a repository is the model's, and not an example's or another form's."""
    return "/" not in name or name.startswith("additional_chat_templates/")


def _download(hub_id: str, name: str, options: dict[str, Any]) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(hub_id, name, local_files_only=not _hub_answers(), **options))
    except (OSError, ValueError) as error:
        raise CheckpointError(_hub_message(f"{name} of {hub_id}", error)) from error


def _kept_in(cache: Path | None) -> dict[str, Any]:
    return {} if cache is None else {"cache_dir": cache}


def _hub_message(what: str, error: Exception) -> str:
    kind = type(error).__name__
    if kind in ("RepositoryNotFoundError", "HFValidationError", "RemoteEntryNotFoundError"):
        return f"there is no {what} on the hub, and no directory of that name"
    if kind == "GatedRepoError":
        return f"{what} has terms: accept them on the hub and log in with `hf auth login`"
    return (
        f"{what} is no directory, is not in the hub's cache, and the hub cannot be reached: check "
        "the name, and whether this machine is online"
    )


def _hub_answers() -> bool:
    """Whether asking the hub can work; its client retries an unknown host for 23 s."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    if any(name.lower() in ("https_proxy", "all_proxy") for name in os.environ):
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
