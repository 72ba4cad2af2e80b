"""What do the lent cards consume? Asked of the driver (NVML), which tells for a whole card.

Cards from 2018 on count their energy themselves; of older ones the power of the moment counts for
the time since the last question. What other programs do on the card meanwhile is in it too. CPUs do
not tell: their counters are the administrator's alone on Linux, and hidden in WSL.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pynvml

from molink_agent.probe.gpus import VISIBLE_VARIABLE, visible_cards

__all__ = ["EnergyMeter"]

GAP_S_MAX = 60.0
"""Most seconds between two questions; over a longer gap the PC was asleep, and power times time
says nothing."""


@dataclass(frozen=True, slots=True)
class _Reading:
    at_s: float
    counted_j: float | None
    """None: the card does not count."""


class EnergyMeter:
    """Meter of the energy that cards consume while they are asked for."""

    def __init__(self, nvml: Any = pynvml, *, visible: str | None = None) -> None:
        """`visible`: as in $CUDA_VISIBLE_DEVICES; None: as it is set."""
        self._nvml = nvml
        self._visible = os.environ.get(VISIBLE_VARIABLE) if visible is None else visible
        self._open = False
        self._before: dict[str, _Reading] = {}

    def used_j(self, devices: Collection[str], now_s: float) -> float | None:
        """Joules of these devices (`cuda:0` and so on) since the last call; None where none tells.

        A device that was not in the last call begins now.
        """
        readings, used = {}, []
        for device in devices:
            handle = self._handle(device)
            reading, joules = self._read(handle, self._before.get(device), now_s)
            if reading is not None:
                readings[device] = reading
            if joules is not None:
                used.append(joules)
        self._before = readings
        return sum(used) if used else None

    def _handle(self, device: str) -> Any:
        kind, _, index = device.partition(":")
        if kind != "cuda" or not index.isdecimal():
            return None
        try:
            if not self._open:
                self._nvml.nvmlInit()
                self._open = True
            cards = visible_cards(self._nvml.nvmlDeviceGetCount(), self._visible)
            return self._nvml.nvmlDeviceGetHandleByIndex(cards[int(index)])
        except (self._nvml.NVMLError, IndexError):
            return None

    def _read(
        self, handle: Any, before: _Reading | None, now_s: float
    ) -> tuple[_Reading | None, float | None]:
        if handle is None:
            return None, None
        if (counted := self._ask("nvmlDeviceGetTotalEnergyConsumption", handle)) is not None:
            reading = _Reading(now_s, counted)
            if before is None or before.counted_j is None:
                return reading, 0.0
            return reading, max(0.0, counted - before.counted_j)
        if (watts := self._ask("nvmlDeviceGetPowerUsage", handle)) is None:
            return None, None
        elapsed_s = now_s - before.at_s if before is not None else 0.0
        return _Reading(now_s, None), watts * elapsed_s if elapsed_s <= GAP_S_MAX else 0.0

    def _ask(self, function: str, handle: Any) -> float | None:
        """The driver's answer, from thousandths; None when it refuses."""
        try:
            return float(getattr(self._nvml, function)(handle)) / 1000
        except self._nvml.NVMLError:
            return None
