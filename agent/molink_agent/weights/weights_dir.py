"""The directory of all weights: locked by one process, within the disk that is lent, with views.

A *view* is the directory that a stage loads from: links to parts, and an index of just these. There
is one for each range of layers, so that two devices of a PC can hold different layers of a model
and share what both need. A view is put together after everything in it has been checked, and
appears at once, by a rename; its time of change is when it was last asked for.

Room is made by removing first what no view leads to: parts of a download that was given up, layers
that this node no longer holds. Then whole views go, the one that was asked for longest ago first,
each with the files that only it led to. What stages run from is never touched.
"""

import asyncio
import errno
import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from molink.checkpoint.checkpoint import INDEX
from molink.errors import WeightsError
from molink_agent.weights.source import WeightsLimits
from molink_scheduler.units import GB, gb_text

LOCK_FILE = ".lock"

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

NOT_PLAIN = re.compile(r"[^A-Za-z0-9]+")

NAME_CHARS_MAX = 60
"""Most characters of a model's name in a folder's name."""

REVISION_CHARS = 12
"""Characters of the content's hash in a folder's name, to tell versions apart, not for trust."""

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class DiskFullError(Exception):
    """Raised when the disk takes no more; what is on it stays."""


async def in_thread(
    function: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """Run disk work off the event loop; a cancelled caller waits for the thread's end, so that
    nobody finds a file half written by a thread that was left behind."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **options))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def on_disk(action: Callable[[], Result]) -> Result:
    """The result of `action`. Raises DiskFullError or WeightsError for an OSError."""
    try:
        return action()
    except OSError as error:
        if error.errno in DISK_FULL:
            raise DiskFullError from error
        where = Path(str(error.filename)).name if error.filename else "a file"
        raise WeightsError(
            f"{where} cannot be written ({error.strerror}): see to the disk and its rights"
        ) from error


@contextmanager
def locked(directory: Path) -> Iterator[Path]:
    """Hold the directory, made if need be, for this process; its absolute path.

    The lock is the kernel's, on an open file: it ends with the process, so there is never a stale
    one to remove by hand. Raises WeightsError when another process holds it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise WeightsError(
            f"weights cannot be kept in {directory} ({error.strerror}): see to its owner and disk"
        ) from error
    try:
        _lock(descriptor, directory)
        yield directory.absolute()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise WeightsError(
            f"another download (process {owner}) is writing into {directory}: wait for it, or give "
            "this agent a --data-dir of its own"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Folder of the parts and views of one version of a model."""

    root: Path

    @classmethod
    def of(cls, directory: Path, model: str, revision: str) -> "ModelFolder":
        """The folder of this version in the directory of all weights."""
        name = NOT_PLAIN.sub("-", model).strip("-").lower()[-NAME_CHARS_MAX:]
        return cls(directory / "models" / f"{name}-{revision[:REVISION_CHARS]}")

    @property
    def parts(self) -> Path:
        """Folder of the files that were fetched."""
        return self.root / "parts"

    def view(self, layers: range) -> Path:
        """Folder that a stage of these layers loads."""
        return self.root / f"layers-{layers.start}-{layers.stop}"


def make_view(view: Path, files: Mapping[str, Path], weight_map: Mapping[str, str]) -> None:
    """Links by name to `files`, and an index (tensor to name) of them; replaces an older view, but
    writes nothing where that is the same: the disk may be full."""
    links = {name: os.path.relpath(target, view) for name, target in files.items()}
    index = json.dumps({"metadata": {}, "weight_map": dict(weight_map)})
    if _view_content(view) == (links, index):
        os.utime(view)
        return
    draft = view.with_name(f"{view.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name, target in links.items():
        (draft / name).symlink_to(target)
    (draft / INDEX).write_text(index, encoding="utf-8")
    shutil.rmtree(view, ignore_errors=True)
    draft.replace(view)


def _view_content(view: Path) -> tuple[dict[str, str], str] | None:
    """The links and the index of a view; None where there is none, or what is no link."""
    try:
        links = {one.name: str(one.readlink()) for one in view.iterdir() if one.name != INDEX}
        return links, (view / INDEX).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Space for one download in the weights directory, within the owner's cap."""

    directory: Path
    limits: WeightsLimits
    purpose: str
    """Words for what is downloaded."""

    def make(self, missing_bytes: int, wanted: Iterable[Path], view: Path) -> None:
        """Make room for `missing_bytes` more. `wanted` files and `view` stay. Raises WeightsError
        when there is none."""
        cap = self.limits.disk_bytes_max
        if cap is not None:
            self._evict(cap - missing_bytes, {path.resolve() for path in wanted}, view)
            over = self._used_bytes() + missing_bytes - cap
            if over > 0:
                raise WeightsError(
                    f"the disk cap is {_rounded_up(over)} too small for {self.purpose}: raise "
                    "it, or ask for fewer layers"
                )
        if missing_bytes > max(0, self._free_bytes()):
            raise self.full(missing_bytes)

    def full(self, missing_bytes: int) -> WeightsError:
        """The error of a disk that does not take `missing_bytes` more."""
        short = max(missing_bytes - self._free_bytes(), 1)
        return WeightsError(
            f"the disk of {self.directory} is {_rounded_up(short)} short of {self.purpose} "
            f"(with {gb_text(self.limits.disk_reserve_bytes)} to spare); what has come is "
            "kept: free that much and start again"
        )

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self.directory).free - self.limits.disk_reserve_bytes

    def _evict(self, bytes_max: int, wanted: set[Path], view: Path) -> None:
        """Remove what is not needed until no more than `bytes_max` are left, if possible."""
        kept = {view.resolve(), *(path.resolve() for path in self.limits.keep)}
        if self._used_bytes() > bytes_max:
            self._remove_orphans(wanted)
        for old in sorted(self._views(), key=lambda path: path.stat().st_mtime_ns):
            if self._used_bytes() <= bytes_max:
                return
            if old.resolve() not in kept:
                self._remove_view(old, wanted)

    def _views(self) -> list[Path]:
        return [path for path in self.directory.glob("models/*/layers-*") if path.is_dir()]

    def _remove_view(self, view: Path, wanted: set[Path]) -> None:
        targets = {link.resolve() for link in view.iterdir() if link.is_symlink()}
        shutil.rmtree(view)
        for target in targets - self._linked() - wanted:
            target.unlink(missing_ok=True)
        self._remove_orphans(wanted)
        folder = view.parent
        if not any(other.parent == folder for other in self._views()) and not any(
            path.is_relative_to(folder.resolve()) for path in wanted
        ):
            shutil.rmtree(folder)

    def _remove_orphans(self, wanted: set[Path]) -> None:
        """Parts, with their journals, that neither a view nor this download wants."""
        needed = wanted | self._linked()
        for path in self.directory.glob("models/*/parts/*"):
            owner = path.with_name(path.name.removesuffix(".journal").removesuffix(".partial"))
            if owner.resolve() not in needed:
                path.unlink(missing_ok=True)

    def _linked(self) -> set[Path]:
        return {link.resolve() for view in self._views() for link in view.iterdir()}

    def _used_bytes(self) -> int:
        """Bytes that all weights take on the disk."""
        found = (path for path in self.directory.rglob("*") if not path.is_symlink())
        return sum(path.stat().st_size for path in found if path.is_file())


def layers_text(layers: range) -> str:
    """The layers as people count them, both ends included."""
    return f"layers {layers.start} to {layers.stop - 1}"


def _rounded_up(size: int) -> str:
    """A size in GB, rounded up to a tenth, so that freeing what is printed is enough."""
    tenth = GB // 10
    return gb_text(math.ceil(size / tenth) * tenth)
