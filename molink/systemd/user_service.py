"""Installs, removes and inspects a service of this user's systemd: the agent's, the coordinator's.

Each method may be repeated: what is there already is replaced, what is gone already is no error.
systemctl's own words ("Failed to connect to bus") are the same for a container, a WSL without
systemd and a shell opened with `su`. The remedies differ, so we look at where we are.

The programs were chosen over D-Bus because they are there wherever systemd is, and their exit codes
and property lines have been stable for ten years.
"""

import getpass
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from molink.errors import UserError
from molink.systemd.unit_file import ISOLATION

ANSWER_WITHIN_S = 10.0
"""A manager that works answers every question in milliseconds."""

STOP_WITHIN_S = 90.0
"""Stopping waits for the unit: longer than its own TimeoutStopSec."""

EXIT_NOT_FOUND, EXIT_TOO_LATE = 127, 124

PROPERTIES = ("LoadState", "ActiveState", "UnitFileState", "Result", "NRestarts")

NOT_ISOLATED = (
    "This Linux gives users no namespaces: the {what} could write wherever you can (all else of "
    "its sandbox holds)."
)

CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """State of a service, as systemd reports it."""

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

    @property
    def sentences(self) -> list[str]:
        """The state in lines for a person."""
        problem = [self.problem] if self.problem else []
        if not self.installed:
            return problem
        runs = "runs" if self.active else "does not run"
        starts = "starts by itself" if self.enabled else "does not start by itself"
        lasts = "goes on" if self.lingering else "ends"
        return [
            f"{self.unit} {runs}, {starts}, {lasts} when you log out",
            f"started again after a crash: {self.restarts} times",
            *problem,
        ]


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


