"""A graphics card as torch and its driver know it: the one place that asks `torch.cuda`.

Whatever decides by a card's answers is tested with a stand-in for this class on a PC without one.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import psutil
import pynvml
import torch

from molink.hardware.torch_builds import Capability

ERROR_CHARACTERS_MAX = 200
"""Characters of torch's words in a sentence of ours."""


@dataclass(frozen=True, slots=True)
class Card:
    """Graphics card that torch computes on, or would."""

    device: torch.device

    @property
    def count(self) -> int:
        """How many cards torch sees."""
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    @property
    def why_none(self) -> str:
        """Why torch sees no card, in its own words; empty where it does not say."""
        if torch.version.cuda is None:
            return "it was built without CUDA: see `molink agent doctor`"
        init: Callable[[], None] = torch.cuda.init
        try:
            init()
        except (RuntimeError, AssertionError) as error:
            return self.words(error)
        return ""

    @property
    def name(self) -> str:
        """Name that its maker gives it."""
        return str(torch.cuda.get_device_name(self.device))

    @property
    def capability(self) -> Capability:
        """Compute capability: which machine code it runs."""
        major, minor = torch.cuda.get_device_capability(self.device)
        return major, minor

    @property
    def architectures(self) -> tuple[str, ...]:
        """Architectures that this torch has code for: `sm_86` and so on."""
        return tuple(torch.cuda.get_arch_list())

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether it has instructions for bfloat16 products; torch emulates them elsewhere."""
        with torch.cuda.device(self.device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))

    @staticmethod
    def words(error: Exception) -> str:
        """First line of torch's error, without the paragraphs of advice beneath."""
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return lines[0].rstrip(".")[:ERROR_CHARACTERS_MAX]

    def try_step(self) -> None:
        """Compute one sum on it, and wait for it. Raises RuntimeError in torch's words."""
        torch.zeros(1, device=self.device).add_(1).item()

    def select(self) -> None:
        """Make it the one that this process computes on where nobody names a card: Triton launches
        there, and memory is pinned for it."""
        torch.cuda.set_device(self.device)

    # -- memory ---------------------------------------------------------------------------------

    @property
    def total_bytes(self) -> int:
        """All of its memory."""
        return int(torch.cuda.mem_get_info(self.device)[1])

    @property
    def free_bytes(self) -> int:
        """Bytes that nobody holds, this process's allocator included."""
        return int(torch.cuda.mem_get_info(self.device)[0])

    @property
    def held_bytes(self) -> int:
        """Bytes of this process's tensors."""
        return int(torch.cuda.memory_allocated(self.device))

    @property
    def peak_bytes(self) -> int:
        """The most that this process's allocator has held since `forget_peak`."""
        return int(torch.cuda.max_memory_reserved(self.device))

    def forget_peak(self) -> None:
        """Measure the peak anew."""
        self.return_freed()
        torch.cuda.reset_peak_memory_stats(self.device)

    def return_freed(self) -> None:
        """Give back what the allocator keeps without using it."""
        torch.cuda.empty_cache()

    def wait(self) -> None:
        """Wait until all that was launched is computed; errors of it are raised here."""
        torch.cuda.synchronize(self.device)

    def hold_to(self, most_bytes: int) -> None:
        """Let this process's tensors take no more than so much from now on."""
        share = min(1.0, max(0.0, most_bytes / self.total_bytes))
        torch.cuda.set_per_process_memory_fraction(share, self.device)

    def bytes_by_process(self) -> dict[int, int] | None:
        """Bytes that each process holds, by the driver; None where it does not tell (under WSL, in
        a container)."""
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{self._uuid}")
            running = [
                *pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
                *pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
            ]
        except (pynvml.NVMLError, OSError):
            return None
        # A process that computes and draws is in both lists, with the same figure.
        held = {int(one.pid): one.usedGpuMemory for one in running}
        tells = all(size is not None for size in held.values())
        return {pid: int(size) for pid, size in held.items()} if tells else None

    @property
    def driver(self) -> int | None:
        """The first number of the driver's version; None: it does not tell."""
        try:
            pynvml.nvmlInit()
            version = str(pynvml.nvmlSystemGetDriverVersion())
        except (pynvml.NVMLError, OSError):
            return None
        first = version.partition(".")[0]
        return int(first) if first.isdecimal() else None

    @property
    def _uuid(self) -> Any:
        return torch.cuda.get_device_properties(self.device).uuid


def card_of(device: torch.device) -> Card | None:
    """The card that a device is; None: it is none."""
    return Card(device) if device.type == "cuda" else None


def processes_beside() -> Collection[int]:
    """This process and those that its parent has started beside it: stages of one ring."""
    try:
        return {one.pid for one in psutil.Process(os.getppid()).children()} | {os.getpid()}
    except psutil.Error:
        return {os.getpid()}
