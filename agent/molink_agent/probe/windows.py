"""The Windows around a WSL, by what the installer's script tells of it.

The script keeps a copy of itself in Windows, and answers with `-Facts`: it changes nothing then,
and needs no administrator.
"""

import json
import os
from dataclasses import dataclass

from molink_agent.probe.commands import Ask, answer_of
from molink_agent.windows.steps import parse_version

ANSWER_WITHIN_S = 20.0
"""PowerShell starts in two seconds, its questions about the PC take some more each."""

SCRIPT = r"$env:LOCALAPPDATA\MoLink\windows\install.ps1"


@dataclass(frozen=True, slots=True)
class AroundWsl:
    """What Windows tells; each may be missing."""

    firewall_ports: str = ""
    """Ports that the rule of the Hyper-V firewall lets through, FIRST-LAST; or none, not told, no
    firewall."""
    wsl_version: tuple[int, ...] | None = None
    runs_as: str = ""
    logged_on: str = ""
    nvidia_driver: str | None = None
    """Empty: there is none."""
    sleeps_after_s: int | None = None
    free_disk_gb: int | None = None
    memory_gb: int | None = None
    task_registered: bool | None = None

    @classmethod
    def read(cls, text: str | None) -> "AroundWsl | None":
        """Facts out of the script's answer; None where it is none."""
        try:
            answer = json.loads(text or "")
            return cls(
                firewall_ports=str(answer["firewall-ports"]),
                wsl_version=parse_version(str(answer["wsl-version"])),
                runs_as=str(answer["runs-as"]),
                logged_on=str(answer["logged-on"]),
                nvidia_driver=str(answer["nvidia-driver"]),
                sleeps_after_s=int(answer["sleeps-after-s"]),
                free_disk_gb=int(answer["free-disk-gb"]),
                memory_gb=int(answer["memory-gb"]),
                task_registered=answer["task-registered"] == "yes",
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


async def ask_windows(ask: Ask = answer_of) -> AroundWsl | None:
    """Ask the script that the installer has kept in Windows; None where nothing answers."""
    distribution = os.environ.get("WSL_DISTRO_NAME", "")
    command = f"& \"{SCRIPT}\" -Facts -Distribution '{distribution}'"
    options = ("-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass", "-Command", command)
    return AroundWsl.read(await ask("powershell.exe", *options, timeout_s=ANSWER_WITHIN_S))
