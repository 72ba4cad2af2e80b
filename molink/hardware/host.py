"""The PC around this process, or its container: main memory, and processors that it may use.

In a container the system still reports the whole machine, and who takes as much as that is killed;
so what its control groups (Linux, v2) allow counts as the machine's size. WSL 2 reports its own
part of the PC, which is what there is.
"""

from dataclasses import dataclass
from pathlib import Path

import psutil

from molink_scheduler.units import GB

CGROUP_DIRECTORY = Path("/sys/fs/cgroup")

MEMORY_RESERVE_SHARE = 0.1
MEMORY_RESERVE_BYTES_MAX = 2 * GB
"""A tenth of the memory always stays free, on large PCs 2 GB: what opening a browser takes. Below
that Linux begins to swap out what its owner will want next."""


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Memory and processors that the container may use; None: as much as the machine has."""

    memory_bytes: int | None = None
    memory_used_bytes: int = 0
    """Bytes in use, without the files that the system only keeps in case they are read again."""
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class MainMemory:
    """Main memory of the PC, or of the container, as it is now."""

    total_bytes: int
    available_bytes: int
    """Bytes that may be taken without hurting who works here, as the system estimates."""

    @property
    def reserve_bytes(self) -> int:
        """The part that always stays free."""
        return min(MEMORY_RESERVE_BYTES_MAX, int(self.total_bytes * MEMORY_RESERVE_SHARE))

    @property
    def idle_bytes(self) -> int:
        """What is free beside that; below 0 where it is touched."""
        return self.available_bytes - self.reserve_bytes


def read_main_memory(limits: ContainerLimits | None = None) -> MainMemory:
    """Ask the system: a tenth of a millisecond."""
    allowed = container_limits() if limits is None else limits
    memory = psutil.virtual_memory()
    if allowed.memory_bytes is None:
        return MainMemory(int(memory.total), int(memory.available))
    left = max(0, allowed.memory_bytes - allowed.memory_used_bytes)
    return MainMemory(
        min(int(memory.total), allowed.memory_bytes), min(int(memory.available), left)
    )


def container_limits(directory: Path = CGROUP_DIRECTORY) -> ContainerLimits:
    """Memory and processors that this process may use; without control groups there is no limit."""
    memory = _whole(directory / "memory.max")
    if memory is None:
        return ContainerLimits(cpus=_cpus(directory))
    used = (_whole(directory / "memory.current") or 0) - _file_cache(directory / "memory.stat")
    return ContainerLimits(memory, max(0, used), _cpus(directory))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _whole(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def _cpus(directory: Path) -> float | None:
    """`cpu.max` says microseconds of work in so many of time, or "max"."""
    parts = _text(directory / "cpu.max").split()
    if len(parts) != 2 or not all(part.isdecimal() for part in parts) or int(parts[1]) == 0:
        return None
    return int(parts[0]) / int(parts[1])


def _file_cache(path: Path) -> int:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file" and value.isdecimal():
            return int(value)
    return 0
