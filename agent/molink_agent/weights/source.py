"""Source of weights, the limits within which they are fetched, and how far a download is."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from molink.control.addresses import ServerTrust
from molink_scheduler.units import GB


@dataclass(frozen=True, slots=True)
class Downloaded:
    """How far a download is."""

    fraction: float
    """Part that is there and was verified, 0 to 1."""
    total_bytes: int = 0
    bytes_per_s: float = 0.0
    """Rate over the last seconds."""


Progress = Callable[[Downloaded], None]


@dataclass(frozen=True, slots=True)
class CoordinatorSource:
    """The coordinator's HTTP server of weights."""

    url: str
    """URL in front of /manifest and /files/NAME."""
    token: str = field(repr=False)
    tls: ServerTrust = field(default_factory=ServerTrust)
    """Trust by which its certificate is accepted."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """The hub on which the model was published."""

    model: str
    """Model on the hub, owner/name."""


Source = CoordinatorSource | HubSource


@dataclass(frozen=True, slots=True)
class WeightsLimits:
    """Limits of a download: disk, and how long it goes on when things fail."""

    disk_bytes_max: int | None = None
    """Most bytes of all weights in the directory; older ones go beyond it. None: no cap."""
    disk_reserve_bytes: int = 2 * GB
    """Bytes left free on the disk: a PC whose disk is full is not a pleasant one."""
    keep: frozenset[Path] = frozenset()
    """Directories that `ensure_weights` returned and that stages still use: never removed."""
    failures_max: int = 12
    """Failures in a row without one good block. With the pauses below that is five minutes: a
    coordinator that restarts, or a router, is back by then."""
    pause_s: float = 0.5
    """Seconds of pause after the first failure; each further failure doubles them."""
    pause_s_max: float = 60.0
    busy_s_max: float = 3600.0
    """How long to be sent away with "come back" without one good block."""


WINDOW_S = 5.0
"""Seconds of the rate shown: steady enough to read, and a line that stops shows within seconds."""

SAMPLES_MAX = 512
"""Blocks in a window; with more the rate would be the same, only more exact."""


class ProgressMeter:
    """Progress and rate of a download, for people."""

    def __init__(
        self,
        total_bytes: int,
        kept_bytes: int,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_bytes
        self._kept = kept_bytes
        self._progress = progress
        self._clock = clock
        self._received_bytes = 0
        """Over the line, edges of blocks and damaged ones included."""
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)], maxlen=SAMPLES_MAX)

    def kept(self, size: int) -> None:
        """Count bytes that were needed and are there now."""
        self._kept += size

    def received(self, size: int) -> None:
        """Count bytes that have come over the line, and report."""
        now = self._clock()
        self._received_bytes += size
        self._samples.append((now, self._received_bytes))
        while len(self._samples) > 2 and self._samples[1][0] < now - WINDOW_S:
            self._samples.popleft()
        self.report()

    def report(self) -> None:
        """Report the fraction and the rate of the last seconds."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        rate = (last - first) / (last_s - first_s) if last_s > first_s else 0.0
        fraction = min(1.0, self._kept / self._total) if self._total else 1.0
        self._progress(Downloaded(fraction, self._total, rate))
