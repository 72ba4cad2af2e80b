"""Rules of the registry, each applied within one transaction: who may join, what may be asked.

Every function takes the connection of a transaction that its caller has begun, and leaves
committing to it; a node that is refused has changed nothing.
"""

import hmac
import re
import secrets
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import astuple
from typing import Any, assert_never

from molink.control.identity import key_to_z85, node_id_of
from molink.control.messages.invites import InviteSecret
from molink.control.messages.joining import JoinRequest
from molink.control.registry.database import INVITE_COLUMNS, NODE_COLUMNS, InviteRecord, NodeRecord
from molink.errors import JoinRefusedError, UserError

EXPIRES_S_MAX = 366 * 24 * 3600.0
"""An invite is a password that lies in chats: after a year a new one is no trouble."""

NODES_MAX = 1000
"""Members of a cluster, and uses of one invite; brokers were measured up to here, and half of a
coordinator's thread carries the heartbeats and tokens of 1,120 that serve (docs/scaling.md)."""

DEVICES_MAX = 16
"""Most devices of one PC, as many as a profile names: more than mainboards have slots."""

INVITES_MAX = 1000
"""Most invites that are usable at the same time: the list is read by a person."""

NAME_MAX = 60
"""Most characters of a name, of an invite as of a node."""

NODE_ID = re.compile(r"[a-z2-7]{16}")

PASSWORD_BYTES = 24
"""Random bytes of a broker password and a weights token: 192 bits, 32 characters."""

ASK = "ask whoever runs the cluster for a new one."


def invites(db: sqlite3.Connection) -> list[InviteRecord]:
    """All invites, oldest first."""
    rows = db.execute(f"SELECT {INVITE_COLUMNS} FROM invites ORDER BY created, rowid")
    return [InviteRecord.of_row(row) for row in rows]


def nodes(db: sqlite3.Connection, *, forgotten: bool = False) -> list[NodeRecord]:
    """All nodes, removed ones too, oldest first; those that are forgotten only if asked for."""
    shown = "TRUE" if forgotten else "id NOT IN (SELECT node_id FROM forgotten)"
    rows = db.execute(f"SELECT {NODE_COLUMNS} FROM nodes WHERE {shown} ORDER BY joined, rowid")
    return [NodeRecord.of_row(row) for row in rows]


def node(db: sqlite3.Connection, node_id: str) -> NodeRecord | None:
    """The node of this id, removed or not."""
    row = db.execute(f"SELECT {NODE_COLUMNS} FROM nodes WHERE id = ?", (node_id,)).fetchone()
    return NodeRecord.of_row(row) if row is not None else None


def member_of_token(db: sqlite3.Connection, weights_token: str) -> NodeRecord | None:
    """The node that this token was given to, unless it was removed."""
    query = f"SELECT {NODE_COLUMNS} FROM nodes WHERE weights_token = ? AND removed IS NULL"
    row = db.execute(query, (weights_token,)).fetchone()
    return NodeRecord.of_row(row) if row is not None else None


def devices_of(db: sqlite3.Connection, pc: str) -> list[str]:
    """Ids of the members that are devices of this PC."""
    rows = db.execute("SELECT id FROM nodes WHERE pc = ? AND removed IS NULL", (pc,))
    return [str(row[0]) for row in rows]


def check_wishes(expires_s: float, uses: int, name: str) -> None:
    """Raise UserError when no invite can be like this."""
    if not 0 < expires_s <= EXPIRES_S_MAX:
        raise UserError("An invite expires after at least a moment and at most a year (--expires).")
    if not 1 <= uses <= NODES_MAX:
        raise UserError(f"An invite has 1 to {NODES_MAX} uses, got {uses} (--uses).")
    if len(name) > NAME_MAX or not (name.isprintable() and name == name.strip()):
        raise UserError(f"An invite's name has at most {NAME_MAX} characters on one line (--name).")


def check_room(db: sqlite3.Connection, name: str, now: float) -> None:
    """Raise UserError when there are too many usable invites, or one of this name."""
    usable = [one for one in invites(db) if one.state(now) == "usable"]
    if len(usable) >= INVITES_MAX:
        raise UserError(f"There are {INVITES_MAX} invites: revoke some (molink invite revoke ID).")
    if name and any(one.name == name for one in usable):
        raise UserError(f"There is an invite {name!r} already: revoke it or choose another --name.")


