"""The registry of the cluster: the coordinator's key, its invites and its nodes in one SQLite file.

The coordinator and the `molink invite` and `molink node` commands open the same file at the same
time; WAL and immediate transactions make that safe, and `changed` shows the coordinator that a
command has written. Reading has a connection of its own: it waits for no writer and no disk, so
that the coordinator's event loop may read whenever it likes. An HTTP API for these commands was
rejected: they must work while the coordinator is down, and only the operator may read the file
anyway.

Every write is one transaction, so that of two nodes which show the last use of an invite one is
refused. Times are arguments: seconds since 1970 by the coordinator's clock.
"""

import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from molink.control.identity import KeyPair, node_id_of
from molink.control.messages.invites import Invite, checked_url
from molink.control.messages.joining import JoinRequest
from molink.control.registry import rules
from molink.control.registry.database import (
    INVITE_COLUMNS,
    MIGRATIONS,
    InviteRecord,
    Membership,
    NodeRecord,
)
from molink.control.sqlite_file import BUSY_S, open_database
from molink.errors import MolinkError, StorageError, UserError

FILE_NAME = "registry.db"

KEEP_ENDED_S = 30 * 24 * 3600.0
"""Seconds for which ended invites stay in the list, and their users hear why they ended."""

LOOP_BUSY_S = 0.1
"""The event loop waits no longer for a command's transaction; what it wanted is tried again."""

REVISIONS_RESERVED = 1000
"""Revisions reserved at once; 2**63 are enough for a start every second."""

REVISIONS_LOST_MAX = 1_500_000_000
"""Most revisions given since a copy of this file was made: nodes heed none below their last. Names
of links hold a revision in at most twelve digits."""

SECRET_KEY, REVISION = "coordinator_secret_key", "assignment_revision"
AGENTS_URL, API_URL, BROKER_PORT = "agents_url", "coordinator_url", "broker_port"
START_INVITE = "start_invite"
"""Settings of our own; others may keep theirs under other names."""


