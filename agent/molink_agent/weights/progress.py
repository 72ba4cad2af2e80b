"""How far a download is and how fast it goes, for people."""

import time
from collections import deque
from collections.abc import Callable

from molink_agent.weights.source import Progress

__all__ = ["ProgressMeter"]

WINDOW_S = 5.0
"""Of the rate shown: calm enough to read, and a line that stops shows within seconds."""

SAMPLES_MAX = 512
"""More blocks than that in a window only say the same more exactly."""


class ProgressMeter:
    """Counts what is kept, and the rate of what comes."""

    def __init__(
        self,
        total_bytes: int,
        kept_bytes: int,
        report: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_bytes
        self._kept = kept_bytes
        self._report = report
        self._clock = clock
        self._came_bytes = 0
        """Over the line, edges of blocks and damaged ones included."""
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)], maxlen=SAMPLES_MAX)

    def kept(self, size: int) -> None:
        """So much more of what is needed is there."""
        self._kept += size

    def came(self, size: int) -> None:
        """So much has come over the line; tells it."""
        now = self._clock()
        self._came_bytes += size
        self._samples.append((now, self._came_bytes))
        while len(self._samples) > 2 and self._samples[1][0] < now - WINDOW_S:
            self._samples.popleft()
        self.tell()

    def tell(self) -> None:
        """Report how things stand."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        rate = (last - first) / (last_s - first_s) if last_s > first_s else 0.0
        self._report(self._kept / self._total if self._total else 1.0, rate)
