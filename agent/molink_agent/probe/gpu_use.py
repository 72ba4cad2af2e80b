"""How busy do others keep each GPU? The owner's game goes first, our own stage does not count."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

__all__ = ["UseReader"]

SAMPLE_PERCENT_MAX = 100
"""Drivers now and then report absurd percentages for a process that has just ended: left out."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one card's driver said."""

    bytes_of: dict[int, int]
    """Memory by process; empty where the driver does not tell."""
    percent_of: dict[int, float] | None
    """Use by process since the last look; None: it does not tell."""
    percent_in_all: float | None


class UseReader:
    """Remembers up to when each card's samples were read."""

    def __init__(self, nvml: Any, *, trusted: bool = True) -> None:
        self._nvml = nvml
        self._trusted = trusted
        self._read_until_us: dict[int, int] = defaultdict(int)
        self._own: frozenset[int] = frozenset()
        self._seen: list[_Seen] = []

    def look(self, handles: list[Any], own_pids: frozenset[int]) -> None:
        """Ask every card once."""
        self._own = own_pids
        self._seen = [self._ask(index, handle) for index, handle in enumerate(handles)]

    def own_bytes(self, index: int) -> int:
        """Memory of our own processes on a card."""
        held = self._seen[index].bytes_of
        return sum(size for pid, size in held.items() if pid in self._own)

    def others_percent(self, index: int) -> float | None:
        """Use by everybody else, 0 to 100; None: unknown."""
        if not self._trusted:
            return None
        seen = self._seen[index]
        if seen.percent_of is None:
            return None if self._own else seen.percent_in_all
        if self._own and not self._sees_us():
            return None
        others = sum(share for pid, share in seen.percent_of.items() if pid not in self._own)
        return min(100.0, others)

    def _sees_us(self) -> bool:
        """False in a container, where the driver knows our processes by other numbers."""
        known = {pid for seen in self._seen for pid in (*seen.bytes_of, *(seen.percent_of or ()))}
        return bool(known & self._own)

    def _ask(self, index: int, handle: Any) -> _Seen:
        return _Seen(
            self._bytes_by_process(handle),
            self._percent_by_process(index, handle),
            self._percent_in_all(handle),
        )

    def _bytes_by_process(self, handle: Any) -> dict[int, int]:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._nvml.NVMLError:
            return {}
        return {one.pid: int(one.usedGpuMemory or 0) for one in running}

    def _percent_by_process(self, index: int, handle: Any) -> dict[int, float] | None:
        since_us = self._read_until_us[index]
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except self._nvml.NVMLError as error:
            silent = (self._nvml.NVML_SUCCESS, self._nvml.NVML_ERROR_NOT_FOUND)
            return {} if getattr(error, "value", None) in silent else None
        newest = max((int(sample.timeStamp) for sample in samples), default=since_us)
        self._read_until_us[index] = max(since_us, newest)
        return _mean_by_process(samples)

    def _percent_in_all(self, handle: Any) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except self._nvml.NVMLError:
            return None


def _mean_by_process(samples: list[Any]) -> dict[int, float]:
    heard: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.smUtil <= SAMPLE_PERCENT_MAX:
            heard[int(sample.pid)].append(int(sample.smUtil))
    return {pid: sum(values) / len(values) for pid, values in heard.items()}