@dataclass(frozen=True, slots=True)
class UserService:
    """A service of this user's, and what people call it."""

    unit: str
    """Name of its unit file."""
    what: str
    """Noun for sentences: agent, coordinator."""
    command: str
    """Command that does the same in a terminal, for sentences."""
    installed_by: str
    """Command that installs it, for sentences."""
    made_by: str
    """First line of its unit, up to where it differs: no other file is overwritten or removed."""
    when_failed: str = ""
    """What helps when it has failed, as the end of a sentence."""
    in_wsl: str = ""
    """What helps in a WSL without systemd, as the end of a sentence."""
    ends_in_wsl: str = "WSL ends it seconds after its last window is closed."

    @property
    def file(self) -> Path:
        """The unit file, where systemd looks for it."""
        return xdg_folder("XDG_CONFIG_HOME", ".config") / "systemd" / "user" / self.unit

    def install(self, text_of: Callable[[bool], str]) -> list[str]:
        """Write, enable and start the unit whose text `text_of` gives, isolated or not; what was
        done and what is left to do, for a person.

        Raises UserError where there is no systemd user instance, or it refuses.
        """
        if _ask_systemctl("show-environment").code:
            raise UserError(self.why_no_manager(Surroundings.here()))
        if self.file.exists() and not self._is_ours():
            raise UserError(f"{self.file} is not ours: move it away, then try again.")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        isolated = _can_isolate()
        self.file.write_text(text_of(isolated), encoding="utf-8")
        for arguments in (["daemon-reload"], ["enable", self.unit], ["restart", self.unit]):
            answer = _ask_systemctl(*arguments, timeout_s=STOP_WITHIN_S)
            if answer.code:
                raise UserError(
                    f"systemctl --user {' '.join(arguments)}: {answer.reason} "
                    f"`journalctl --user -u {self.unit}` may tell more."
                )
        started = f"The {self.what} was started as {self.unit}, and starts with your session."
        open_to_write = [] if isolated else [NOT_ISOLATED.format(what=self.what)]
        return [started, self._when_it_ends(), *open_to_write]

    def remove(self) -> list[str]:
        """Stop and remove the unit; returns what was done. Works without systemd, too."""
        if not self.file.exists():
            return [f"There is no service {self.unit}."]
        if not self._is_ours():
            raise UserError(f"{self.file} is not ours: remove it yourself if you want it gone.")
        answer = _ask_systemctl("disable", "--now", self.unit, timeout_s=STOP_WITHIN_S)
        self.file.unlink()
        _ask_systemctl("daemon-reload")
        _ask_systemctl("reset-failed", self.unit)
        if answer.code:
            return [
                f"{self.unit} is removed; systemd did not confirm that it has ended: "
                f"{answer.reason}"
            ]
        return [f"{self.unit} is stopped and removed."]

    def status(self) -> ServiceStatus:
        """The state of the service; never raises."""
        installed = self.file.exists()
        answer = _ask_systemctl("show", self.unit, f"--property={','.join(PROPERTIES)}")
        facts = dict(line.split("=", 1) for line in answer.output.splitlines() if "=" in line)
        restarts = facts.get("NRestarts", "")
        return ServiceStatus(
            unit=self.unit,
            installed=installed,
            enabled=facts.get("UnitFileState") == "enabled",
            active=facts.get("ActiveState") in ("active", "reloading", "activating"),
            lingering=_lingering(),
            restarts=int(restarts) if restarts.isdecimal() else 0,
            problem=self._problem(installed, answer.code, facts),
        )

    def why_no_manager(self, here: "Surroundings") -> str:
        """One sentence with the reason, one with the remedy, one with what works without it."""
        meanwhile = f"Meanwhile `{self.command}` in a terminal does the same for as long as it is "
        return f"{self._reason_and_remedy(here)} {meanwhile}open."

    def _is_ours(self) -> bool:
        text = self.file.read_text(encoding="utf-8", errors="replace")
        return text.startswith(self.made_by)

    def _problem(self, installed: bool, code: int, facts: dict[str, str]) -> str:
        if not installed:
            return f"It is not installed: `{self.installed_by}` does it."
        if code or not facts:
            return self.why_no_manager(Surroundings.here())
        if facts.get("ActiveState") == "failed":
            return (
                f"It has failed ({facts.get('Result', 'unknown')}): `journalctl --user -u "
                f"{self.unit}` tells why{self.when_failed}."
            )
        return ""

    def _when_it_ends(self) -> str:
        if Surroundings.here().wsl:
            return self.ends_in_wsl
        if _lingering():
            return "It goes on when you log out."
        return (
            "It ends when you log out; to let it go on and start with the PC: loginctl "
            "enable-linger"
        )

    def _reason_and_remedy(self, here: "Surroundings") -> str:
        if here.systemd_booted:
            return (
                f"systemd runs no services for {here.user} here, as after `su` or without a login. "
                f"Log in as {here.user}, or run `sudo loginctl enable-linger {here.user}` and "
                f"`export XDG_RUNTIME_DIR=/run/user/{here.user_id}`, then try again."
            )
        if here.container:
            return f"A container has no systemd. Let it run `{self.command}` as its own command."
        if here.wsl:
            return (
                "systemd is off in this WSL. Put the lines `[boot]` and `systemd=true` into "
                f"/etc/wsl.conf, run `wsl --shutdown` in Windows, then try again{self.in_wsl}."
            )
        return (
            f"This Linux was not started by systemd. Let its own service manager run "
            f"`{self.command}`."
        )


def _can_isolate() -> bool:
    """Whether a service of this user can have a read-only system: tried, since a kernel, a
    distribution's policy or an old systemd may forbid it, and the agent would not start."""
    options = [f"--property={line}" for line in ISOLATION]
    return not _ask(["systemd-run", "--user", "--wait", "--collect", *options, "true"]).code


def _lingering() -> bool:
    answer = _ask(["loginctl", "--no-pager", "show-user", _user_name(), "--property=Linger"])
    return answer.output.strip() == "Linger=yes"


def xdg_folder(variable: str, usual: str) -> Path:
    """A directory of the XDG standard, which ignores a relative one."""
    wanted = os.environ.get(variable, "")
    return Path(wanted) if wanted.startswith("/") else Path.home() / usual


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


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
