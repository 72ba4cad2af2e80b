"""Checksums of a model's files, computed once.

A model of 140 GB takes minutes to hash, and its files hardly ever change; so what was found is kept
beside the coordinator's data, under a file's path, and holds as long as size and time of change are
the same. One pass makes both sums, of the blocks and of the whole file.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["FileHashes", "FileState", "HashCache", "HashingStopped", "hash_file"]

READ_BYTES = 2**20
"""Enough that the hash, not the reading, takes the time; and how soon a stop is noticed."""

logger = logging.getLogger(__name__)


class HashingStopped(Exception):
    """Raised when hashing was told to stop."""


@dataclass(frozen=True, slots=True)
class FileState:
    """What must be the same for a file to count as the same."""

    path: str
    """Where it really lies, links followed."""
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileState":
        """As it is now. Raises OSError when it is not there."""
        real = path.resolve(strict=True)
        found = real.stat()
        return cls(str(real), found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class FileHashes:
    """SHA-256 in hex."""

    sha256: str
    blocks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HashCache:
    """One small JSON file for each file and block size."""

    directory: Path

    def find(self, state: FileState, block_bytes: int) -> FileHashes | None:
        """What was kept; None when there is nothing, or it is of another state."""
        try:
            kept = json.loads(self._place(state, block_bytes).read_text(encoding="utf-8"))
            if kept["state"] == asdict(state) and kept["block_bytes"] == block_bytes:
                return FileHashes(kept["sha256"], tuple(kept["blocks"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def keep(self, state: FileState, block_bytes: int, hashes: FileHashes) -> None:
        """Keep for the next start; where that fails, the next start hashes again."""
        place = self._place(state, block_bytes)
        content = {"state": asdict(state), "block_bytes": block_bytes, **asdict(hashes)}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            draft = place.with_suffix(".new")
            draft.write_text(json.dumps(content), encoding="utf-8")
            draft.replace(place)
        except OSError as error:
            logger.warning("checksums are not kept in %s: %s", self.directory, error)

    def _place(self, state: FileState, block_bytes: int) -> Path:
        key = hashlib.sha256(f"{state.path}\n{block_bytes}".encode()).hexdigest()[:32]
        return self.directory / f"{key}.json"


def hash_file(
    path: Path, block_bytes: int, stop: threading.Event, progress: Callable[[int], None]
) -> FileHashes:
    """Read a file once. `progress` is told of bytes done; raises HashingStopped once `stop` is
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
