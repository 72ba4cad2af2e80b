"""The registry's tables, and their rows as values. No record shows a password when printed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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
    "CREATE TABLE forgotten (node_id TEXT PRIMARY KEY, may_return INTEGER NOT NULL)",
)
"""Times are seconds since 1970; `revoked` and `removed` are NULL while that has not happened. A
removed node that is forgotten is in no list; its row goes on keeping its key out, unless it
`may_return`, with an invite: its owner had taken it out."""

INVITE_COLUMNS = "id, name, created, expires, uses_total, uses_left, revoked"
NODE_COLUMNS = "id, name, public_key, password, weights_token, joined, invite_id, removed, pc"
"""Columns in the order of the records' fields."""

InviteState = Literal["usable", "used up", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class InviteRecord:
    """One row of `invites`, without the secret; times in seconds since 1970."""

    invite_id: str
    name: str
    """Name for the operator; empty: none."""
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
    """Password at the broker, where the id is the user name."""
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
