"""What a container is allowed of its machine: memory and processors (Linux control groups, v2).

Inside a container the system still reports the whole machine's; a stage sized by that is killed.
"""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ContainerLimits", "container_limits"]

CGROUP_DIRECTORY = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """None: as much as the machine has."""

    memory_bytes: int | None = None
    memory_used_bytes: int = 0
    """Without the files that the system only keeps in case they are read again."""
    cpus: float | None = None


def container_limits(directory: Path = CGROUP_DIRECTORY) -> ContainerLimits:
    """What applies to this process; without control groups, nothing does."""
    memory = _whole(directory / "memory.max")
    if memory is None:
        return ContainerLimits(cpus=_cpus(directory))
    used = (_whole(directory / "memory.current") or 0) - _file_cache(directory / "memory.stat")
    return ContainerLimits(memory, max(0, used), _cpus(directory))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
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
