"""The registry's SQLite file: its tables, and how an older file becomes one of today.

`PRAGMA user_version` counts the steps that a file has taken; each step runs in one transaction with
its number, so that a crash leaves a file of the old version or of the new. A published step never
changes: a new table is a new step.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from molink.errors import UserError

__all__ = ["MIGRATIONS", "open_database"]

BUSY_S = 5.0
"""A command waits so long for the coordinator's transaction, which takes milliseconds."""

OWNER_ONLY = 0o600

MIGRATIONS = (
    """
    CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE invites (
        id TEXT PRIMARY KEY,
        secret_digest BLOB NOT NULL,
        name TEXT NOT NULL,
        created REAL NOT NULL,
        expires REAL NOT NULL,
        uses_total INTEGER NOT NULL,
        uses_left INTEGER NOT NULL CHECK (uses_left >= 0),
        revoked REAL
    );
    CREATE TABLE nodes (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        public_key TEXT NOT NULL UNIQUE,
        password TEXT NOT NULL,
        weights_token TEXT NOT NULL UNIQUE,
        joined REAL NOT NULL,
        invite_id TEXT NOT NULL,
        removed REAL
    );
    """,
    """
    ALTER TABLE nodes ADD COLUMN pc TEXT;
    UPDATE nodes SET pc = id;
    """,
)
"""Times are seconds since 1970; `revoked` and `removed` are NULL while that has not happened."""


def open_database(path: Path, migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """The file, made or brought up to date where needed; transactions are the caller's.

    May be used by several threads, one at a time. Raises UserError when it cannot be opened, is of
    a newer MoLink, or is no registry.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=OWNER_ONLY)
        connection = sqlite3.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise _cannot_open(path, error) from None
    try:
        _prepare(connection, path, migrations)
    except sqlite3.Error as error:
        connection.close()
        raise _cannot_open(path, error) from None
    except UserError:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    # Whoever was told that it has joined must still have joined after a power cut.
    connection.execute("PRAGMA synchronous = FULL")
    while (version := _version(connection)) < len(migrations):
        _migrate(connection, version, migrations[version])
    if version > len(migrations):
        raise UserError(f"{path} was written by a newer MoLink: update this one.")


def _migrate(connection: sqlite3.Connection, version: int, step: str) -> None:
    """One step, unless another process takes it at the same time."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection) == version:
            for statement in step.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _cannot_open(path: Path, error: OSError | sqlite3.Error) -> UserError:
    return UserError(
        f"{path} cannot be opened as the cluster's registry ({error}): "
        "check its owner, or give another --data-dir."
    )
