"""Probe of the GPUs: which are here, how full, and who else uses them. It asks the driver (NVML).

NVML is the driver's own library, so it answers without CUDA and without torch. It numbers GPUs by
their place on the bus, CUDA by speed: a stage must be started with `CUDA_DEVICE_ORDER=PCI_BUS_ID`
for `cuda:1` to be the same card to both. `CUDA_VISIBLE_DEVICES` hides cards from a program and
numbers the others anew; the driver knows nothing of it, so a card that its owner has hidden would
be lent if we did not read it.

Others' use is asked for process by process, since our own stage keeps the card busy. Where the
driver does not tell (under WSL never, in a container process ids are others), all use counts as
others' while we have no process there, and is unknown while we have one.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from molink.hardware.torch_builds import Capability

NO_DRIVER = "no NVIDIA driver is installed (libnvidia-ml.so.1 is missing)"

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"

SAMPLE_PERCENT_MAX = 100
"""Drivers now and then report absurd percentages for a process that has just ended: left out."""


@dataclass(frozen=True, slots=True)
class DriverGpu:
    """Graphics card as its driver describes it now."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    own_bytes: int = 0
    """Bytes that our own processes hold of it; 0 where the driver does not tell."""
    others_percent: float | None = None
    """How busy others keep it, 0 to 100; None: unknown."""
    drawing_percent: float | None = None
    """How busy other programs that draw (desktops, games) keep it, 0 to 100; None: unknown."""
    capability: Capability | None = None
    """Machine code that it runs; None: the driver does not tell."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    """Report on all cards of the PC, or why there are none."""

    gpus: tuple[DriverGpu, ...] = ()
    driver: str | None = None
    """Version of the driver; None: it did not answer."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver runs."""
    reason: str = ""
    """Why `gpus` is empty, or what did not answer."""

    @property
    def driver_number(self) -> int | None:
        """The first number of the driver's version; None: unknown."""
        first = (self.driver or "").partition(".")[0]
        return int(first) if first.isdecimal() else None

    @property
    def others_percent(self) -> float | None:
        """How busy others keep the busiest card; None where no card tells."""
        known = [gpu.others_percent for gpu in self.gpus if gpu.others_percent is not None]
        return max(known, default=None)


@dataclass(frozen=True, slots=True)
class _CardUse:
    """Use of one card by process, as its driver reports it."""

    bytes_by_pid: dict[int, int]
    """Bytes of its memory by process; empty where the driver does not tell."""
    percent_by_pid: dict[int, float] | None
    """Use since it was last asked; None: it does not tell."""
    percent_in_all: float | None
    drawing_pids: frozenset[int] = frozenset()
    """Ids of processes that draw; empty where the driver does not tell."""

    @property
    def pids(self) -> set[int]:
        """Processes that the driver knows of."""
        return {*self.bytes_by_pid, *(self.percent_by_pid or ())}


