"""The one place that runs systemctl and loginctl: bounded in time, never a traceback.

The programs were chosen over D-Bus because they are there wherever systemd is, and their exit codes
and property lines have been stable for ten years.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Answer", "ask_loginctl", "ask_systemctl"]

ANSWER_WITHIN_S = 10.0
"""Every question is answered in milliseconds by a manager that lives."""

STOP_WITHIN_S = 90.0
"""Stopping waits for the unit: longer than its own TimeoutStopSec."""

EXIT_NOT_FOUND = 127
EXIT_TOO_LATE = 124


@dataclass(frozen=True, slots=True)
class Answer:
    """Exit code and output of a program."""

    code: int
    """0: done; 127: no such program; 124: it did not answer in time."""
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """The last line of its output, for a person."""
        lines = (self.errors or self.output).strip().splitlines()
        return lines[-1] if lines else f"exit code {self.code}"


def ask_systemctl(*arguments: str, timeout_s: float = ANSWER_WITHIN_S) -> Answer:
    """Run `systemctl --user ARGUMENTS`."""
    return _ask(["systemctl", "--user", "--no-pager", *arguments], timeout_s)


def ask_loginctl(*arguments: str) -> Answer:
    """Run `loginctl ARGUMENTS`."""
    return _ask(["loginctl", "--no-pager", *arguments], ANSWER_WITHIN_S)


def _ask(command: list[str], timeout_s: float) -> Answer:
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
        return Answer(EXIT_NOT_FOUND, "", f"{command[0]} is not installed")
    except subprocess.TimeoutExpired:
        return Answer(EXIT_TOO_LATE, "", f"{command[0]} did not answer within {timeout_s:g} s")
    return Answer(done.returncode, done.stdout, done.stderr)


def _environment(present: Mapping[str, str], run_directory: Path) -> dict[str, str]:
    """As it is, in English, and with the directory of the user's bus, which some logins do not
    set."""
    environment = {**present, "LC_ALL": "C"}
    if "XDG_RUNTIME_DIR" not in environment and run_directory.is_dir():
        environment["XDG_RUNTIME_DIR"] = str(run_directory)
    return environment
