"""The API keys of a server in one SQLite file, beside the registry of the cluster.

A file of its own, because usage is written every few seconds and `molink serve` has no registry.
`molink key` and a running server open it at the same time, as they do the registry.

Only the SHA-256 of a key is kept. A key is 256 random bits, so that nothing slower than one hash is
needed: there is nothing to guess, and an index over hashes tells an attacker who measures time only
about hashes that he cannot choose.
"""

import hashlib
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from molink.api.keys import daily_usage
from molink.api.keys.daily_usage import DayUsage
from molink.api.keys.wishes import check_limits, check_wishes
from molink.control.sqlite_file import open_database
from molink.errors import UserError

KEY_PREFIX = "molink-sk-"
"""Prefix by which people, and programs that search published files, recognise a key."""

SECRET_BYTES = 32

FILE_NAME = "keys.sqlite"

KEYS_MAX = 1000
"""Most usable keys at a time: the list is read by a person, and a running server keeps all."""

KEEP_ENDED_S = 30 * 24 * 3600.0
"""Seconds for which expired and revoked keys stay in the list, with what they have used."""

TEMPORARY_S = 60.0
"""Seconds for which a killed command's own key outlives it; a command that goes on renews it."""

ROTATED_S = 24 * 3600.0
"""Seconds for which a rotated key's old secret stays valid, for its users to get the new one."""

MIGRATIONS = (
    """
    CREATE TABLE keys (
        id TEXT PRIMARY KEY,
        digest BLOB NOT NULL UNIQUE,
        name TEXT NOT NULL,
        is_admin INTEGER NOT NULL,
        rate_per_min INTEGER,
        created REAL NOT NULL,
        expires REAL,
        revoked REAL,
        requests INTEGER NOT NULL DEFAULT 0,
        prompt_tokens INTEGER NOT NULL DEFAULT 0,
        answer_tokens INTEGER NOT NULL DEFAULT 0,
        last_used REAL
    )
    """,
    "ALTER TABLE keys ADD COLUMN priority INTEGER NOT NULL DEFAULT 0",
    """
    ALTER TABLE keys ADD COLUMN scope TEXT NOT NULL DEFAULT 'inference';
    UPDATE keys SET scope = 'admin' WHERE is_admin;
    ALTER TABLE keys DROP COLUMN is_admin;
    ALTER TABLE keys ADD COLUMN is_temporary INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE keys ADD COLUMN old_digest BLOB;
    ALTER TABLE keys ADD COLUMN old_until REAL
    """,
    f"{daily_usage.TABLE}; ALTER TABLE keys ADD COLUMN tokens_per_day INTEGER",
    """
    ALTER TABLE keys ADD COLUMN concurrency INTEGER;
    ALTER TABLE keys ADD COLUMN refused INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE usage_by_day ADD COLUMN refused INTEGER NOT NULL DEFAULT 0
    """,
)
"""Times are seconds since 1970; NULL: no limit, or not yet."""

KEY_COLUMNS = (
    "id, name, scope, rate_per_min, created, expires, revoked, priority, is_temporary, "
    "tokens_per_day, concurrency"
)
USAGE_COLUMNS = "requests, prompt_tokens, answer_tokens, last_used, refused"

_ROTATED_LATER = "coalesce(excluded.old_until, 0) > coalesce(old_until, 0)"
ADOPTED_COLUMNS = f"{KEY_COLUMNS}, digest, old_digest, old_until"
ADOPT = f"""
    INSERT INTO keys ({ADOPTED_COLUMNS})
    VALUES ({", ".join("?" for _ in ADOPTED_COLUMNS.split(","))}) ON CONFLICT (id) DO UPDATE SET
    revoked = coalesce(revoked, excluded.revoked),
    digest = iif({_ROTATED_LATER}, excluded.digest, digest),
    old_digest = iif({_ROTATED_LATER}, excluded.old_digest, old_digest),
    old_until = iif({_ROTATED_LATER}, excluded.old_until, old_until)
"""

KeyState = Literal["usable", "expired", "revoked", "rotated"]

Scope = Literal["inference", "watch", "admin"]
"""What a key opens: answers; what the cluster tells of itself, to read; everything, orders too."""


