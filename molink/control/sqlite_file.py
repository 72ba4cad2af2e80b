"""SQLite files with a version of their schema: opened, made, and brought up to date.

`PRAGMA user_version` counts the steps that a file has taken; each step runs in one transaction with
its number, so that a crash leaves a file of the old version or of the new. A published step never
changes: a new table is a new step. A file that has taken more steps than this build knows is left
as it is.

A damaged file that only holds what may be lost is put aside and begun anew. One that may not, an
emptied one too, is never taken for new: members, keys and who may ask would be forgotten without a
word. Of those a copy is kept, of the last start that was on another day.
"""

import logging
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

from molink.errors import UserError

log = logging.getLogger(__name__)

BUSY_S = 5.0
"""A command waits so long for the coordinator's transaction, which takes milliseconds."""

OWNER_ONLY = 0o600

COPY_S = 86_400.0
"""Age at which a copy is made anew."""

BEGUN_WITHIN_S, LOOK_S = 1.0, 0.05
"""For which an empty file is perhaps one that another process makes just now."""

DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


class _DamagedError(Exception):
    """Raised when a file is there and is no whole database; its text is a clause."""


def open_database(
    path: Path, migrations: Sequence[str], busy_s: float = BUSY_S, *, may_be_lost: bool = False
) -> sqlite3.Connection:
    """The file, made or brought up to date where needed; transactions are the caller's.

    May be used by several threads, one at a time. Raises UserError when it cannot be opened, is of
    a newer MoLink, or is damaged; one that `may_be_lost` is put aside then, and begun anew.
    """
    try:
        if may_be_lost:
            return _opened(path, migrations, busy_s)
        _refuse_emptied(path)
        connection = _opened(path, migrations, busy_s)
        _keep_copy(connection, path)
        return connection
    except _DamagedError as damage:
        if not may_be_lost:
            raise UserError(
                f"{path} is damaged ({damage}): put {_copy_of(path)} in its place, or a copy of "
                f"yours, and remove {path.name}-wal and {path.name}-shm, which belong to the "
                "damaged one. It is not begun anew, as members and keys would be forgotten."
            ) from None
        _put_aside(path, str(damage))
        return _opened(path, migrations, busy_s)


def _refuse_emptied(path: Path) -> None:
    until = time.monotonic() + BEGUN_WITHIN_S
    while path.exists() and not path.stat().st_size:
        if time.monotonic() > until:
            raise _DamagedError("it is empty")
        time.sleep(LOOK_S)


def _put_aside(path: Path, why: str) -> None:
    aside = path.with_name(f"{path.name}.damaged-{time.time():.0f}")
    for part in ("", "-wal", "-shm"):
        if (one := path.with_name(path.name + part)).exists():
            one.rename(aside.with_name(aside.name + part))
    log.warning("%s is damaged (%s): it is kept as %s and begun anew", path, why, aside.name)


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.copy")


def _keep_copy(connection: sqlite3.Connection, path: Path) -> None:
    """Copy the file, unless that was done today. A full disk is no reason not to start."""
    copy = _copy_of(path)
    new = copy.with_suffix(".new")
    try:
        if copy.exists() and time.time() - copy.stat().st_mtime < COPY_S:
            return
        new.unlink(missing_ok=True)
        new.touch(mode=OWNER_ONLY)
        connection.execute("VACUUM INTO ?", (str(new),))
        new.replace(copy)
    except (OSError, sqlite3.Error) as error:
        log.warning("no copy of %s is kept: %s", path, error)


def _opened(path: Path, migrations: Sequence[str], busy_s: float) -> sqlite3.Connection:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=OWNER_ONLY)
        connection = sqlite3.connect(
            path, timeout=busy_s, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise cannot_open(path, error) from None
    try:
        _prepare(connection, path, migrations)
    except UnicodeDecodeError:  # Of a name in it, or of what SQLite says of that.
        connection.close()
        raise _DamagedError("it holds names that are no text") from None
    except sqlite3.Error as error:
        connection.close()
        if (getattr(error, "sqlite_errorname", "") or "").startswith(DAMAGE):
            raise _DamagedError(str(error)) from None
        raise cannot_open(path, error) from None
    except (UserError, _DamagedError):
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    connection.row_factory = sqlite3.Row
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise _DamagedError(str(found).splitlines()[-1][:100])
    connection.execute("PRAGMA journal_mode = WAL")
    # A node that was let in must still be in after a power cut.
    connection.execute("PRAGMA synchronous = FULL")
    while (version := _version(connection)) < len(migrations):
        _migrate(connection, version, migrations[version])
    if version > len(migrations):
        raise UserError(f"{path} was written by a newer MoLink: update this one.")
    if lacking := _columns_of(tuple(migrations)) - _columns(connection):
        raise _DamagedError(f"it lacks {min(lacking).decode()}")


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


@cache
def _columns_of(migrations: tuple[str, ...]) -> frozenset[bytes]:
    with closing(sqlite3.connect(":memory:")) as made:
        for step in migrations:
            made.executescript(step)
        return _columns(made)


def _columns(connection: sqlite3.Connection) -> frozenset[bytes]:
    """Each column with its table and type: a flipped bit may change one."""
    one = "CAST(m.name || '.' || c.name || ' ' || c.type || ' ' || c.pk AS BLOB)"
    found = connection.execute(f"SELECT {one} FROM sqlite_master m, pragma_table_info(m.name) c")
    return frozenset(bytes(column) for (column,) in found)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def cannot_open(path: Path, error: OSError | sqlite3.Error) -> UserError:
    """What to say of a file that cannot be used, with what helps."""
    why = getattr(error, "strerror", None) or error
    return UserError(
        f"{path} cannot be opened ({why}): check its owner, and whether its disk is full or "
        "read-only."
    )
