"""The PC apart from its GPUs: processor, memory, disk, battery, and whether Windows is around it.

In a container the system still reports the whole machine, and a stage sized by that is killed; so
what its control groups (Linux, v2) allow counts as the machine's size. Under WSL 1 there is no GPU.
WSL 2 by default hides behind a NAT of its own, on top of the router's; in mirrored mode it has
Windows' own addresses, so that neighbours can connect to it.
"""

import contextlib
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from molink_agent.probe.commands import Ask, answer_of

CPUINFO = Path("/proc/cpuinfo")
KERNEL_VERSION = Path("/proc/version")
CGROUP_DIRECTORY = Path("/sys/fs/cgroup")

BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""Instruction sets that multiply bfloat16; other CPUs hold weights in fp32, twice as large."""

NETWORKING_MODES = ("nat", "mirrored", "bridged", "virtioproxy", "consomme", "none")
"""Answers of `wslinfo --networking-mode`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Processor, memory and disk of the PC as they are now."""

    cpu_name: str
    cpu_threads: int
    """Threads that this process may use."""
    multiplies_bfloat16: bool
    memory_bytes: int
    memory_available_bytes: int
    """Memory that may be taken without hurting who works here, as the system estimates."""
    disk_free_bytes: int
    """Free bytes of the disk with the agent's data."""


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Memory and processors that the container may use; None: as much as the machine has."""

    memory_bytes: int | None = None
    memory_used_bytes: int = 0
    """Bytes in use, without the files that the system only keeps in case they are read again."""
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class Wsl:
    """Kind of WSL around this Linux."""

    version: int
    """Version of WSL: 1 or 2."""
    networking: str = "unknown"
    """Kind of network, one of NETWORKING_MODES, or "unknown" where WSL is too old to tell."""


def read_machine(data_dir: Path, limits: ContainerLimits | None = None) -> Machine:
    """Ask the system; a container's limits count as the machine's size."""
    allowed = container_limits() if limits is None else limits
    memory = psutil.virtual_memory()
    total, available = _limited(allowed, int(memory.total), int(memory.available))
    name, bfloat16 = cpu_facts(_text(CPUINFO))
    return Machine(
        cpu_name=name,
        cpu_threads=_threads(allowed),
        multiplies_bfloat16=bfloat16,
        memory_bytes=total,
        memory_available_bytes=available,
        disk_free_bytes=disk_free_bytes(data_dir),
    )


def disk_free_bytes(directory: Path) -> int:
    """Free for this user where `directory` is or would be made; 0 when that is unknown."""
    there = [path for path in (directory, *directory.absolute().parents) if path.exists()]
    try:
        return int(psutil.disk_usage(str(there[0])).free) if there else 0
    except OSError:
        return 0


def bytes_under(directory: Path) -> int:
    """Size of all files in a directory; 0 where there is none."""
    found = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # A download may just have ended.
            found += path.stat().st_size if path.is_file() else 0
    return found


def cpu_facts(cpuinfo: str) -> tuple[str, bool]:
    """Name, and whether it multiplies bfloat16, out of the text of /proc/cpuinfo."""
    facts: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = set(facts.get("flags", "").split())
    return facts.get("model name") or platform.machine() or "CPU", bool(flags & BFLOAT16_FLAGS)


def runs_on_battery(ask: Callable[[], Any] | None = None) -> bool | None:
    """Whether the PC is unplugged; None: it has no battery, or the battery does not tell. psutil
    knows none at all on some systems."""
    ask = ask or getattr(psutil, "sensors_battery", None)
    try:
        battery = ask() if ask is not None else None
    except (OSError, RuntimeError, ValueError):
        return None
    plugged = getattr(battery, "power_plugged", None)
    return None if plugged is None else not plugged


def container_limits(directory: Path = CGROUP_DIRECTORY) -> ContainerLimits:
    """Memory and processors that this process may use; without control groups there is no limit."""
    memory = _whole(directory / "memory.max")
    if memory is None:
        return ContainerLimits(cpus=_cpus(directory))
    used = (_whole(directory / "memory.current") or 0) - _file_cache(directory / "memory.stat")
    return ContainerLimits(memory, max(0, used), _cpus(directory))


def wsl_version(kernel: str) -> int | None:
    """1 or 2 by the text of /proc/version; None outside of WSL."""
    if re.search(r"microsoft.*WSL2", kernel, re.IGNORECASE):
        return 2
    return 1 if "Microsoft" in kernel else (2 if "microsoft" in kernel else None)


async def read_wsl(kernel: str | None = None, ask: Ask = answer_of) -> Wsl | None:
    """Version and networking mode; None outside of WSL."""
    version = wsl_version(_text(KERNEL_VERSION) if kernel is None else kernel)
    if version is None:
        return None
    mode = (await ask("wslinfo", "--networking-mode") or "").strip().lower()
    return Wsl(version, mode if mode in NETWORKING_MODES else "unknown")


def _threads(allowed: ContainerLimits) -> int:
    usable = len(os.sched_getaffinity(0))
    return max(1, usable if allowed.cpus is None else min(usable, int(allowed.cpus)))


def _limited(allowed: ContainerLimits, total: int, available: int) -> tuple[int, int]:
    if allowed.memory_bytes is None:
        return total, available
    left = max(0, allowed.memory_bytes - allowed.memory_used_bytes)
    return min(total, allowed.memory_bytes), min(available, left)


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
