"""Why is there no service manager here, and what would bring one?

systemctl's own words ("Failed to connect to bus") are the same for a container, a WSL without
systemd and a shell opened with `su`. What differs is the remedy, so we look at where we are.
"""

import getpass
import os
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Surroundings", "why_no_manager"]

IN_A_TERMINAL = (
    "Meanwhile `molink agent run` in a terminal does the same for as long as it is open."
)

CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What kind of Linux this is."""

    wsl: bool
    container: bool
    systemd_booted: bool
    """systemd is process 1."""
    user: str
    user_id: int

    @classmethod
    def look(cls) -> "Surroundings":
        """Where this process runs."""
        return cls(
            wsl="microsoft" in platform.release().lower(),
            container=any(Path(mark).exists() for mark in CONTAINER_MARKS),
            systemd_booted=Path("/run/systemd/system").is_dir(),
            user=_user_name(),
            user_id=os.getuid(),
        )


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def why_no_manager(here: Surroundings) -> str:
    """One sentence with the reason, one with the remedy, one with what works without it."""
    return f"{_reason_and_remedy(here)} {IN_A_TERMINAL}"


def _reason_and_remedy(here: Surroundings) -> str:
    if here.systemd_booted:
        return (
            f"systemd runs no services for {here.user} here, as after `su` or without a login. Log "
            f"in as {here.user}, or run `sudo loginctl enable-linger {here.user}` and "
            f"`export XDG_RUNTIME_DIR=/run/user/{here.user_id}`, then try again."
        )
    if here.container:
        return "A container has no systemd. Let it run `molink agent run` as its own command."
    if here.wsl:
        return (
            "systemd is off in this WSL. Put the lines `[boot]` and `systemd=true` into "
            "/etc/wsl.conf, run `wsl --shutdown` in Windows, then try again; or let "
            "windows/install.ps1 start the agent at logon."
        )
    return (
        "This Linux was not started by systemd. Let its own service manager run `molink agent run`."
    )
