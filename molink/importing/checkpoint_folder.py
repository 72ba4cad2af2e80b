"""A checkpoint folder that is there whole or not at all, and that is gone on with.

Everything is written into a folder beside it and renamed at the end: nobody can serve half of it by
mistake. An import that is interrupted or finds the disk full leaves that folder, and the same
import goes on where it ended: of what is finished each file is there under its name with the digest
that was taken while it was written, and is read again before it counts. Another source, another way
to round or another version begins anew. Tensors stream through in pieces, so that an import of any
size needs little memory.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from molink import __version__
from molink.checkpoint.checkpoint import INDEX
from molink.checkpoint.safetensors_header import StoredTensor, encode_header
from molink.errors import UserError
from molink_scheduler.units import GB, gb_text

FILE_BYTES_MAX = GB
"""Bytes of a weight file, unless one tensor is larger: an interrupted import does so much again."""

SPARE_BYTES = 256 * 2**20
"""Bytes left free on the disk beside what is written."""

READ_BYTES = 4 * 2**20

FINISHED = "finished.json"
"""File in the unfinished folder: what it is made of, and the digest of each file that is whole."""

LOCK = "lock"

Progress = Callable[[int, int], None]
"""Callback with the bytes of tensors that are written, and with all that will be."""


@dataclass(frozen=True, slots=True)
class NewTensors:
    """Some tensors of a new checkpoint that are made together, and how to make their bytes."""

    entries: Sequence[StoredTensor]
    """Names, types and shapes of the tensors; places count from the first one's first byte."""
    pieces: Callable[[], Iterator[bytes]]
    """Function that makes their bytes, one tensor behind the other."""

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(entry.stop - entry.start for entry in self.entries)


def one_tensor(
    name: str, dtype: str, shape: Sequence[int], size: int, pieces: Callable[[], Iterator[bytes]]
) -> NewTensors:
    """Writer of one tensor of `size` bytes, piece by piece."""
    return NewTensors((StoredTensor(name, dtype, tuple(shape), 0, size),), pieces)


