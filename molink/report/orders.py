"""Answers of the coordinator to an operator's orders."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeOrdered:
    """Node that was drained, resumed or removed."""

    id: str
    name: str
    state: str | None = None
    """Its state now; left out of a PC that was removed."""
    devices: int | None = None
    """Devices of a PC that was removed with it; else left out."""
    invite: str | None = None
    """Id of the invite with which a PC came that was removed; else left out."""
    invite_usable: bool | None = None
    """Whether a PC that was removed could come again with it; else left out."""


@dataclass(frozen=True, slots=True)
class InviteMade:
    """New invite, whole: nobody can show it again."""

    id: str
    command: str
    """Command that its holder types."""
    uses: int
    """PCs that it lets in."""
    expires_unix_s: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class IntakeChanged:
    """Intake of requests that was paused, or opened."""

    paused: bool


@dataclass(frozen=True, slots=True)
class CachesCleared:
    """Rings that forget what they have cached."""

    rings: int
