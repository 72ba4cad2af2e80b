"""SQLite files with a version of their schema: opened, made, and brought up to date.

`PRAGMA user_version` counts the steps that a file has taken; each step runs in one transaction with
its number, so that a crash leaves a file of the old version or of the new. A published step never
changes: a new table is a new step. A file that has taken more steps than this build knows is left
as it is.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from molink.errors import UserError

__all__ = ["BUSY_S", "cannot_open", "open_database"]

BUSY_S = 5.0
"""A command waits so long for the coordinator's transaction, which takes milliseconds."""

OWNER_ONLY = 0o600


def open_database(
    path: Path,
    migrations: Sequence[str],
    busy_s: float = BUSY_S,
    otherwise: str = "give another --data-dir",
) -> sqlite3.Connection:
    """The file, made or brought up to date where needed; transactions are the caller's.

    May be used by several threads, one at a time. Raises UserError when it cannot be opened, is of
    a newer MoLink, or is no such file; `otherwise` is what helps where its disk and owner are well.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=OWNER_ONLY)
        connection = sqlite3.connect(
            path, timeout=busy_s, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise cannot_open(path, error, otherwise) from None
    try:
        _prepare(connection, path, migrations)
    except sqlite3.Error as error:
        connection.close()
        raise cannot_open(path, error, otherwise) from None
    except UserError:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    # A node that was let in must still be in after a power cut.
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
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def cannot_open(path: Path, error: OSError | sqlite3.Error, otherwise: str) -> UserError:
    """What to say of a file that cannot be used, with what helps."""
    return UserError(
        f"{path} cannot be opened ({error}): check its owner and whether its disk is full, or "
        f"{otherwise}."
    )
