"""What other programs, and other tenants of the host, took of this PC while a ring was measured.

A round in which somebody else computed tells nothing of the simulator, and nobody sees it in the
round's own figures. So it is counted: what the system says was busy, less our own processes.
"""

import time
from dataclasses import dataclass

import psutil

__all__ = ["OthersWatch"]

IDLE = ("idle", "iowait", "guest", "guest_nice")
"""Not busy, or counted elsewhere: guests are in the user's time too."""


@dataclass(frozen=True, slots=True)
class OthersWatch:
    """Counts from its start on."""

    server: int
    """Process id; its children count as ours."""
    started_s: float
    others_s: float
    """Seconds of cores that others had taken until then."""

    @classmethod
    def start(cls, server: int) -> "OthersWatch":
        """From now on; the processes of `server` are all there."""
        return cls(server, time.perf_counter(), _busy_s() - _ours_s(server))

    def cores(self) -> float:
        """The mean number of cores that others took since the start."""
        others_s = _busy_s() - _ours_s(self.server) - self.others_s
        return max(0.0, others_s / (time.perf_counter() - self.started_s))


def _busy_s() -> float:
    times = psutil.cpu_times()._asdict()
    return float(sum(times.values()) - sum(times.get(name, 0.0) for name in IDLE))


def _ours_s(server: int) -> float:
    root = psutil.Process(server)
    processes = [psutil.Process(), root, *root.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)
