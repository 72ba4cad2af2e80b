"""Where weights come from, and within which limits they are fetched."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CoordinatorSource", "HubSource", "Progress", "Source", "WeightsLimits"]

GIB = 2**30

Progress = Callable[[float, float], None]
"""Called with the fraction that is there, 0 to 1, and the rate of the last seconds in bytes/s."""


@dataclass(frozen=True, slots=True)
class CoordinatorSource:
    """The coordinator's shelf."""

    url: str
    """In front of /manifest and /files/NAME."""
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class HubSource:
    """The hub that the model was published on."""

    model: str
    """owner/name."""


Source = CoordinatorSource | HubSource


@dataclass(frozen=True, slots=True)
class WeightsLimits:
    """What a download may take, and how long it goes on when things fail."""

    disk_bytes_max: int | None = None
    """Of all weights under the directory; older ones go when it is reached. None: no cap."""
    disk_reserve_bytes: int = 2 * GIB
    """Left free on the disk: a PC whose disk is full to the last byte is not a pleasant one."""
    keep: frozenset[Path] = frozenset()
    """Directories that `ensure_weights` returned and that stages still use: never removed."""
    failures_max: int = 12
    """In a row without one good block. With the pauses below that is five minutes: a coordinator
    that restarts, or a router, is back by then."""
    pause_s: float = 0.5
    """After the first failure; each further one doubles it."""
    pause_s_max: float = 60.0
    busy_s_max: float = 3600.0
    """How long to be sent away with "come back" without one good block."""
