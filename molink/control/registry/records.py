"""What the registry tells of invites and nodes. No password shows itself when printed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "INVITE_COLUMNS",
    "NODE_COLUMNS",
    "InviteRecord",
    "InviteState",
    "Membership",
    "NodeRecord",
]

INVITE_COLUMNS = "id, name, created, expires, uses_total, uses_left, revoked"
NODE_COLUMNS = "id, name, public_key, password, weights_token, joined, invite_id, removed, pc"
"""As the records' fields follow each other."""

InviteState = Literal["usable", "used up", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class InviteRecord:
    """One invite, without its secret; times in seconds since 1970."""

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
        """From the columns `INVITE_COLUMNS` of a row."""
        return cls(*row)

    def state(self, now: float) -> InviteState:
        """Whether somebody can still join with it, else the first reason why not."""
        if self.revoked is not None:
            return "revoked"
        if now >= self.expires:
            return "expired"
        return "usable" if self.uses_left > 0 else "used up"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node that has joined."""

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
    """When it was thrown out; None: it belongs to the cluster."""
    pc: str
    """Id of the PC's first device: its own, unless it is a further device of that PC."""

    @property
    def is_pc(self) -> bool:
        """Whether it has joined with an invite, and vouches for its PC's further devices."""
        return self.pc == self.node_id

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> "NodeRecord":
        """From the columns `NODE_COLUMNS` of a row."""
        return cls(*row)


@dataclass(frozen=True, slots=True)
class Membership:
    """What a node that was let in is to be told."""

    node: NodeRecord
    is_new: bool
    """Whether it has spent a use of its invite; a node that asks again has not."""
