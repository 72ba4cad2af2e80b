"""A checkpoint folder that is there whole or not at all.

Everything is written into a folder beside it and renamed at the end: an import that fails, is
interrupted or finds the disk full leaves nothing that somebody could serve by mistake. Tensors
stream through in pieces, so that an import of any size needs little memory. Files have at most a
few gigabytes each, as those of published models do.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from molink.checkpoint.checkpoint import INDEX
from molink.checkpoint.safetensors_header import StoredTensor, encode_header
from molink.errors import UserError

__all__ = ["NewTensors", "Progress", "one_tensor", "write_checkpoint"]

FILE_BYTES_MAX = 4 * 10**9
"""Of one weight file, where no single tensor is larger."""

SPARE_BYTES = 256 * 2**20
"""Left free on the disk beside what is written."""

Progress = Callable[[int, int], None]
"""Called with the bytes of tensors that are written, and with all that will be."""


@dataclass(frozen=True, slots=True)
class NewTensors:
    """Some tensors of a new checkpoint that are made together, and how to make their bytes."""

    entries: Sequence[StoredTensor]
    """Their names, types and shapes; places count from the first one's first byte."""
    pieces: Callable[[], Iterator[bytes]]
    """Makes their bytes, one tensor behind the other."""

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(entry.stop - entry.start for entry in self.entries)


def one_tensor(
    name: str, dtype: str, shape: Sequence[int], size: int, pieces: Callable[[], Iterator[bytes]]
) -> NewTensors:
    """What writes one tensor of `size` bytes, piece by piece."""
    return NewTensors((StoredTensor(name, dtype, tuple(shape), 0, size),), pieces)


def write_checkpoint(
    folder: Path,
    tensors: Sequence[NewTensors],
    small_files: Mapping[str, bytes],
    progress: Progress,
) -> None:
    """Write a new checkpoint folder. Raises UserError when it cannot be: something is there
    already, the disk is too full or cannot be written."""
    total = sum(part.size for part in tensors)
    _check_free(folder, total + sum(map(len, small_files.values())))
    try:
        with _renamed_when_whole(folder) as unfinished:
            for name, content in small_files.items():
                (unfinished / name).write_bytes(content)
            _write_weights(unfinished, tensors, total, progress)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror or error}).") from error


def _check_free(folder: Path, size: int) -> None:
    if folder.exists():
        raise UserError(f"{folder} is there already: remove it, or name another with --out.")
    parent = folder.absolute().parent
    if not parent.is_dir():
        raise UserError(f"There is no folder {parent} in which to make {folder.name}.")
    free = shutil.disk_usage(parent).free - SPARE_BYTES
    if size > free:
        raise UserError(
            f"{folder} would take {size / 1e9:.1f} GB, and {max(0, free) / 1e9:.1f} GB are free "
            "there: name a folder on another disk with --out."
        )


@contextmanager
def _renamed_when_whole(folder: Path) -> Iterator[Path]:
    unfinished = folder.absolute().parent / f".{folder.name}.importing-{os.getpid()}"
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_weights(
    folder: Path, tensors: Sequence[NewTensors], total: int, progress: Progress
) -> None:
    files = list(_files(tensors))
    weight_map: dict[str, str] = {}
    done = 0
    for number, parts in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        entries = [entry for part in parts for entry in part.entries]
        weight_map |= dict.fromkeys((entry.name for entry in entries), name)
        with (folder / name).open("wb") as file:
            file.write(encode_header(entries, {"format": "pt"}))
            for piece in _pieces(parts):
                file.write(piece)
                done += len(piece)
                progress(done, total)
            file.flush()
            os.fsync(file.fileno())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def _files(tensors: Sequence[NewTensors]) -> Iterator[list[NewTensors]]:
    """What goes into each file, in the order given."""
    parts: list[NewTensors] = []
    for part in tensors:
        if parts and sum(one.size for one in parts) + part.size > FILE_BYTES_MAX:
            yield parts
            parts = []
        parts.append(part)
    yield parts


def _pieces(parts: Iterable[NewTensors]) -> Iterator[bytes]:
    for part in parts:
        size = 0
        for piece in part.pieces():
            size += len(piece)
            yield piece
        assert size == part.size, part.entries
