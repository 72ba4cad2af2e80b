"""The PC apart from its GPUs: processor, memory, disk, battery."""

import contextlib
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from molink_agent.probe.container import ContainerLimits, container_limits

__all__ = [
    "Machine",
    "bytes_under",
    "cpu_facts",
    "disk_free_bytes",
    "read_machine",
    "runs_on_battery",
]

CPUINFO = Path("/proc/cpuinfo")

BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""Instruction sets that multiply bfloat16; other CPUs hold weights in fp32, twice as large."""


@dataclass(frozen=True, slots=True)
class Machine:
    """As found now."""

    host_name: str
    cpu_name: str
    cpu_threads: int
    """That this process may use."""
    multiplies_bfloat16: bool
    memory_bytes: int
    memory_available_bytes: int
    """Without hurting who works here, as the system estimates."""
    disk_free_bytes: int
    """Where the agent keeps its data."""
    on_battery: bool | None = None
    """None: no battery, or it does not say."""


def read_machine(data_dir: Path, limits: ContainerLimits | None = None) -> Machine:
    """Ask the system; a container's limits count as the machine's size."""
    allowed = container_limits() if limits is None else limits
    memory = psutil.virtual_memory()
    total, available = _within(allowed, int(memory.total), int(memory.available))
    name, bfloat16 = cpu_facts(_cpuinfo())
    return Machine(
        host_name=platform.node() or "unnamed",
        cpu_name=name,
        cpu_threads=_threads(allowed),
        multiplies_bfloat16=bfloat16,
        memory_bytes=total,
        memory_available_bytes=available,
        disk_free_bytes=disk_free_bytes(data_dir),
        on_battery=runs_on_battery(),
    )


def disk_free_bytes(directory: Path) -> int:
    """Free for this user where `directory` is, or would be once it is made; 0 when nobody can
    tell."""
    there = [path for path in (directory, *directory.absolute().parents) if path.exists()]
    try:
        return int(psutil.disk_usage(str(there[0])).free) if there else 0
    except OSError:
        return 0


def bytes_under(directory: Path) -> int:
    """Of all files in it; 0 where there is none."""
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


def _cpuinfo() -> str:
    try:
        return CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _threads(allowed: ContainerLimits) -> int:
    usable = len(os.sched_getaffinity(0))
    return max(1, usable if allowed.cpus is None else min(usable, int(allowed.cpus)))


def _within(allowed: ContainerLimits, total: int, available: int) -> tuple[int, int]:
    if allowed.memory_bytes is None:
        return total, available
    left = max(0, allowed.memory_bytes - allowed.memory_used_bytes)
    return min(total, allowed.memory_bytes), min(available, left)


def runs_on_battery(ask: Callable[[], Any] | None = None) -> bool | None:
    """None: no battery, or it does not say; psutil knows none at all on some systems."""
    ask = ask or getattr(psutil, "sensors_battery", None)
    try:
        battery = ask() if ask is not None else None
    except (OSError, RuntimeError, ValueError):
        return None
    plugged = getattr(battery, "power_plugged", None)
    return None if plugged is None else not plugged