def files_identity(paths: Iterable[Path]) -> str:
    """Text that tells these files from others, and from themselves once they are changed."""
    stats = [(str(path.absolute()), path.stat()) for path in paths]
    return json.dumps([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def write_checkpoint(
    folder: Path,
    tensors: Sequence[NewTensors],
    small_files: Mapping[str, bytes],
    progress: Progress,
    source: str,
) -> None:
    """Write a new checkpoint folder. `source` says what determines its bytes beside the names and
    shapes of tensors: an import that ended early goes on only from the same.

    Raises UserError when it cannot be written: something is there already, another import writes
    it, the disk is too full or cannot be written.
    """
    check_place(folder)
    unfinished = folder.absolute().parent / f".{folder.name}.importing"
    try:
        with _locked(unfinished, folder):
            work = _Work.found(unfinished, _digest_of(tensors, small_files, source))
            _check_free(folder, tensors, small_files, work)
            _write(work, tensors, small_files, progress)
            unfinished.rename(folder)
    except OSError as error:
        raise _refusal(folder, error) from error


def check_place(folder: Path) -> None:
    """Raise UserError where no new folder can be made."""
    if folder.exists():
        raise UserError(f"{folder} is there already: remove it, or name another with --out.")
    parent = folder.absolute().parent
    if not parent.is_dir():
        raise UserError(f"There is no folder {parent} in which to make {folder.name}.")


def _refusal(folder: Path, error: OSError) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"The disk of {folder} is full: make room and give the same command again, which goes "
            "on with what is finished."
        )
    return UserError(f"{folder} cannot be written ({error.strerror or error}).")


@contextmanager
def _locked(unfinished: Path, folder: Path) -> Iterator[None]:
    """Hold the unfinished folder for this process alone."""
    unfinished.mkdir(exist_ok=True)
    with (unfinished / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another import writes {folder} now: wait until it ends.") from None
        try:
            yield
        finally:
            if not (
                unfinished / FINISHED
            ).exists():  # Not one file is whole: nothing to go on with.
                shutil.rmtree(unfinished, ignore_errors=True)


def _digest_of(tensors: Sequence[NewTensors], small_files: Mapping[str, bytes], source: str) -> str:
    """Digest of all that determines what is written."""
    digest = hashlib.sha256(f"{__version__}\n{source}\n".encode())
    for part in tensors:
        digest.update(repr(part.entries).encode())
    for name, content in sorted(small_files.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@dataclass(slots=True)
class _Work:
    """Unfinished folder, and which of its weight files are whole."""

    folder: Path
    source: str
    """Digest of what it is made of."""
    digests: dict[str, str] = field(default_factory=dict)
    """Digest of each file that is whole."""

    @classmethod
    def found(cls, folder: Path, source: str) -> "_Work":
        """Work that an earlier import of the same source has left; of any other, nothing stays."""
        try:
            known = json.loads((folder / FINISHED).read_text())
            digests = known["digests"] if known["source"] == source else {}
        except (OSError, ValueError, KeyError, TypeError):
            digests = {}
        for path in folder.iterdir():
            if path.name not in (LOCK, FINISHED, *digests):
                path.unlink()
        whole = {name: one for name, one in digests.items() if _digest(folder / name) == one}
        return cls(folder, source, whole)

    @property
    def finished_bytes(self) -> int:
        """Bytes of all files that are whole."""
        return sum((self.folder / name).stat().st_size for name in self.digests)

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file that counts only when all of it is on the disk."""
        digest = hashlib.sha256()
        begun = self.folder / f"{name}.part"
        try:
            with begun.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
                    digest.update(piece)
                file.flush()
                os.fsync(file.fileno())
            begun.rename(self.folder / name)
        finally:
            begun.unlink(missing_ok=True)
        self.digests[name] = digest.hexdigest()
        known = {"source": self.source, "digests": self.digests}
        noted = self.folder / f"{FINISHED}.part"
        noted.write_text(json.dumps(known))
        noted.replace(self.folder / FINISHED)


def _digest(path: Path) -> str:
    """Digest of a file's content; empty when it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(READ_BYTES):
                digest.update(piece)
    except OSError:
        return ""
    return digest.hexdigest()


def _check_free(
    folder: Path, tensors: Sequence[NewTensors], small_files: Mapping[str, bytes], work: _Work
) -> None:
    size = sum(part.size for part in tensors) + sum(map(len, small_files.values()))
    missing = size - work.finished_bytes
    free = shutil.disk_usage(work.folder).free - SPARE_BYTES
    if missing > free:
        raise UserError(
            f"{folder} would take {gb_text(missing)}, and {gb_text(max(0, free))} are free "
            "there: name a folder on another disk with --out."
        )


def _write(
    work: _Work,
    tensors: Sequence[NewTensors],
    small_files: Mapping[str, bytes],
    progress: Progress,
) -> None:
    files = list(_files(tensors))
    total = sum(part.size for part in tensors)
    weight_map: dict[str, str] = {}
    done = 0
    for number, parts in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        entries = [entry for part in parts for entry in part.entries]
        weight_map |= dict.fromkeys((entry.name for entry in entries), name)
        size = sum(part.size for part in parts)
        if name not in work.digests:
            counted = _counted(_pieces(parts), done, total, progress)
            work.write(name, _with_header(entries, counted))
        done += size
        progress(done, total)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    for name, content in small_files.items():
        (work.folder / name).write_bytes(content)
    (work.folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    (work.folder / LOCK).unlink(missing_ok=True)
    (work.folder / FINISHED).unlink(missing_ok=True)


def _with_header(entries: Sequence[StoredTensor], pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield encode_header(entries, {"format": "pt"})
    yield from pieces


def _counted(pieces: Iterator[bytes], done: int, total: int, progress: Progress) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        done += len(piece)
        progress(done, total)


def _files(tensors: Sequence[NewTensors]) -> Iterator[list[NewTensors]]:
    """Tensors of each file, in the order given."""
    parts: list[NewTensors] = []
    size = 0
    for part in tensors:
        if parts and size + part.size > FILE_BYTES_MAX:
            yield parts
            parts, size = [], 0
        parts.append(part)
        size += part.size
    yield parts


def _pieces(parts: Iterable[NewTensors]) -> Iterator[bytes]:
    for part in parts:
        size = 0
        for piece in part.pieces():
            size += len(piece)
            yield piece
        assert size == part.size, part.entries