def digest_of(secret: str) -> bytes:
    """Hash of a secret, which is all that is kept of it."""
    return hashlib.sha256(secret.encode(errors="replace")).digest()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Key without its secret; times in seconds since 1970."""

    key_id: str
    name: str
    """Name for the operator; empty: none."""
    scope: Scope
    rate_per_min: int | None
    """Requests that it may send; None: no limit."""
    created: float
    expires: float | None
    revoked: float | None
    priority: int = 0
    """Priority of requests that state none; lower goes first. Requests may state no better one,
    unless the key is an admin's."""
    is_temporary: bool = False
    """Whether a command made the key for itself, rather than an operator for somebody."""
    tokens_per_day: int | None = None
    """Tokens of prompts and answers within a day of UTC, beyond which it is refused; None: no
    limit."""
    concurrency: int | None = None
    """Requests that it may have under way at the same time; None: no limit."""
    rotated: float | None = None
    """When a new secret replaced the one by which it was found, where `expires` is the end of that
    one alone; None: it is found by its own."""

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> "ApiKey":
        """The key of a row with `KEY_COLUMNS`."""
        key = cls(*row)
        return replace(key, is_temporary=bool(key.is_temporary))

    def state(self, now: float) -> KeyState:
        """Whether it opens anything, else why not."""
        if self.revoked is not None:
            return "revoked"
        if self.expires is None or now < self.expires:
            return "usable"
        return "expired" if self.rotated is None else "rotated"


@dataclass(slots=True)
class KeyUsage:
    """Sums of what was asked with a key."""

    requests: int = 0
    """Posts, those that were refused too."""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    last_used: float | None = None
    """Seconds since 1970; None: never."""
    refused: int = 0
    """Requests over a limit of the key."""

    def take(self) -> "KeyUsage":
        """Take the sums out: they begin at zero again."""
        taken = replace(self)
        self.requests = self.prompt_tokens = self.answer_tokens = self.refused = 0
        self.last_used = None
        return taken

    def add(self, other: "KeyUsage") -> None:
        """Add what was taken before."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.answer_tokens += other.answer_tokens
        self.last_used = self.last_used or other.last_used
        self.refused += other.refused


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key and what was asked with it."""

    key: ApiKey
    usage: KeyUsage


