"""Does this Linux run inside Windows (WSL), and how does it share Windows' network?

WSL 1 has no GPU. WSL 2 by default hides behind a NAT of its own, on top of the router's; in
mirrored mode it has Windows' own addresses, so that neighbours can connect to it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from molink_agent.probe.commands import Ask, answer_of

__all__ = ["Wsl", "read_wsl", "wsl_version"]

KERNEL_VERSION = Path("/proc/version")

NETWORKING_MODES = ("nat", "mirrored", "bridged", "virtioproxy", "consomme", "none")
"""What `wslinfo --networking-mode` may answer."""


@dataclass(frozen=True, slots=True)
class Wsl:
    """The kind of WSL."""

    version: int
    """1 or 2."""
    networking: str = "unknown"
    """One of NETWORKING_MODES, or "unknown" where WSL is too old to tell."""


def wsl_version(kernel: str) -> int | None:
    """1 or 2 out of the text of /proc/version; None on a Linux of its own."""
    if re.search(r"microsoft.*WSL2", kernel, re.IGNORECASE):
        return 2
    return 1 if "Microsoft" in kernel else (2 if "microsoft" in kernel else None)


async def read_wsl(kernel: str | None = None, ask: Ask = answer_of) -> Wsl | None:
    """None on a Linux of its own."""
    version = wsl_version(_kernel() if kernel is None else kernel)
    if version is None:
        return None
    mode = (await ask("wslinfo", "--networking-mode") or "").strip().lower()
    return Wsl(version, mode if mode in NETWORKING_MODES else "unknown")


def _kernel() -> str:
    try:
        return KERNEL_VERSION.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
