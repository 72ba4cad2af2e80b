"""Steps that lead from this Windows PC, as it is, to an agent that starts at logon.

Facts in, steps out. A step is something that install.ps1 knows how to do, with a sentence that it
shows first; running the installer again takes up where it was left, because what is done already
makes no step.

Pure: no registry, no clock, no wsl.exe.
"""

from dataclasses import dataclass
from enum import Enum

BUILD_WSL2_MIN = 19041
"""Windows 10 2004: the first whose `wsl --install` brings WSL2."""

BUILD_MIRRORED_MIN = 22621
"""Windows 11 22H2: the first with mirrored networking."""

WSL_MIRRORED_MIN = (2, 0, 0)
"""The first WSL with mirrored networking outside of its previews."""


DISK_GB_MIN = 20
"""Room for WSL's Linux, torch with CUDA and the kernels that it compiles."""


class Do(Enum):
    """Kind of step; each is a case of the `switch` in install.ps1."""

    STOP = "stop"
    """Nothing can go on before the owner has done what the sentence says."""
    NOTE = "note"
    UPDATE_WSL = "update-wsl"
    CONVERT_DISTRIBUTION = "convert-distribution"
    SET_MIRRORED = "set-mirrored"
    RESTART_WSL = "restart-wsl"
    INSTALL_PACKAGES = "install-packages"
    INSTALL_AGENT = "install-agent"
    REGISTER_TASK = "register-task"


@dataclass(frozen=True, slots=True)
class InstallStep:
    """Step of the installation, with what the owner is shown before it."""

    do: Do
    text: str
    """Shown to the owner before it is done."""


@dataclass(frozen=True, slots=True)
class WindowsFacts:
    """Facts about a Windows PC before MoLink is installed."""

    build: int
    """Build of Windows: 22631 is Windows 11 23H2."""
    virtualisation: bool
    """Switched on in the firmware, or a hypervisor runs already."""
    wsl_version: tuple[int, ...] | None
    """Version of WSL itself; None: the old one that came with Windows and cannot tell."""
    distribution: str
    distribution_wsl: int
    """Version of WSL, 1 or 2, in which this distribution runs."""
    mirrored: bool
    """.wslconfig sets it already."""
    python_complete: bool
    """The distribution's Python can make virtual environments."""
    has_apt: bool
    task_registered: bool = False
    runs_as: str = ""
    """Account that runs the installer, as DOMAIN\\name."""
    logged_on: str = ""
    """Account whose desktop this is; empty: not known."""
    nvidia_driver: str | None = None
    """Version of NVIDIA's driver; empty: there is none; None: not known."""
    sleeps_after_s: int = 0
    """Seconds of idleness until Windows sleeps while plugged in; 0: never, or not known."""
    free_disk_gb: int | None = None
    """Free GB of the drive of the user's profile, where WSL keeps its disk; None: not known."""


def parse_version(text: str) -> tuple[int, ...] | None:
    """`2.3.26.0` as numbers; None for anything else."""
    parts = text.strip().split(".")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        return None
    return tuple(int(part) for part in parts)


def can_mirror(facts: WindowsFacts) -> bool:
    """Whether this Windows has mirrored networking, if need be after an update of WSL."""
    return facts.build >= BUILD_MIRRORED_MIN


def plan_steps(facts: WindowsFacts) -> tuple[InstallStep, ...]:
    """Steps in the order in which they are to be done; one STOP alone when nothing can be."""
    obstacle = _obstacle(facts)
    if obstacle:
        return (InstallStep(Do.STOP, obstacle),)
    return (
        *_notes(facts),
        *_wsl_steps(facts),
        *_network_steps(facts),
        *_package_steps(facts),
        InstallStep(Do.INSTALL_AGENT, f"Installing MoLink inside {facts.distribution}."),
        *_task_steps(facts),
    )


def _obstacle(facts: WindowsFacts) -> str:
    if facts.build < BUILD_WSL2_MIN:
        return (
            f"Windows build {facts.build} has no WSL2: update Windows to build {BUILD_WSL2_MIN} "
            "(Windows 10 2004) or newer."
        )
    if not facts.virtualisation:
        return (
            "Virtualisation is off: switch it on in the PC's firmware (often called VT-x, AMD-V or "
            "SVM), then run this again."
        )
    if facts.logged_on and facts.runs_as.lower() != facts.logged_on.lower():
        return (
            f"This PowerShell runs as {facts.runs_as}, but {facts.logged_on} is logged on: WSL and "
            "the agent would be that account's alone. Make yours an administrator for the time of "
            "the installation, then open PowerShell as administrator and run this again."
        )
    return ""


def _notes(facts: WindowsFacts) -> list[InstallStep]:
    """What keeps the PC from helping later, said before gigabytes are fetched."""
    notes = []
    if facts.nvidia_driver == "":
        notes.append(
            "There is no driver of NVIDIA's here: the CPU alone would be lent. For a card install "
            "the driver for Windows (never one inside WSL), then run this again."
        )
    if facts.free_disk_gb is not None and facts.free_disk_gb < DISK_GB_MIN:
        notes.append(
            f"The drive has {facts.free_disk_gb} GB free: WSL and MoLink take some {DISK_GB_MIN} "
            "GB, and the weights come on top."
        )
    if facts.sleeps_after_s:
        minutes = max(1, facts.sleeps_after_s // 60)
        notes.append(
            f"Windows sleeps after {minutes} min without input, and lends nothing then: "
            "powercfg /change standby-timeout-ac 0 keeps it awake while it is plugged in."
        )
    return [InstallStep(Do.NOTE, one) for one in notes]


def _wsl_steps(facts: WindowsFacts) -> list[InstallStep]:
    steps = []
    if facts.wsl_version is None or facts.wsl_version < WSL_MIRRORED_MIN:
        steps.append(InstallStep(Do.UPDATE_WSL, "Updating WSL: this one is older than 2.0."))
    if facts.distribution_wsl == 1:
        text = f"Moving {facts.distribution} from WSL1 to WSL2: WSL1 has no GPU. It takes minutes."
        steps.append(InstallStep(Do.CONVERT_DISTRIBUTION, text))
    return steps


def _network_steps(facts: WindowsFacts) -> list[InstallStep]:
    if facts.mirrored and can_mirror(facts):
        return []
    if not can_mirror(facts):
        text = (
            "This Windows has no mirrored networking (that needs Windows 11 22H2), so WSL stays "
            "behind its own NAT and neighbours reach this PC through the relay."
        )
        return [InstallStep(Do.NOTE, text)]
    return [
        InstallStep(
            Do.SET_MIRRORED,
            "Setting networkingMode=mirrored in .wslconfig, so that neighbours can reach this PC "
            "directly; other settings there stay.",
        ),
        InstallStep(
            Do.RESTART_WSL,
            "Restarting WSL, which ends everything that runs in it (Docker Desktop, too).",
        ),
    ]


def _package_steps(facts: WindowsFacts) -> list[InstallStep]:
    if facts.python_complete:
        return []
    if facts.has_apt:
        text = f"Installing Python's venv module and a C compiler inside {facts.distribution}."
        return [InstallStep(Do.INSTALL_PACKAGES, text)]
    text = f"{facts.distribution} lacks a Python 3.11 with venv; the installer says how to get it."
    return [InstallStep(Do.NOTE, text)]


def _task_steps(facts: WindowsFacts) -> list[InstallStep]:
    verb = "Renewing" if facts.task_registered else "Registering"
    text = f"{verb} the task that starts the agent when you log on."
    return [InstallStep(Do.REGISTER_TASK, text)]