@dataclass(slots=True)
class KeyStore:
    """An open file of keys; its methods may be called from any thread."""

    path: Path
    _connection: sqlite3.Connection
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _data_version: int = -1

    @classmethod
    def open(cls, data_dir: Path) -> "KeyStore":
        """The keys in a data folder, which is made. Raises UserError when it cannot be opened."""
        path = data_dir / FILE_NAME
        return cls(path, open_database(path, MIGRATIONS))

    @staticmethod
    def exists(data_dir: Path) -> bool:
        """Whether there was ever a key in this folder."""
        return (data_dir / FILE_NAME).exists()

    def close(self) -> None:
        """Close the SQLite file."""
        with self._lock:
            self._connection.close()

    def create(
        self,
        now: float,
        *,
        name: str = "",
        scope: Scope = "inference",
        rate_per_min: int | None = None,
        expires_s: float | None = None,
        priority: int = 0,
        tokens_per_day: int | None = None,
        concurrency: int | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key and its secret, which nobody can read again.

        Raises UserError when a value is out of range or a usable key has the name.
        """
        check_wishes(name, rate_per_min, expires_s, priority)
        check_limits(tokens_per_day, concurrency)
        expires = None if expires_s is None else now + expires_s
        limits = (now, expires, None, priority, False, tokens_per_day, concurrency)
        row = (secrets.token_hex(4), name, scope, rate_per_min, *limits)
        with self._transaction() as db:
            # A file that has held a key holds one for ever: here another takes its place.
            db.execute(
                "DELETE FROM keys WHERE coalesce(revoked, expires) < ?", (now - KEEP_ENDED_S,)
            )
            _check_room(_keys(db), name, now)
            secret = _insert(db, row)
        return ApiKey.of_row(row), secret

    def revoke(self, which: str, now: float) -> ApiKey:
        """End the key of this id or name. Raises UserError when there is none."""
        with self._transaction() as db:
            key = _key(db, which, now)
            db.execute(
                "UPDATE keys SET revoked = coalesce(revoked, ?) WHERE id = ?", (now, key.key_id)
            )
        return key

    def rotate(self, which: str, now: float) -> tuple[ApiKey, str]:
        """The usable key of this id or name, and a new secret for it. The secret until now is good
        for a day more, one before that no longer. Raises UserError when there is none."""
        secret = _new_secret()
        with self._transaction() as db:
            key = _key(db, which, now)
            if key.state(now) != "usable":
                raise UserError(f"The key {which!r:.80} is {key.state(now)}: make a new one.")
            db.execute(
                "UPDATE keys SET old_digest = digest, old_until = ?, digest = ? WHERE id = ?",
                (now + ROTATED_S, digest_of(secret), key.key_id),
            )
        return key, secret

    @contextmanager
    def temporary_admin(self, now: float) -> Iterator[tuple[ApiKey, str]]:
        """An admin key and its secret, gone after the block, and a minute after it was made or
        renewed last in any case."""
        until = (now, now + TEMPORARY_S, None)
        row = (secrets.token_hex(4), "", "admin", None, *until, 0, True, None, None)
        with self._transaction() as db:
            db.execute("DELETE FROM keys WHERE is_temporary AND expires < ?", (now,))
            secret = _insert(db, row)
        try:
            yield ApiKey.of_row(row), secret
        finally:
            with suppress(sqlite3.Error), self._transaction() as db:
                db.execute("DELETE FROM keys WHERE id = ?", (row[0],))

    def renew(self, key: ApiKey, now: float) -> None:
        """Let a temporary key open what it opens for a minute from now."""
        with self._transaction() as db:
            db.execute("UPDATE keys SET expires = ? WHERE id = ?", (now + TEMPORARY_S, key.key_id))

    def adopt(self, other: "KeyStore", now: float) -> None:
        """Hold what was made, rotated or revoked in another store of the same cluster; what was
        done here stays. One that was made long ago may have been here, and is not taken anew."""
        query = f"SELECT {ADOPTED_COLUMNS} FROM keys"
        with other._lock:
            rows = other._connection.execute(f"{query} WHERE NOT is_temporary").fetchall()
        with self._transaction() as db:
            known = {key.key_id for key in _keys(db)}
            made_since = now - KEEP_ENDED_S
            db.executemany(ADOPT, [row for row in rows if row[0] in known or row[4] > made_since])

    def list_keys(self) -> list[KeyRecord]:
        """Keys that have not ended long ago, oldest first."""
        query = f"SELECT {USAGE_COLUMNS}, {KEY_COLUMNS} FROM keys ORDER BY created, rowid"
        with self._transaction() as db:
            rows = db.execute(query).fetchall()
        return [KeyRecord(ApiKey.of_row(row[5:]), KeyUsage(*row[:5])) for row in rows]

    def days_since(self, since: float) -> list[DayUsage]:
        """What was asked with each key on each day from that of `since` on, oldest first."""
        with self._lock:
            return daily_usage.days_since(self._connection, since)

    def by_digest(self) -> dict[bytes, ApiKey]:
        """All keys by the hash of their secret; by an old secret a key that expires with it."""
        query = f"SELECT digest, old_digest, old_until, {KEY_COLUMNS} FROM keys"
        with self._lock:
            rows = self._connection.execute(query).fetchall()
        found = {}
        for digest, old_digest, old_until, *row in rows:
            found[digest] = key = ApiKey.of_row(row)
            if old_digest is not None:
                outlived = key.expires is None or old_until < key.expires
                old = replace(key, expires=old_until, rotated=old_until - ROTATED_S)
                found[old_digest] = old if outlived else key
        return found

    def changed_elsewhere(self) -> bool:
        """Whether others have written since the last call, and at the first; costs microseconds."""
        with self._lock:
            before = self._data_version
            self._data_version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            return self._data_version != before

    def add_usage(self, given: Mapping[str, KeyUsage], now: float) -> None:
        """Add to the sums of keys, by their id, and to those of the day of `now`. Raises
        sqlite3.Error, having added nothing."""
        rows = [
            (one.requests, one.prompt_tokens, one.answer_tokens, one.refused, one.last_used, key_id)
            for key_id, one in given.items()
        ]
        with self._transaction() as db:
            db.executemany(
                "UPDATE keys SET requests = requests + ?, prompt_tokens = prompt_tokens + ?, "
                "answer_tokens = answer_tokens + ?, refused = refused + ?, "
                "last_used = coalesce(?, last_used) WHERE id = ?",
                rows,
            )
            daily_usage.add_to_day(db, now, {row[-1]: row[:4] for row in rows})

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._connection:  # Knows when SQLite has rolled back by itself.
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection


def _keys(db: sqlite3.Connection) -> list[ApiKey]:
    return [ApiKey.of_row(row) for row in db.execute(f"SELECT {KEY_COLUMNS} FROM keys")]


def _key(db: sqlite3.Connection, which: str, now: float) -> ApiKey:
    """The key of this id, or else the usable one of this name. Raises UserError for none."""
    named = [one for one in _keys(db) if one.name == which and one.state(now) == "usable"]
    found = [one for one in _keys(db) if one.key_id == which] or named
    if not found:
        raise UserError(f"There is no usable key {which!r:.80}: see molink key list.")
    return found[0]


def _new_secret() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def _insert(db: sqlite3.Connection, row: Sequence[Any]) -> str:
    """The secret of a new row with `KEY_COLUMNS`."""
    secret = _new_secret()
    places = ", ".join("?" * (len(row) + 1))
    db.execute(
        f"INSERT INTO keys ({KEY_COLUMNS}, digest) VALUES ({places})", (*row, digest_of(secret))
    )
    return secret


def _check_room(keys: Sequence[ApiKey], name: str, now: float) -> None:
    usable = [one for one in keys if one.state(now) == "usable"]
    if len(usable) >= KEYS_MAX:
        raise UserError(f"There are {KEYS_MAX} keys: revoke some (molink key revoke ID).")
    if name and any(one.name == name for one in usable):
        raise UserError(f"There is a key {name!r} already: revoke it or choose another --name.")
