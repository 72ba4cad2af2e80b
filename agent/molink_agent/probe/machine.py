"""The PC apart from its GPUs: processor, memory, disk, battery, and whether Windows is around it.

What a container allows counts as the machine's size (`molink.hardware.host`). Under WSL 1 there is
no GPU.
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

from molink.hardware.host import ContainerLimits, container_limits, read_main_memory
from molink_agent.probe.commands import Ask, answer_of

CPUINFO = Path("/proc/cpuinfo")
KERNEL_VERSION = Path("/proc/version")

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
class Wsl:
    """Kind of WSL around this Linux."""

    version: int
    """Version of WSL: 1 or 2."""
    networking: str = "unknown"
    """Kind of network, one of NETWORKING_MODES, or "unknown" where WSL is too old to tell."""


def read_machine(data_dir: Path, limits: ContainerLimits | None = None) -> Machine:
    """Ask the system; a container's limits count as the machine's size."""
    allowed = container_limits() if limits is None else limits
    memory = read_main_memory(allowed)
    name, bfloat16 = cpu_facts(_text(CPUINFO))
    return Machine(
        cpu_name=name,
        cpu_threads=_threads(allowed),
        multiplies_bfloat16=bfloat16,
        memory_bytes=memory.total_bytes,
        memory_available_bytes=memory.available_bytes,
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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