def one_invite(db: sqlite3.Connection, which: str, now: float) -> InviteRecord:
    """The invite of this id, or the usable one of this name. Raises UserError if there is none."""
    for invite in invites(db):
        if invite.invite_id == which or (invite.name == which and invite.state(now) == "usable"):
            return invite
    raise UserError(f"There is no usable invite {which!r:.80}: see molink invite list.")


def admitted_again(db: sqlite3.Connection, known: NodeRecord, name: str) -> NodeRecord:
    """A node that asks again, under the name it has now. Raises JoinRefusedError when it was
    removed, or cannot be called that."""
    if known.removed is not None:
        raise JoinRefusedError(
            "This node was removed from the cluster: ask whoever runs it. To come back it needs a "
            "new invite, and a new key: join with --data-dir and an empty folder."
        )
    if name == known.name:  # Nothing is written, so that a full disk keeps no member out.
        return known
    check_node_name(db, name)
    db.execute("UPDATE nodes SET name = ? WHERE id = ?", (name, known.node_id))
    again = node(db, known.node_id)
    assert again is not None, "it was just updated"
    return again


def check_node_name(db: sqlite3.Connection, name: str) -> None:
    """Raise JoinRefusedError for a name by which the operator could take one node for another."""
    if NODE_ID.fullmatch(name):
        raise JoinRefusedError(
            "A node's name may not look like a node's id: choose another --name."
        )
    query = "SELECT 1 FROM nodes WHERE name = ? AND removed IS NULL"
    if db.execute(query, (name,)).fetchone() is not None:
        raise JoinRefusedError(
            f"Another node of this cluster is called {name!r} already: join with --name and a name "
            "that nobody has."
        )


def spend_use(db: sqlite3.Connection, request: JoinRequest, now: float) -> str:
    """Take one use of the invite that the request shows; its id.

    Raises JoinRefusedError when it shows none that is usable, or the cluster is full.
    """
    invite = _shown(db, request)
    match invite.state(now):
        case "usable":
            pass
        case "revoked":
            raise JoinRefusedError(f"This invite was withdrawn: {ASK}")
        case "expired":
            raise JoinRefusedError(f"This invite has expired: {ASK}")
        case "used up":
            raise JoinRefusedError(f"All uses of this invite are spent: {ASK}")
        case unknown:
            assert_never(unknown)
    _check_not_full(db)
    db.execute("UPDATE invites SET uses_left = uses_left - 1 WHERE id = ?", (invite.invite_id,))
    return invite.invite_id


def vouching_pc(db: sqlite3.Connection, pc_key: bytes) -> NodeRecord:
    """The PC that lets in a further device of its own, without a use of an invite.

    Raises JoinRefusedError when the key is no PC's, or it has enough devices.
    """
    pc = node(db, node_id_of(pc_key))
    if pc is None or pc.removed is not None or not pc.is_pc:
        raise JoinRefusedError("The coordinator does not know this PC: join with an invite.")
    query = "SELECT count(*) FROM nodes WHERE pc = ? AND removed IS NULL"
    if db.execute(query, (pc.node_id,)).fetchone()[0] >= DEVICES_MAX:
        raise JoinRefusedError(f"A PC lends {DEVICES_MAX} devices at most: name fewer.")
    _check_not_full(db)
    return pc


def one_pc(db: sqlite3.Connection, which: str) -> NodeRecord:
    """The member PC of this id or name; one of its devices stands for it.

    Raises UserError when there is none, or several have the name.
    """
    members = [one for one in nodes(db) if one.removed is None]
    named = [one for one in members if one.node_id == which] or [
        one for one in members if one.name == which
    ]
    pcs = {one.pc for one in named}
    if len(pcs) > 1:
        raise UserError(f"{len(pcs)} nodes are called {which!r}: give the node's id.")
    if not pcs:
        raise UserError(f"No node {which!r} belongs to the cluster: see molink node list.")
    pc = node(db, pcs.pop())
    assert pc is not None, "a device belongs to a PC that has joined"
    return pc


