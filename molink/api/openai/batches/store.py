"""Files and batches on disk, each its owner's alone.

Records are rows of one SQLite file beside the keys; a file's bytes lie below `files/` under its id.
An owner is the id of an API key; empty: whoever asks without one.
"""

import json
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from molink.control.sqlite_file import open_database
from molink.json_object import JsonObject
from molink_scheduler.units import GIB

FILE_NAME = "batches.sqlite"

KEPT_S = 30 * 24 * 3600
"""Seconds after which a file is removed whose owner has said nothing, and a batch that has ended:
OpenAI keeps outputs as long."""

FILES_MAX, OWNER_BYTES_MAX = 1000, 2 * GIB
"""Most files of one owner, and most bytes of them together; outputs count for what comes next."""

UNFINISHED_MAX = 50
"""Most batches of one owner that have not ended."""

ENDED = ("completed", "cancelled", "expired", "failed")

PART = ".part"
"""Ending of a file that is not whole yet."""

MIGRATIONS = (
    """
    CREATE TABLE files (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        filename TEXT NOT NULL,
        purpose TEXT NOT NULL,
        bytes INTEGER NOT NULL,
        lines INTEGER NOT NULL,
        created INTEGER NOT NULL
    );
    CREATE TABLE batches (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        created INTEGER NOT NULL,
        has_ended INTEGER NOT NULL,
        api_object TEXT NOT NULL
    )
    """,
    f"""
    ALTER TABLE files ADD COLUMN expires INTEGER NOT NULL DEFAULT 0;
    UPDATE files SET expires = created + {KEPT_S}
    """,
)
"""Times are whole seconds since 1970; `api_object` is a batch as its owner reads it."""

FILE_COLUMNS = "id, owner, filename, purpose, bytes, lines, created, expires"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Record of a file that is whole."""

    file_id: str
    owner: str
    filename: str
    purpose: str
    """ "batch", or "batch_output" of what a batch has written."""
    size: int
    """Bytes."""
    lines: int
    """Lines that are not blank."""
    created: int
    expires: int
    """When it is removed, but for one that a batch still reads."""

    @property
    def api_object(self) -> JsonObject:
        """The file as OpenAI's object."""
        return {
            "id": self.file_id,
            "object": "file",
            "bytes": self.size,
            "created_at": self.created,
            "expires_at": self.expires,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """Record of a batch."""

    batch_id: str
    owner: str
    api_object: JsonObject
    """The batch as OpenAI's object."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it will be computed any more."""
        return self.api_object["status"] in ENDED

    def changed(self, **fields: Any) -> "StoredBatch":
        """The batch with other fields."""
        return replace(self, api_object=self.api_object | fields)


@dataclass(slots=True)
class BatchStore:
    """An open folder of files and batches; its methods may be called from any thread.

    They raise sqlite3.Error or OSError when the disk cannot be written, having changed nothing.
    """

    folder: Path
    _db: sqlite3.Connection
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def open(cls, folder: Path) -> "BatchStore":
        """The store in a folder, which is made. Raises UserError when it cannot be opened."""
        store = cls(folder, open_database(folder / FILE_NAME, MIGRATIONS))
        (folder / "files").mkdir(mode=0o700, exist_ok=True)
        for left in (folder / "files").glob(f"*{PART}"):
            left.unlink(missing_ok=True)
        return store

    def close(self) -> None:
        """Close the SQLite file."""
        with self._lock:
            self._db.close()

    def path(self, file_id: str) -> Path:
        """Where the bytes of a file of ours lie."""
        return self.folder / "files" / file_id

    def draft(self) -> Path:
        """A new place for a file that is still to come, of an id that nobody can guess."""
        return self.path(f"file-{secrets.token_hex(12)}{PART}")

    # -- files ------------------------------------------------------------------------------------

    def keep(
        self, draft: Path, owner: str, filename: str, lines: int, now: int, kept_s: int
    ) -> StoredFile:
        """Keep a file that has come whole, for so many seconds."""
        file_id = draft.name.removesuffix(PART)
        size = draft.stat().st_size
        file = StoredFile(file_id, owner, filename, "batch", size, lines, now, now + kept_s)
        draft.rename(self.path(file_id))
        self.add(file)
        return file

    def add(self, file: StoredFile) -> None:
        """Note a file that lies at its path, once."""
        row = file.file_id, file.owner, file.filename, file.purpose, file.size, file.lines
        with self._transaction() as db:
            db.execute(
                f"INSERT OR REPLACE INTO files ({FILE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, file.created, file.expires),
            )

    def files(self, owner: str) -> list[StoredFile]:
        """An owner's files, newest first."""
        query = (
            f"SELECT {FILE_COLUMNS} FROM files WHERE owner = ? ORDER BY created DESC, rowid DESC"
        )
        with self._lock:
            return [StoredFile(*row) for row in self._db.execute(query, (owner,))]

    def delete(self, file: StoredFile) -> None:
        """Remove a file, and what is known of it."""
        with self._transaction() as db:
            db.execute("DELETE FROM files WHERE id = ?", (file.file_id,))
        self.path(file.file_id).unlink(missing_ok=True)

    # -- batches ----------------------------------------------------------------------------------

    def save(self, batch: StoredBatch) -> None:
        """Keep a batch as it is now."""
        api_object, created = json.dumps(batch.api_object), batch.api_object["created_at"]
        row = batch.batch_id, batch.owner, created, batch.has_ended, api_object
        with self._transaction() as db:
            db.execute(
                "INSERT INTO batches (id, owner, created, has_ended, api_object) "
                "VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE "
                "SET has_ended = excluded.has_ended, api_object = excluded.api_object",
                row,
            )

    def batches(self, owner: str) -> list[StoredBatch]:
        """An owner's batches, newest first."""
        return self._batches("owner = ? ORDER BY created DESC, rowid DESC", (owner,))

    def batch(self, owner: str, batch_id: str) -> StoredBatch | None:
        """The owner's batch of this id; None: there is none, or it is another's."""
        return next(iter(self._batches("owner = ? AND id = ?", (owner, batch_id))), None)

    def unfinished(self) -> list[StoredBatch]:
        """Batches of all owners that have not ended, the first deadline first."""
        found = self._batches("NOT has_ended ORDER BY created, rowid", ())
        return sorted(found, key=lambda one: one.api_object["expires_at"])

    def _batches(self, where: str, values: tuple[str, ...]) -> list[StoredBatch]:
        query = f"SELECT id, owner, api_object FROM batches WHERE {where}"
        with self._lock:
            rows = self._db.execute(query, values).fetchall()
        return [StoredBatch(one, owner, json.loads(api_object)) for one, owner, api_object in rows]

    def drop_old(self, now: float) -> None:
        """Remove what is kept no longer; what unfinished batches read stays."""
        read = {one.api_object["input_file_id"] for one in self.unfinished()}
        with self._lock:
            query = f"SELECT {FILE_COLUMNS} FROM files WHERE expires <= ?"
            old = [StoredFile(*row) for row in self._db.execute(query, (now,))]
        for file in old:
            if file.file_id not in read:
                self.delete(file)
        with self._transaction() as db:
            db.execute("DELETE FROM batches WHERE has_ended AND created < ?", (now - KEPT_S,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db


def removed(path: Path) -> None:
    """Remove a file that is not wanted, if it can be."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
