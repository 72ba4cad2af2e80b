"""The registry's SQLite file: its tables, their rows as values, and how an older file is updated.

`PRAGMA user_version` counts the steps that a file has taken; each step runs in one transaction with
its number, so that a crash leaves a file of the old version or of the new. A published step never
changes: a new table is a new step. No record shows a password when printed.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from molink.errors import UserError

__all__ = [
    "BUSY_S",
    "INVITE_COLUMNS",
    "MIGRATIONS",
    "NODE_COLUMNS",
    "InviteRecord",
    "InviteState",
    "Membership",
    "NodeRecord",
    "open_database",
]

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

INVITE_COLUMNS = "id, name, created, expires, uses_total, uses_left, revoked"
NODE_COLUMNS = "id, name, public_key, password, weights_token, joined, invite_id, removed, pc"
"""As the records' fields follow each other."""

InviteState = Literal["usable", "used up", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class InviteRecord:
    """One row of `invites`, without the secret; times in seconds since 1970."""

    invite_id: str
    name: str
    """For the operator; empty: none."""
    created: float
    expires: float
    uses_total: int
    uses_left: int
    revoked: float | None

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> "InviteRecord":
        """The record of a row with `INVITE_COLUMNS`."""
        return cls(*row)

    def state(self, now: float) -> InviteState:
        """Whether a node can still join with it, else the first reason why not."""
        if self.revoked is not None:
            return "revoked"
        if now >= self.expires:
            return "expired"
        return "usable" if self.uses_left > 0 else "used up"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One row of `nodes`: a node that has joined."""

    node_id: str
    name: str
    public_key: str
    """Z85."""
    password: str = field(repr=False)
    """Its broker password; the user name is the id."""
    weights_token: str = field(repr=False)
    joined: float
    invite_id: str
    removed: float | None
    """When it was removed; None: it belongs to the cluster."""
    pc: str
    """Id of the PC's first device: its own, unless it is a further device of that PC."""

    @property
    def is_pc(self) -> bool:
        """Whether it has joined with an invite, and vouches for its PC's further devices."""
        return self.pc == self.node_id

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> "NodeRecord":
        """The record of a row with `NODE_COLUMNS`."""
        return cls(*row)


@dataclass(frozen=True, slots=True)
class Membership:
    """Outcome of letting a node in."""

    node: NodeRecord
    is_new: bool
    """Whether it has spent a use of its invite; a node that asks again has not."""


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


def _cannot_open(path: Path, error: OSError | sqlite3.Error) -> UserError:
    return UserError(
        f"{path} cannot be opened ({error}): check its owner and whether its disk is full, or give "
        "another --data-dir."
    )
