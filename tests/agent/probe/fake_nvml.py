"""A driver of NVIDIA's, as far as the probe asks it; the exceptions are the library's own."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 2**30


@dataclass
class FakeCard:
    name: str = "NVIDIA GeForce RTX 3060"
    total: int = 12 * GIB
    free: int = 10 * GIB
    running: dict[int, int | None] = field(default_factory=dict)
    """Memory by process."""
    samples: list[tuple[int, int, int]] = field(default_factory=list)
    """(pid, percent, time in microseconds)."""
    percent: int = 0
    drawing: dict[int, int | None] = field(default_factory=dict)
    """Memory by process, of those that draw."""
    refuses: frozenset[str] = frozenset()
    """Questions that it does not support."""


@dataclass
class FakeNvml:
    cards: list[FakeCard] = field(default_factory=list)
    missing: bool = False
    opened: int = 0

    NVMLError = pynvml.NVMLError
    NVMLError_LibraryNotFound = pynvml.NVMLError_LibraryNotFound
    NVML_SUCCESS = pynvml.NVML_SUCCESS
    NVML_ERROR_NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND

    def nvmlInit(self) -> None:
        if self.missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:
        return self.cards[index]

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.10"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12080

    def nvmlDeviceGetName(self, card: FakeCard) -> str:
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card: FakeCard) -> Any:
        self._ask(card, "memory")
        return SimpleNamespace(total=card.total, free=card.free, used=card.total - card.free)

    def nvmlDeviceGetCudaComputeCapability(self, card: FakeCard) -> tuple[int, int]:
        self._ask(card, "capability")
        return 8, 6

    def nvmlDeviceGetComputeRunningProcesses(self, card: FakeCard) -> list[Any]:
        self._ask(card, "running")
        held = card.running.items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in held]

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: FakeCard) -> list[Any]:
        self._ask(card, "drawing")
        held = card.drawing.items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in held]

    def nvmlDeviceGetProcessUtilization(self, card: FakeCard, since_us: int) -> list[Any]:
        self._ask(card, "samples")
        new = [one for one in card.samples if one[2] > since_us]
        if not new:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return [SimpleNamespace(pid=pid, smUtil=use, timeStamp=at) for pid, use, at in new]

    def nvmlDeviceGetUtilizationRates(self, card: FakeCard) -> Any:
        self._ask(card, "percent")
        return SimpleNamespace(gpu=card.percent, memory=0)

    def _ask(self, card: FakeCard, question: str) -> None:
        if question in card.refuses:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
