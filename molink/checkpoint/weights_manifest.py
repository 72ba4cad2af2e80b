"""Manifest of a model's weights: every file, and checksums to know each piece of it again.

A file is cut into blocks, and each has its own checksum, because a download is checked as it comes:
a piece that arrived damaged is fetched again for the price of a block, not of a file, and nothing
unchecked is ever written. Of weight files the manifest also carries the table of tensors, so that a
node can tell its own bytes from the others' before it asks for any.

Parsed where it arrives, and checked there: names are plain, sizes have bounds, every tensor lies
inside its file.
"""

import hashlib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from molink.checkpoint.checkpoint import SMALL_FILES
from molink.checkpoint.safetensors_header import SafetensorsHeader, parse_header
from molink.checkpoint.shard_plan import WeightsLayout
from molink.json_object import JsonObject

BLOCK_BYTES = 8 * 2**20
"""Bytes that a damaged or unfinished piece costs at most: 7 s of a line of 10 Mbps. A model of 140
GB has 17,000 of them, 1 MB of checksums."""

BLOCK_BYTES_MAX = 256 * 2**20
"""A block is held in memory until it is checked."""

FILES_MAX = 10_000
"""The largest checkpoints on the hub have some hundred files."""

WEIGHTS_SUFFIX = ".safetensors"
SMALL_SUFFIXES = tuple(pattern.removeprefix("*") for pattern in SMALL_FILES)
"""Ends of the names of all other files that are taken, so that no checkpoint brings code."""

DRAFTER_PART = "drafter"
"""Part of the URL below which a model that drafts lies, beside the served one's manifest."""

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}$"
"""No slash and no dot in front: a name can lead nowhere else."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(BaseModel):
    """One file of a model, with the checksums of its blocks."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    size: Annotated[int, Field(ge=0, le=2**50)]
    """Bytes."""
    sha256: Sha256
    blocks: tuple[Sha256, ...]
    """Checksum of each block in turn; the last block may be short."""
    header: JsonObject | None = None
    """JSON of the table of tensors, of a safetensors file."""
    data_start: Annotated[int, Field(ge=0)] = 0
    """Bytes before the data that the table speaks of."""

    @property
    def table(self) -> SafetensorsHeader | None:
        """The table of tensors of a weight file; None for any other file."""
        return None if self.header is None else parse_header(self.header, self.data_start)

    @model_validator(mode="after")
    def _is_of_a_kind_that_stages_read(self) -> "FileEntry":
        if not self.name.endswith(SMALL_SUFFIXES if self.header is None else WEIGHTS_SUFFIX):
            raise ValueError("a file is neither weights (safetensors) nor config or tokenizer")
        return self

    @model_validator(mode="after")
    def _tensors_lie_inside(self) -> "FileEntry":
        table = self.table
        if table and any(tensor.stop > self.size for tensor in table.tensors):
            raise ValueError(f"a tensor of {self.name} lies beyond its end")
        return self


class WeightsManifest(BaseModel):
    """Manifest of one model: all of its files."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    format: Literal[1] = 1
    model: Annotated[str, Field(min_length=1, max_length=300)]
    """Public name of the model."""
    layers_total: Annotated[int, Field(ge=1, le=100_000)]
    tied: bool | None
    """Whether its output matrix is its token embeddings; None: its config does not say."""
    block_bytes: Annotated[int, Field(ge=1, le=BLOCK_BYTES_MAX)] = BLOCK_BYTES
    files: Annotated[tuple[FileEntry, ...], Field(max_length=FILES_MAX)]

    @model_validator(mode="after")
    def _files_make_a_model(self) -> "WeightsManifest":
        names = {entry.name for entry in self.files}
        if len(names) != len(self.files):
            raise ValueError("a file is named twice")
        if "config.json" not in names:
            raise ValueError("there is no config.json")
        for entry in self.files:
            if len(entry.blocks) != -(-entry.size // self.block_bytes):
                raise ValueError(f"{entry.name} has not the blocks of its size")
        return self

    @property
    def shape(self) -> WeightsLayout:
        """Layout of the model, from which shards are planned."""
        return WeightsLayout(self.layers_total, self.tied)

    @property
    def revision(self) -> str:
        """Tells these weights from any others, whatever they are called. Small files do not count:
        a corrected config is no reason to fetch the weights again."""
        digest = hashlib.sha256()
        for entry in sorted(self.files, key=lambda entry: entry.name):
            if entry.header is not None:
                digest.update(f"{entry.name} {entry.sha256}\n".encode())
        return digest.hexdigest()

    def weight_map(self) -> dict[str, str]:
        """File name of every tensor."""
        tables = ((entry.name, entry.table) for entry in self.files)
        return {tensor.name: name for name, table in tables if table for tensor in table.tensors}

    def small_files(self) -> tuple[FileEntry, ...]:
        """Config and tokenizer: what every stage gets whole."""
        return tuple(entry for entry in self.files if entry.header is None)

    def file(self, name: str) -> FileEntry:
        """The entry of a file that is in it."""
        return next(entry for entry in self.files if entry.name == name)
