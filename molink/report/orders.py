"""What the coordinator answers to an operator's orders."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeHeld:
    """Node that was drained, or may serve again."""

    id: str
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """PC that was thrown out with all its devices."""

    id: str
    name: str
    devices: int
    """Devices that it had."""
    invite: str
    """Id of the invite with which it came."""
    invite_usable: bool
    """Whether it could come again with it."""


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