@dataclass(slots=True)
class Registry:
    """Registry of a cluster; its methods may be called from any thread."""

    path: Path
    _connection: sqlite3.Connection
    """Connection for transactions that write."""
    _reader: sqlite3.Connection
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _reader_lock: threading.RLock = field(default_factory=threading.RLock)
    _revisions_lock: threading.RLock = field(default_factory=threading.RLock)
    _data_version: int = 0
    _revisions: range = range(0)
    """Reserved and not yet given."""

    @classmethod
    def open(cls, data_dir: Path, *, make: bool = True) -> "Registry":
        """The registry in the coordinator's data folder.

        Raises UserError when it cannot be opened, or with `make` False when there is none.
        """
        path = data_dir / FILE_NAME
        if not make and not path.exists():
            raise UserError(
                f"There is no cluster in {data_dir}: run molink up first, or give --data-dir."
            )
        writer = open_database(path, MIGRATIONS)
        try:
            registry = cls(path, writer, open_database(path, MIGRATIONS))
            registry.changed()
        except MolinkError:
            writer.close()
            raise
        return registry

    def close(self) -> None:
        """Close the SQLite file."""
        with self._lock, self._reader_lock:
            self._reader.close()
            self._connection.close()

    # -- the coordinator itself -----------------------------------------------------------------

    @property
    def coordinator(self) -> KeyPair:
        """The coordinator's key pair, made on first use; invites carry its public half."""
        known = self.setting(SECRET_KEY)
        if known is not None:
            return KeyPair.of_secret(bytes.fromhex(known))
        with self._transaction() as db:
            new = KeyPair.generate().secret.hex()
            db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (SECRET_KEY, new))
            return KeyPair.of_secret(bytes.fromhex(_setting(db, SECRET_KEY) or ""))

    @property
    def url(self) -> str | None:
        """URL at which agents reach the coordinator; None before the first `molink up`."""
        return self.setting(AGENTS_URL)

    @url.setter
    def url(self, url: str) -> None:
        if checked_url(url) != self.url:
            self.set_setting(AGENTS_URL, checked_url(url))

    @property
    def api_url(self) -> str | None:
        """URL at which users reach the coordinator; None before the first `molink up`."""
        return self.setting(API_URL)

    @api_url.setter
    def api_url(self, url: str) -> None:
        if url != self.api_url:
            self.set_setting(API_URL, url)

    @property
    def broker_port(self) -> int:
        """Port of the coordinator's own broker; 0 where it has none, or before the first start."""
        return int(self.setting(BROKER_PORT) or 0)

    @broker_port.setter
    def broker_port(self, port: int) -> None:
        if port != self.broker_port:
            self.set_setting(BROKER_PORT, str(port))

    def setting(self, name: str) -> str | None:
        """A value that was kept under this name."""
        with self._reading() as db:
            return _setting(db, name)

    def set_setting(self, name: str, value: str) -> None:
        """Keep a value under this name."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def change_setting(self, name: str, change: Callable[[str | None], str]) -> None:
        """Keep what becomes of a value, which nobody else changes meanwhile."""
        with self._transaction() as db:
            row = (name, change(_setting(db, name)))
            db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", row)

    def next_revision(self) -> int:
        """Rises by one over everything that this registry's coordinators ever assign, and by more
        from one start to the next: numbers are reserved in blocks, since a plan for a thousand
        nodes takes thousands, and each transaction waits for the disk. Raises StorageError when
        the next block cannot be."""
        with self._revisions_lock:
            if not self._revisions:
                with self._transaction(LOOP_BUSY_S) as db:
                    first = int(_setting(db, REVISION) or 0) + 1
                    last = first + REVISIONS_RESERVED - 1
                    row = (REVISION, str(last))
                    db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", row)
                self._revisions = range(first, last + 1)
            revision, self._revisions = self._revisions[0], self._revisions[1:]
            return revision

    def changed(self) -> bool:
        """Whether we or another process have written since the last call; costs microseconds.
        Raises StorageError when the file cannot be read."""
        with self._reading() as db:
            before = self._data_version
            self._data_version = db.execute("PRAGMA data_version").fetchone()[0]
            return self._data_version != before

    # -- invites --------------------------------------------------------------------------------

    def make_invite(
        self,
        expires_s: float,
        uses: int,
        name: str,
        now: float,
        url: str | None = None,
        *,
        at_start: bool = False,
    ) -> Invite:
        """A new invite to `url`, or to the URL that the coordinator has kept. An invite made
        `at_start` takes the place of the invite of the start before. Raises UserError when the URL
        is not known, a value is out of range or the name is taken.
        """
        rules.check_wishes(expires_s, uses, name)
        address = url or self.url
        if address is None:
            raise UserError(
                "The coordinator's address is not known yet: run molink up first, or give --url."
            )
        invite = Invite.make(address, self.coordinator.public)
        with self._transaction() as db:
            db.execute(
                "DELETE FROM invites WHERE coalesce(revoked, expires) < ?", (now - KEEP_ENDED_S,)
            )
            if at_start:
                _replace_start_invite(db, invite.invite_id, now)
            rules.check_room(db, name, now)
            db.execute(
                "INSERT INTO invites VALUES (?, ?, ?, ?, ?, ?, ?, NULL)",
                (invite.invite_id, invite.secret.digest, name, now, now + expires_s, uses, uses),
            )
        return invite

    def list_invites(self) -> list[InviteRecord]:
        """Invites that have not ended long ago, oldest first."""
        with self._reading() as db:
            return rules.invites(db)

    def revoke(self, which: str, now: float) -> InviteRecord:
        """End the invite of this id or name; nodes that have joined with it stay.

        Raises UserError when there is none.
        """
        with self._transaction() as db:
            invite = rules.one_invite(db, which, now)
            db.execute(
                "UPDATE invites SET revoked = coalesce(revoked, ?) WHERE id = ?",
                (now, invite.invite_id),
            )
            return rules.one_invite(db, invite.invite_id, now)

    def adopt_invites(self, other: "Registry", now: float) -> None:
        """Know what was made, used or revoked of the invites of another registry of the same
        cluster. One that was made long ago may have been here, and is not taken anew."""
        with other._reading() as db:
            rows = db.execute(f"SELECT {INVITE_COLUMNS}, secret_digest FROM invites").fetchall()
        with self._transaction() as db:
            known = {one.invite_id for one in rules.invites(db)}
            for row in rows:
                if row["id"] in known or row["created"] > now - KEEP_ENDED_S:
                    rules.adopt_invite(db, row)

    # -- nodes ----------------------------------------------------------------------------------

    def admit(
        self, public_key: bytes, request: JoinRequest, now: float, pc_key: bytes | None = None
    ) -> Membership:
        """Let in the node whose key sealed this request. A node that is in already spends no use,
        nor does a further device of a PC that is in, whose key `pc_key` has sealed the request too.
        Raises JoinRefusedError with one sentence for its owner.
        """
        with self._transaction() as db:
            known = rules.let_return(db, rules.node(db, node_id_of(public_key)))
            if known is not None:
                return Membership(rules.admitted_again(db, known, request.name), is_new=False)
            if pc_key is not None:
                pc = rules.vouching_pc(db, pc_key)
                invite_id, pc_id = pc.invite_id, pc.node_id
            else:
                invite_id, pc_id = rules.spend_use(db, request, now), None
            node = rules.add_node(db, public_key, request.name, invite_id, now, pc_id)
            return Membership(node, is_new=True)

    def adopt(self, nodes: Iterable[NodeRecord]) -> None:
        """Know nodes of another registry of the same cluster, with their passwords and tokens. One
        that is known already stays as it is, but is removed if it is there."""
        with self._transaction() as db:
            for node in nodes:
                rules.adopt(db, node)

    def lasting_nodes(self) -> list[NodeRecord]:
        """Nodes that another registry of the cluster is to know: all, removed and forgotten ones
        too, but those that may come back."""
        with self._reading() as db:
            return rules.lasting(db)

    def list_nodes(self, *, forgotten: bool = False) -> list[NodeRecord]:
        """Nodes that have joined, oldest first; see `removed`. Those that were forgotten since are
        left out, unless they are asked for."""
        with self._reading() as db:
            return rules.nodes(db, forgotten=forgotten)

    def member(self, node_id: str) -> NodeRecord | None:
        """The node of this id, if it belongs to the cluster."""
        with self._reading() as db:
            node = rules.node(db, node_id)
            return node if node is not None and node.removed is None else None

    def devices_of(self, pc: str) -> list[str]:
        """Ids of the nodes of this PC that belong to the cluster."""
        with self._reading() as db:
            return rules.devices_of(db, pc)

    def pc_of_token(self, weights_token: str) -> str | None:
        """Id of the PC whose node has this weights token, if it belongs to the cluster."""
        with self._reading() as db:
            member = rules.member_of_token(db, weights_token)
            return None if member is None else member.pc

    def remove_node(self, which: str, now: float) -> NodeRecord:
        """Remove a PC with all its devices, by the id or the name of any of them; their keys are
        refused from now on.

        Raises UserError when there is no such member, or several have the name.
        """
        with self._transaction() as db:
            pc = rules.one_pc(db, which)
            db.execute(
                "UPDATE nodes SET removed = ? WHERE pc = ? AND removed IS NULL", (now, pc.node_id)
            )
            return pc

    def forget_node(self, which: str, now: float, left: Collection[str] = ()) -> NodeRecord:
        """Leave a PC of this id or name out of every list: one that was removed, whose keys stay
        refused, or one of those that `left`, which may come back with an invite.

        Raises UserError when there is none such.
        """
        with self._transaction() as db:
            return rules.forget(db, which, left, now)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Connection that reads what was written last; it waits for nobody. Raises StorageError
        when it cannot be read."""
        with self._reader_lock:
            try:
                yield self._reader
            except sqlite3.Error as error:
                raise self._unusable(error) from None

    @contextmanager
    def _transaction(self, busy_s: float = BUSY_S) -> Iterator[sqlite3.Connection]:
        """All or nothing, and alone. Raises StorageError when the file cannot be used, or is in use
        for longer than `busy_s`."""
        with self._lock:
            try:
                self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * busy_s)}")
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:  # SQLite ends some by itself: a full disk.
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._unusable(error) from None

    def _unusable(self, error: sqlite3.Error) -> StorageError:
        return StorageError(f"{self.path} cannot be used ({error}): is its disk full or gone?")


def skip_revisions(registry: Registry) -> None:
    """Let numbers go on above all that were given since a copy was made, of which this is one that
    no coordinator has opened yet. Raises StorageError when that cannot be written."""
    given = int(registry.setting(REVISION) or 0)
    registry.set_setting(REVISION, str(given + REVISIONS_LOST_MAX))


def _replace_start_invite(db: sqlite3.Connection, invite_id: str, now: float) -> None:
    """End the invite that the last start has printed: logs shall hold only one that is usable."""
    db.execute(
        "UPDATE invites SET revoked = coalesce(revoked, ?) WHERE id = ?",
        (now, _setting(db, START_INVITE)),
    )
    db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (START_INVITE, invite_id))


def _setting(db: sqlite3.Connection, name: str) -> str | None:
    row = db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return str(row["value"]) if row is not None else None