def forget(db: sqlite3.Connection, which: str, left: Collection[str], now: float) -> NodeRecord:
    """Leave the PC of this id or name, with its devices, out of lists: the one that was removed
    last, or one whose owner has taken it out, which `left` names and which may come back.

    Raises UserError when there is none, or it is a member.
    """
    named = [one for one in nodes(db) if which in (one.node_id, one.name)]
    gone = [one for one in named if one.removed is not None]
    away = [one for one in named if one.removed is None and one.node_id in left]
    if not (gone or away) and named:
        raise UserError(f"{which} is a member: molink node remove {which} comes first.")
    if not (gone or away):
        raise UserError(f"No node {which!r:.80} was removed or has left: see molink node list.")
    found = away[0] if away else max(gone, key=lambda one: one.removed or 0.0)
    if away:
        db.execute("UPDATE nodes SET removed = ? WHERE pc = ?", (now, found.pc))
    db.execute(
        "INSERT OR IGNORE INTO forgotten SELECT id, ? FROM nodes "
        "WHERE pc = ? AND removed IS NOT NULL",
        (bool(away), found.pc),
    )
    return found


def let_return(db: sqlite3.Connection, known: NodeRecord | None) -> NodeRecord | None:
    """The node, or None for one that may come back as if it had never been here."""
    if known is None:
        return None
    query = "SELECT may_return FROM forgotten WHERE node_id = ?"
    row = db.execute(query, (known.node_id,)).fetchone()
    if row is None or not row[0]:
        return known
    for table, column in (("forgotten", "node_id"), ("nodes", "id")):
        db.execute(f"DELETE FROM {table} WHERE {column} = ?", (known.node_id,))
    return None


def add_node(
    db: sqlite3.Connection,
    public_key: bytes,
    name: str,
    invite_id: str,
    now: float,
    pc: str | None = None,
) -> NodeRecord:
    """A new member, with its password and token; `pc`: the PC whose further device it is. Raises
    JoinRefusedError when it cannot be called `name`."""
    check_node_name(db, name)
    password, token = (secrets.token_urlsafe(PASSWORD_BYTES) for _ in range(2))
    node_id, key = node_id_of(public_key), key_to_z85(public_key)
    record = NodeRecord(
        node_id, name, key, password, token, now, invite_id, removed=None, pc=pc or node_id
    )
    db.execute(
        f"INSERT INTO nodes ({NODE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(record)
    )
    return record


def _check_not_full(db: sqlite3.Connection) -> None:
    members = db.execute("SELECT count(*) FROM nodes WHERE removed IS NULL").fetchone()[0]
    if members >= NODES_MAX:
        raise JoinRefusedError(
            f"The cluster is full with {NODES_MAX} nodes, the most that one coordinator takes: "
            "whoever runs it can remove some (molink node remove), then try again."
        )


def _shown(db: sqlite3.Connection, request: JoinRequest) -> InviteRecord:
    """The invite whose id and secret the request holds. Wrong ids and secrets look alike."""
    if request.invite_id is None or request.invite_secret is None:
        raise JoinRefusedError(
            "This PC has not joined this cluster yet: join with an invite from whoever runs it."
        )
    digest = InviteSecret(bytes.fromhex(request.invite_secret)).digest
    query = f"SELECT {INVITE_COLUMNS}, secret_digest FROM invites WHERE id = ?"
    row = db.execute(query, (request.invite_id,)).fetchone()
    if row is None or not hmac.compare_digest(digest, row["secret_digest"]):
        raise JoinRefusedError(f"The coordinator does not know this invite: {ASK}")
    return InviteRecord.of_row(row[:-1])


def lasting(db: sqlite3.Connection) -> list[NodeRecord]:
    """Nodes whose rows another registry of the cluster is to have, removed ones too: all but those
    that may come back as if they had never been here."""
    shown = "id NOT IN (SELECT node_id FROM forgotten WHERE may_return)"
    rows = db.execute(f"SELECT {NODE_COLUMNS} FROM nodes WHERE {shown} ORDER BY joined, rowid")
    return [NodeRecord.of_row(row) for row in rows]


def adopt(db: sqlite3.Connection, known: NodeRecord) -> None:
    """A node as another registry of the same cluster knows it. One of its id stays as it is, but is
    removed if it is there; a member there that might come back here has done so."""
    if known.removed is None:
        let_return(db, node(db, known.node_id))
    db.execute(
        f"INSERT INTO nodes ({NODE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET removed = coalesce(removed, excluded.removed)",
        astuple(known),
    )


def adopt_invite(db: sqlite3.Connection, row: Sequence[Any]) -> None:
    """An invite as another registry of the same cluster holds it, with its secret. One of its id
    stays as it is, but is revoked if it is there, and has lost the uses that are spent there."""
    db.execute(
        f"INSERT INTO invites ({INVITE_COLUMNS}, secret_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET revoked = coalesce(revoked, excluded.revoked), "
        "uses_left = min(uses_left, excluded.uses_left)",
        tuple(row),
    )
