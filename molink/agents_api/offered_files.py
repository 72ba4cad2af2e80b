"""Files of the model that nodes may fetch: their checksums, and the manifest that lists them.

A model of 140 GB takes minutes to hash, and its files hardly ever change; so what was found is kept
beside the coordinator's data, under a file's path, and holds as long as size and time of change are
the same. One pass makes both sums, of the blocks and of the whole file. Hashing runs in a thread of
its own; serving goes on meanwhile, since hashing releases the interpreter lock.
"""

import asyncio
import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from molink.checkpoint.checkpoint import INDEX, SMALL_FILES, Checkpoint
from molink.checkpoint.description import describe
from molink.checkpoint.safetensors_header import read_header
from molink.checkpoint.shard_plan import shape_of
from molink.checkpoint.weights_manifest import (
    BLOCK_BYTES,
    NAME_PATTERN,
    FileEntry,
    WeightsManifest,
)
from molink.errors import CheckpointError, MolinkError

READ_BYTES = 2**20
"""Bytes read at once: enough that the hash, not the reading, takes the time; they also set how soon
a stop is noticed."""

logger = logging.getLogger(__name__)


class HashingStopped(Exception):
    """Raised when hashing is stopped before its end."""


@dataclass(frozen=True, slots=True)
class FileState:
    """Identity of a file's content: while it is the same, so are the checksums."""

    path: str
    """Path of the file itself, links followed."""
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileState":
        """State of the file as it is now. Raises OSError when it is not there."""
        real = path.resolve(strict=True)
        found = real.stat()
        return cls(str(real), found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class FileHashes:
    """Checksums of one file: SHA-256 in hex, of the whole and of its blocks."""

    sha256: str
    blocks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HashCache:
    """Folder of checksums: one small JSON file for each file and block size."""

    directory: Path

    def find(self, state: FileState, block_bytes: int) -> FileHashes | None:
        """The checksums that were kept; None when there are none of this state."""
        try:
            kept = json.loads(self._path(state, block_bytes).read_text(encoding="utf-8"))
            if kept["state"] == asdict(state) and kept["block_bytes"] == block_bytes:
                return FileHashes(kept["sha256"], tuple(kept["blocks"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def keep(self, state: FileState, block_bytes: int, hashes: FileHashes) -> None:
        """Keep checksums for the next start; if that fails, the next start hashes again."""
        path = self._path(state, block_bytes)
        content = {"state": asdict(state), "block_bytes": block_bytes, **asdict(hashes)}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".new")
            draft.write_text(json.dumps(content), encoding="utf-8")
            draft.replace(path)
        except OSError as error:
            logger.warning("checksums are not kept in %s: %s", self.directory, error)

    def _path(self, state: FileState, block_bytes: int) -> Path:
        key = hashlib.sha256(f"{state.path}\n{block_bytes}".encode()).hexdigest()[:32]
        return self.directory / f"{key}.json"


def hash_file(
    path: Path, block_bytes: int, stop: threading.Event, progress: Callable[[int], None]
) -> FileHashes:
    """Read a file once. `progress` is called with bytes done; raises HashingStopped once `stop` is
    set."""
    whole = hashlib.sha256()
    blocks: list[str] = []
    with path.open("rb") as file:
        while True:
            block, left = hashlib.sha256(), block_bytes
            while left and (data := file.read(min(READ_BYTES, left))):
                if stop.is_set():
                    raise HashingStopped
                block.update(data)
                whole.update(data)
                left -= len(data)
                progress(len(data))
            if left == block_bytes:
                return FileHashes(whole.hexdigest(), tuple(blocks))
            blocks.append(block.hexdigest())


class OfferedFiles:
    """Files of one model, hashed in the background.

    `cache_dir` keeps checksums from one start to the next; `name` is what the manifest calls the
    model (default: as the operator gave it).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        cache_dir: Path,
        *,
        name: str | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._checkpoint = checkpoint
        self._cache = HashCache(cache_dir)
        self._name = name or checkpoint.name
        self._block_bytes = block_bytes
        self._stop = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._bytes_done = 0
        self._bytes_total = 0
        self.files: dict[str, tuple[Path, FileState]] = {}
        """Offered files by name, with their states; empty until the manifest is there."""
        self.manifest_json: bytes | None = None
        """None while files are being hashed."""
        self.failure: str | None = None
        """Why there will be no manifest, in one sentence."""

    @property
    def progress(self) -> float:
        """How much of the hashing is done, 0 to 1."""
        if self.manifest_json is not None:
            return 1.0
        return self._bytes_done / self._bytes_total if self._bytes_total else 0.0

    async def start(self) -> None:
        """Begin to hash in the background."""
        self._task = asyncio.create_task(self._prepare(), name="weights hashing")

    async def ready(self) -> None:
        """Return when the manifest is there. Raises CheckpointError when there will be none."""
        if self._task is not None:
            await asyncio.shield(self._task)
        if self.failure is not None:
            raise CheckpointError(self.failure)

    async def close(self) -> None:
        """Stop hashing, and wait for its end."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def _prepare(self) -> None:
        try:
            files, manifest = await asyncio.to_thread(self._build)
        except HashingStopped:
            logger.info("hashing of the weights was stopped")
        except (MolinkError, OSError, ValueError) as error:
            logger.error("the weights cannot be offered to nodes: %s", error)
            self.failure = f"The coordinator cannot read its weights: {error}"
        else:
            self.files = files
            self.manifest_json = manifest.model_dump_json().encode()

    # -- in a thread ------------------------------------------------------------------------------

    def _build(self) -> tuple[dict[str, tuple[Path, FileState]], WeightsManifest]:
        weights = self._weight_files()
        paths = {**self._small_files(), **weights}
        states = {name: FileState.of(path) for name, path in paths.items()}
        self._bytes_total = sum(state.size for state in states.values())
        manifest = WeightsManifest(
            model=self._name,
            layers_total=describe(self._checkpoint).layers,
            tied=shape_of(self._checkpoint.config()).tied,
            block_bytes=self._block_bytes,
            files=tuple(
                self._entry(name, path, states[name], is_weights=name in weights)
                for name, path in sorted(paths.items())
            ),
        )
        return {name: (path, states[name]) for name, path in paths.items()}, manifest

    def _weight_files(self) -> dict[str, Path]:
        names = sorted(set(self._checkpoint.weight_map().values()))
        for name in names:
            if not re.fullmatch(NAME_PATTERN, name):
                raise CheckpointError(f"the weight file {name!r} has a name that is not plain")
        return {name: self._checkpoint.weight_file(name) for name in names}

    def _small_files(self) -> dict[str, Path]:
        """Small files but the index: each node writes an index of what it holds."""
        found = {
            path.name: path
            for pattern in SMALL_FILES
            for path in self._checkpoint.directory.glob(pattern)
            if path.is_file() and re.fullmatch(NAME_PATTERN, path.name)
        }
        found.pop(INDEX, None)
        return found

    def _entry(self, name: str, path: Path, state: FileState, *, is_weights: bool) -> FileEntry:
        header = read_header(path) if is_weights else None
        hashes = self._hashes(path, state)
        return FileEntry(
            name=name,
            size=state.size,
            sha256=hashes.sha256,
            blocks=hashes.blocks,
            header=None if header is None else dict(header.content),
            data_start=0 if header is None else header.data_start,
        )

    def _hashes(self, path: Path, state: FileState) -> FileHashes:
        kept = self._cache.find(state, self._block_bytes)
        if kept is not None:
            self._bytes_done += state.size
            return kept
        hashes = hash_file(path, self._block_bytes, self._stop, self._hashed)
        self._cache.keep(state, self._block_bytes, hashes)
        return hashes

    def _hashed(self, size: int) -> None:
        self._bytes_done += size