class GpuProbe:
    """Keeps the driver's library open between questions: opening it can wake a sleeping card."""

    def __init__(
        self, nvml: Any = pynvml, *, wsl: bool = False, visible: str | None = None
    ) -> None:
        """`visible`: as in $CUDA_VISIBLE_DEVICES; None: all cards."""
        self._nvml = nvml
        self._wsl = wsl
        self._visible = visible
        self._open = False
        self._sampled_until_us: dict[int, int] = defaultdict(int)
        """Up to when each card's samples were read."""

    def read(self, own_pids: frozenset[int] = frozenset()) -> GpuReport:
        """Ask now. `own_pids`: our stage processes that compute on a GPU."""
        try:
            self._start()
            count = self._nvml.nvmlDeviceGetCount()
            cards = visible_cards(count, self._visible)
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in cards]
        except self._nvml.NVMLError as error:
            self.close()
            return GpuReport(reason=self._reason(error))
        gpus, reason = self._gpus(handles, own_pids)
        return GpuReport(gpus, self._driver(), self._cuda(), reason)

    def close(self) -> None:
        """Let go of the driver; a later `read` asks anew (a driver may have been installed)."""
        if self._open:
            self._open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return

    def _start(self) -> None:
        if not self._open:
            self._nvml.nvmlInit()
            self._open = True

    def _reason(self, error: Exception) -> str:
        if isinstance(error, self._nvml.NVMLError_LibraryNotFound):
            return NO_DRIVER
        return f"the NVIDIA driver did not answer ({error})"

    def _gpus(self, handles: list[Any], own: frozenset[int]) -> tuple[tuple[DriverGpu, ...], str]:
        uses = [self._card_use(index, handle) for index, handle in enumerate(handles)]
        # In a container the driver knows our processes by other numbers: it does not see ours.
        sees_ours = any(use.pids & own for use in uses)
        gpus, reason = [], "" if handles else "the driver sees no GPU"
        for index, (handle, use) in enumerate(zip(handles, uses, strict=True)):
            others = None if self._wsl else _others_percent(use, own, sees_ours=sees_ours)
            drawing = None if self._wsl else _drawing_percent(use, own)
            try:
                gpu = self._gpu(index, handle, _own_bytes(use, own))
                gpus.append(replace(gpu, others_percent=others, drawing_percent=drawing))
            except self._nvml.NVMLError as error:
                reason = f"GPU {index} did not answer ({error})"
        return tuple(gpus), reason

    def _gpu(self, index: int, handle: Any, own_bytes: int) -> DriverGpu:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        return DriverGpu(
            index=index,
            name=str(self._nvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(memory.total),
            free_bytes=int(memory.free),
            own_bytes=own_bytes,
            capability=None if capability is None else (int(capability[0]), int(capability[1])),
        )

    def _driver(self) -> str | None:
        version = self._ask("nvmlSystemGetDriverVersion")
        return None if version is None else str(version)

    def _cuda(self) -> tuple[int, int] | None:
        """NVML says 12080 for 12.8."""
        version = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        return None if version is None else (int(version) // 1000, int(version) % 1000 // 10)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The driver's answer; None when it refuses."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError:
            return None

    def _card_use(self, index: int, handle: Any) -> _CardUse:
        running = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        drawing = self._ask("nvmlDeviceGetGraphicsRunningProcesses", handle) or ()
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        return _CardUse(
            {process.pid: int(process.usedGpuMemory or 0) for process in running},
            self._percent_by_pid(index, handle),
            None if rates is None else float(rates.gpu),
            frozenset(process.pid for process in drawing),
        )

    def _percent_by_pid(self, index: int, handle: Any) -> dict[int, float] | None:
        since_us = self._sampled_until_us[index]
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except self._nvml.NVMLError as error:
            silent = (self._nvml.NVML_SUCCESS, self._nvml.NVML_ERROR_NOT_FOUND)
            return {} if getattr(error, "value", None) in silent else None
        newest = max((int(sample.timeStamp) for sample in samples), default=since_us)
        self._sampled_until_us[index] = max(since_us, newest)
        return _mean_by_pid(samples)


def visible_cards(count: int, setting: str | None) -> list[int]:
    """The driver's numbers of `cuda:0`, `cuda:1` and so on, of `count` cards.

    `setting` as in the variable; None: not set. Numbers count up to the first that is no card's, as
    for CUDA; names of cards (`GPU-...`) are not resolved: then all cards count as visible.
    """
    if setting is None or setting.strip().startswith(("GPU-", "MIG-")):
        return list(range(count))
    numbers: list[int] = []
    for word in setting.split(","):
        if not word.strip().isdecimal() or int(word) >= count:
            break
        numbers.append(int(word))
    return numbers


def _own_bytes(use: _CardUse, own: frozenset[int]) -> int:
    return sum(size for pid, size in use.bytes_by_pid.items() if pid in own)


def _others_percent(use: _CardUse, own: frozenset[int], *, sees_ours: bool) -> float | None:
    """Use by everybody else, 0 to 100; None: unknown."""
    if use.percent_by_pid is None:
        return None if own else use.percent_in_all
    if own and not sees_ours:
        return None
    others = sum(share for pid, share in use.percent_by_pid.items() if pid not in own)
    return min(100.0, others)


def _drawing_percent(use: _CardUse, own: frozenset[int]) -> float | None:
    """Use by processes that draw, 0 to 100; None: unknown."""
    if use.percent_by_pid is None:
        return None
    drawing = use.drawing_pids - own
    return min(100.0, sum(use.percent_by_pid.get(pid, 0.0) for pid in drawing))


def _mean_by_pid(samples: list[Any]) -> dict[int, float]:
    values_by_pid: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.smUtil <= SAMPLE_PERCENT_MAX:
            values_by_pid[int(sample.pid)].append(int(sample.smUtil))
    return {pid: sum(values) / len(values) for pid, values in values_by_pid.items()}
