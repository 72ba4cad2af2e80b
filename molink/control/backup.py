"""One file with everything that a cluster cannot make anew, and the way back into a folder.

A backup is a compressed tar archive: first a manifest, then each file that it names with its length
and its SHA-256. Databases are copied by SQLite itself (`VACUUM INTO`), so that one is whole though
a coordinator writes to it meanwhile. Requests and answers are left out: they are what users write,
and an hour later nobody wants them.

A file is checked as a whole before anything of it is put anywhere, and put in place with the
members last: without those a folder holds no cluster, so that an interrupted restore is begun anew.
Nothing else is overwritten: not the keys of `molink serve`, and SQLite would replay the log (-wal)
that a lost database left behind over the restored one.
"""

import errno
import hashlib
import json
import os
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink_scheduler.units import GB

FORMAT = 1
"""Raised whenever a build before could not restore what is written from now on."""

MANIFEST = "manifest.json"

BYTES_MAX = GB
"""Most bytes of a file in a backup: a thousand times what a large cluster has."""

OWNER_ONLY = 0o600

FULL = (errno.ENOSPC, errno.EDQUOT)

_DAMAGE = (tarfile.TarError, zlib.error, EOFError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a backup may hold."""

    databases: Mapping[str, int]
    """Names of SQLite files and the schema steps that this build knows; the members' comes last."""
    others: tuple[str, ...]
    """Names of files that are copied as they are."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names in the order in which they are put in place."""
        return (*self.others, *self.databases)


@dataclass(frozen=True, slots=True)
class Backup:
    """A whole backup, checked."""

    version: str
    """Version of the MoLink that wrote it."""
    created: str
    """Time in UTC, ISO 8601."""
    files: Mapping[str, bytes]


def write_backup(path: Path, folder: Path, contents: Contents, version: str) -> list[str]:
    """Back up what `folder` has of the contents into the new file `path`; the names of it.

    Raises UserError when the folder holds no cluster, the file exists or cannot be written, or a
    database is damaged.
    """
    *_, members = contents.databases
    if not (folder / members).exists():
        raise UserError(f"There is no cluster in {folder} to back up: give --data-dir.")
    if path.exists():
        raise UserError(f"{path} exists already: give the backup a name of its own.")
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        files = dict(_copied(folder, contents, Path(aside)))
    try:
        _write(path, files, contents, version)
    except OSError as error:
        helps = "make room there" if error.errno in FULL else "write it somewhere else"
        raise UserError(f"{path} cannot be written ({error.strerror}): {helps}.") from None
    return list(files)


def read_backup(path: Path, contents: Contents) -> Backup:
    """The backup in a file. Raises UserError when it is none, damaged, or of a newer MoLink."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:gz") as archive:
            manifest = json.loads(_member(archive, MANIFEST))
            _check_age(path, manifest, contents)
            return Backup(
                str(manifest["version"]),
                str(manifest["created"]),
                {name: _checked(archive, name, manifest) for name in manifest["files"]},
            )
    except OSError as error:
        if isinstance(error, tarfile.TarError) or not error.strerror:
            raise _no_backup(path) from None
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    except _DAMAGE:
        raise _no_backup(path) from None


def restore_backup(backup: Backup, folder: Path, contents: Contents) -> list[str]:
    """Put the files of a backup into a folder that holds none of them; their names.

    Raises UserError when it holds a cluster or a part of one, or cannot be written.
    """
    names = [name for name in contents.names if name in backup.files]
    try:
        for found in _in_the_way(backup, folder, contents):
            raise UserError(
                f"{folder} holds {found} already: give an empty --data-dir, or move {folder} away."
            )
        for name in names:
            _put(folder / name, backup.files[name])
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({error.strerror}): is its disk full?"
        ) from None
    return names


def _in_the_way(backup: Backup, folder: Path, contents: Contents) -> Iterator[str]:
    """What a folder has of a cluster, but for what an interrupted restore of this backup left."""
    *_, members = contents.databases
    if (folder / members).exists():
        yield "a cluster"
    for name in contents.names:
        path = folder / name
        if path.exists() and path.read_bytes() != backup.files.get(name):
            yield name
        if (log := path.with_name(f"{name}-wal")).exists():
            yield log.name


def _copied(folder: Path, contents: Contents, aside: Path) -> Iterator[tuple[str, bytes]]:
    for name in contents.names:
        path = folder / name
        if not path.exists():
            continue
        if name in contents.databases:
            path = _database_copy(path, aside / name)
        yield name, path.read_bytes()


def _database_copy(path: Path, copy: Path) -> Path:
    """A whole copy of a database that others may write to meanwhile."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            db.execute("VACUUM INTO ?", (str(copy),))
    except sqlite3.Error as error:
        raise UserError(f"{path} cannot be copied ({error}): nothing was backed up.") from None
    return copy


def _write(path: Path, files: Mapping[str, bytes], contents: Contents, version: str) -> None:
    """The archive appears under its name when it is whole and on the disk."""
    manifest = {
        "format": FORMAT,
        "version": version,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": {name: _facts(name, content, contents) for name, content in files.items()},
    }
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as aside:
        written = Path(aside) / path.name
        written.touch(mode=OWNER_ONLY)
        with written.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as archive:
                _add(archive, MANIFEST, json.dumps(manifest, indent=2).encode())
                for name, content in files.items():
                    _add(archive, name, content)
            file.flush()
            os.fsync(file.fileno())
        _appear(written, path)


def _appear(written: Path, path: Path) -> None:
    """Give a file its name, in the place of no other one."""
    try:
        os.link(written, path)
    except FileExistsError:
        raise
    except OSError:  # A stick (FAT) or a share has no hard links.
        if path.exists():
            raise
        written.rename(path)


def _facts(name: str, content: bytes, contents: Contents) -> Mapping[str, object]:
    return {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "steps": _schema_steps(content) if name in contents.databases else None,
    }


def _schema_steps(database: bytes) -> int:
    """`PRAGMA user_version` of a SQLite file: four bytes at 60 (SQLite's file format, 1.3)."""
    return int.from_bytes(database[60:64], "big")


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), OWNER_ONLY
    archive.addfile(entry, BytesIO(content))


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    entry = archive.getmember(name)
    file = archive.extractfile(entry)
    if file is None or entry.size > BYTES_MAX:
        raise ValueError(f"{name} is no file of ours")
    return file.read()


def _checked(archive: tarfile.TarFile, name: str, manifest: Mapping[str, Any]) -> bytes:
    content = _member(archive, name)
    if hashlib.sha256(content).hexdigest() != manifest["files"][name]["sha256"]:
        raise ValueError(f"{name} is not what was written")
    return content


def _check_age(path: Path, manifest: Mapping[str, Any], contents: Contents) -> None:
    steps = {name: int(facts["steps"] or 0) for name, facts in manifest["files"].items()}
    newer = any(steps[name] > known for name, known in contents.databases.items() if name in steps)
    if int(manifest["format"]) > FORMAT or newer or set(steps) - set(contents.names):
        raise UserError(
            f"{path} was written by a newer MoLink ({manifest['version']}): update this one first."
        )


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as aside:
        written = Path(aside) / path.name
        written.touch(mode=OWNER_ONLY)
        with written.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)


def _no_backup(path: Path) -> UserError:
    return UserError(
        f"{path} is no backup of MoLink's, or was cut short or altered: nothing was restored."
    )
