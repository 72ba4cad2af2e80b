"""Installs, removes and inspects the agent's service.

Each function may be repeated: what is there already is replaced, what is gone already is no error.
systemctl's own words ("Failed to connect to bus") are the same for a container, a WSL without
systemd and a shell opened with `su`. The remedies differ, so we look at where we are.

The programs were chosen over D-Bus because they are there wherever systemd is, and their exit codes
and property lines have been stable for ten years.
"""

import getpass
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from molink.errors import UserError
from molink_agent.service.unit import ISOLATION, MADE_BY, unit_name, unit_text

ANSWER_WITHIN_S = 10.0
"""A manager that works answers every question in milliseconds."""

STOP_WITHIN_S = 90.0
"""Stopping waits for the unit: longer than its own TimeoutStopSec."""

EXIT_NOT_FOUND, EXIT_TOO_LATE = 127, 124

PROPERTIES = ("LoadState", "ActiveState", "UnitFileState", "Result", "NRestarts")

IN_A_TERMINAL = (
    "Meanwhile `molink agent run` in a terminal does the same for as long as it is open."
)

NOT_ISOLATED = (
    "This Linux gives users no namespaces: the agent could write wherever you can (all else of its "
    "sandbox holds)."
)

CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """State of one agent's service, as systemd reports it."""

    unit: str
    installed: bool
    enabled: bool
    """Whether it starts by itself."""
    active: bool
    """Whether it runs now."""
    lingering: bool
    """Whether it goes on when the user logs out."""
    restarts: int
    problem: str = ""
    """Sentence with a remedy; empty when all is well."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Kind of Linux: whether it can have a service manager."""

    wsl: bool
    container: bool
    systemd_booted: bool
    """Whether systemd is process 1."""
    user: str
    user_id: int

    @classmethod
    def here(cls) -> "Surroundings":
        """The Linux in which this process runs."""
        return cls(
            wsl="microsoft" in platform.release().lower(),
            container=any(Path(mark).exists() for mark in CONTAINER_MARKS),
            systemd_booted=Path("/run/systemd/system").is_dir(),
            user=_user_name(),
            user_id=os.getuid(),
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """Exit code and output of a program."""

    code: int
    """Exit code: 0: done; 127: no such program; 124: it did not answer in time."""
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """The last line of its output, for a person."""
        lines = (self.errors or self.output).strip().splitlines()
        return lines[-1] if lines else f"exit code {self.code}"


def install_service(data_dir: Path) -> list[str]:
    """Write, enable and start the unit; returns what was done and what is left to do, for a person.

    Raises UserError where there is no systemd user instance, or it refuses.
    """
    if _ask_systemctl("show-environment").code:
        raise UserError(why_no_manager(Surroundings.here()))
    unit = _unit(data_dir)
    file = _unit_directory() / unit
    if file.exists() and not _is_ours(file):
        raise UserError(f"{file} is not ours: move it away, then try again.")
    file.parent.mkdir(parents=True, exist_ok=True)
    isolated = _can_isolate()
    text = unit_text(_agent_command(data_dir), data_dir.absolute(), isolated=isolated)
    file.write_text(text, encoding="utf-8")
    for arguments in (["daemon-reload"], ["enable", unit], ["restart", unit]):
        answer = _ask_systemctl(*arguments, timeout_s=STOP_WITHIN_S)
        if answer.code:
            raise UserError(
                f"systemctl --user {' '.join(arguments)}: {answer.reason} "
                f"`journalctl --user -u {unit}` may tell more."
            )
    started = f"The agent runs as {unit} and starts with your session."
    return [started, _when_it_ends(), *([] if isolated else [NOT_ISOLATED])]


def remove_service(data_dir: Path) -> list[str]:
    """Stop and remove the unit; returns what was done. Works without systemd, too."""
    unit = _unit(data_dir)
    file = _unit_directory() / unit
    if not file.exists():
        return [f"There is no service {unit}."]
    if not _is_ours(file):
        raise UserError(f"{file} is not ours: remove it yourself if you want it gone.")
    answer = _ask_systemctl("disable", "--now", unit, timeout_s=STOP_WITHIN_S)
    file.unlink()
    _ask_systemctl("daemon-reload")
    _ask_systemctl("reset-failed", unit)
    if answer.code:
        return [f"{unit} is removed; systemd did not confirm that it has ended: {answer.reason}"]
    return [f"{unit} is stopped and removed."]


def service_status(data_dir: Path) -> ServiceStatus:
    """The state of the service; never raises."""
    unit = _unit(data_dir)
    installed = (_unit_directory() / unit).exists()
    answer = _ask_systemctl("show", unit, f"--property={','.join(PROPERTIES)}")
    facts = dict(line.split("=", 1) for line in answer.output.splitlines() if "=" in line)
    restarts = facts.get("NRestarts", "")
    return ServiceStatus(
        unit=unit,
        installed=installed,
        enabled=facts.get("UnitFileState") == "enabled",
        active=facts.get("ActiveState") in ("active", "reloading", "activating"),
        lingering=_lingering(),
        restarts=int(restarts) if restarts.isdecimal() else 0,
        problem=_problem(unit, installed, answer.code, facts),
    )


def _can_isolate() -> bool:
    """Whether a service of this user can have a read-only system: tried, since a kernel, a
    distribution's policy or an old systemd may forbid it, and the agent would not start."""
    options = [f"--property={line}" for line in ISOLATION]
    return not _ask(["systemd-run", "--user", "--wait", "--collect", *options, "true"]).code


def _problem(unit: str, installed: bool, code: int, facts: dict[str, str]) -> str:
    if not installed:
        return "It is not installed: `molink agent service install` does it."
    if code or not facts:
        return why_no_manager(Surroundings.here())
    if facts.get("ActiveState") == "failed":
        return (
            f"It has failed ({facts.get('Result', 'unknown')}): `journalctl --user -u {unit}` "
            "tells why, `molink agent doctor` what to do."
        )
    return ""


def _lingering() -> bool:
    answer = _ask(["loginctl", "--no-pager", "show-user", _user_name(), "--property=Linger"])
    return answer.output.strip() == "Linger=yes"


def _when_it_ends() -> str:
    if Surroundings.here().wsl:
        return (
            "WSL ends it seconds after its last window is closed; the task of "
            "windows/install.ps1 starts the agent at logon and keeps it."
        )
    if _lingering():
        return "It goes on when you log out."
    return "It ends when you log out; to let it go on and start with the PC: loginctl enable-linger"


def _agent_command(data_dir: Path) -> list[str]:
    """The `molink` beside this Python; its module where there is none (a checkout)."""
    molink = Path(sys.executable).parent / "molink"
    program = [str(molink)] if molink.exists() else [sys.executable, "-m", "molink.cli.main"]
    return [*program, "agent", "run", "--data-dir", str(data_dir.absolute())]


def _unit(data_dir: Path) -> str:
    return unit_name(data_dir.absolute(), _xdg("XDG_DATA_HOME", ".local/share") / "molink-agent")


def _unit_directory() -> Path:
    return _xdg("XDG_CONFIG_HOME", ".config") / "systemd" / "user"


def _xdg(variable: str, usual: str) -> Path:
    """A directory of the XDG standard, which ignores a relative one."""
    wanted = os.environ.get(variable, "")
    return Path(wanted) if wanted.startswith("/") else Path.home() / usual


def _is_ours(file: Path) -> bool:
    return file.read_text(encoding="utf-8", errors="replace").startswith(MADE_BY)


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


def _ask_systemctl(*arguments: str, timeout_s: float = ANSWER_WITHIN_S) -> _Answer:
    return _ask(["systemctl", "--user", "--no-pager", *arguments], timeout_s)


def _ask(command: list[str], timeout_s: float = ANSWER_WITHIN_S) -> _Answer:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=_environment(os.environ, Path(f"/run/user/{os.getuid()}")),
        )
    except FileNotFoundError:
        return _Answer(EXIT_NOT_FOUND, "", f"{command[0]} is not installed")
    except subprocess.TimeoutExpired:
        return _Answer(EXIT_TOO_LATE, "", f"{command[0]} did not answer within {timeout_s:g} s")
    return _Answer(done.returncode, done.stdout, done.stderr)


def _environment(present: Mapping[str, str], run_directory: Path) -> dict[str, str]:
    """The environment as it is, in English, and with the directory of the user's bus, which some
    logins do not set."""
    environment = {**present, "LC_ALL": "C"}
    if "XDG_RUNTIME_DIR" not in environment and run_directory.is_dir():
        environment["XDG_RUNTIME_DIR"] = str(run_directory)
    return environment
