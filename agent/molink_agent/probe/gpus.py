"""Which GPUs are here, how full are they, and who else uses them? Asked of the driver (NVML).

NVML is the driver's own library, so it answers without CUDA and without torch. It numbers GPUs by
their place on the bus, CUDA by speed: a stage must be started with `CUDA_DEVICE_ORDER=PCI_BUS_ID`
for `cuda:1` to be the same card to both.

Others' use is asked for process by process, since our own stage keeps the card busy. Where the
driver does not tell (under WSL never, in a container the numbers of processes are others), all use
counts as others' while we have no process there, and is unknown while we have one.
"""

from dataclasses import dataclass
from typing import Any

import pynvml

from molink_agent.probe.gpu_use import UseReader
from molink_agent.probe.visible_cards import visible_cards

__all__ = ["Gpu", "GpuProbe", "GpuReport"]

NO_DRIVER = "no NVIDIA driver is installed (libnvidia-ml.so.1 is missing)"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    own_bytes: int = 0
    """What our own processes hold of it; 0 where the driver does not tell."""
    others_percent: float | None = None
    """How busy others keep it; None: unknown."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability, for example (8, 6)."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    """All cards, or why there are none."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    """Version of the driver; None: it did not answer."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver runs."""
    reason: str = ""
    """Why `gpus` is empty, or what did not answer."""

    @property
    def others_percent(self) -> float | None:
        """Of the busiest card; None where no card tells."""
        known = [gpu.others_percent for gpu in self.gpus if gpu.others_percent is not None]
        return max(known, default=None)


class GpuProbe:
    """Keeps the driver's library open between questions: opening it can wake a sleeping card."""

    def __init__(
        self, nvml: Any = pynvml, *, wsl: bool = False, visible: str | None = None
    ) -> None:
        """`visible`: as in $CUDA_VISIBLE_DEVICES; None: all cards."""
        self._nvml = nvml
        self._visible = visible
        self._use = UseReader(nvml, trusted=not wsl)
        self._open = False

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
        self._use.look(handles, own_pids)
        gpus, reason = self._gpus(handles)
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

    def _gpus(self, handles: list[Any]) -> tuple[tuple[Gpu, ...], str]:
        gpus, reason = [], "" if handles else "the driver sees no GPU"
        for index, handle in enumerate(handles):
            try:
                gpus.append(self._gpu(index, handle))
            except self._nvml.NVMLError as error:
                reason = f"GPU {index} did not answer ({error})"
        return tuple(gpus), reason

    def _gpu(self, index: int, handle: Any) -> Gpu:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        return Gpu(
            index=index,
            name=str(self._nvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(memory.total),
            free_bytes=int(memory.free),
            own_bytes=self._use.own_bytes(index),
            others_percent=self._use.others_percent(index),
            capability=self._capability(handle),
        )

    def _capability(self, handle: Any) -> tuple[int, int] | None:
        try:
            major, minor = self._nvml.nvmlDeviceGetCudaComputeCapability(handle)
        except self._nvml.NVMLError:
            return None
        return int(major), int(minor)

    def _driver(self) -> str | None:
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None

    def _cuda(self) -> tuple[int, int] | None:
        """NVML says 12080 for 12.8."""
        try:
            version = int(self._nvml.nvmlSystemGetCudaDriverVersion_v2())
        except self._nvml.NVMLError:
            return None
        return version // 1000, version % 1000 // 10
