"""What the unit files of MoLink's services share: names, quoting, the sandbox.

Each is shut in: without new privileges, without system calls and kinds of sockets that it has no
use for, and, where this Linux lets a user have namespaces, with a read-only system in which it may
write to its own folder alone. Left open are devices (cards) and the network.

Pure: paths in, text out.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from molink.errors import UserError

NAME_HASH_BYTES = 4
"""Two data directories of one account share a name once in 4 billion."""

EXIT_USER_ERROR = 2
"""Exit code for what only a person can put right: a new start changes nothing."""

SANDBOX = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_VSOCK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
"""
# AF_NETLINK lists the PC's addresses, AF_VSOCK is how WSL starts a Windows program, which is how it
# is asked whether somebody uses the PC. MemoryDenyWriteExecute is left out: torch and CUDA make
# code while they run.


ISOLATION = (
    "PrivateUsers=yes",
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "PrivateTmp=yes",
    "BindReadOnlyPaths=-/tmp/.X11-unix",
)
"""Isolation that needs a namespace of users; some Linuxes forbid that. Home stays readable for the
program itself, the hub's token and the desktop's key; of /tmp only the display is shared.
"""


def unit_name(kind: str, data_dir: Path, usual_data_dir: Path) -> str:
    """The file's name: one for each data directory, so that several of a kind can be services."""
    if data_dir == usual_data_dir:
        return f"molink-{kind}.service"
    key = hashlib.blake2b(str(data_dir).encode(), digest_size=NAME_HASH_BYTES).hexdigest()
    return f"molink-{kind}-{key}.service"


def restart_lines(after_s: int, stop_within_s: int) -> str:
    """Lines that start a service again after a crash, unless only a person can put it right, and
    stop it in order: only the program is told to, and what is left after that is killed."""
    return f"""\
Restart=on-failure
RestartSec={after_s}
RestartPreventExitStatus={EXIT_USER_ERROR}
KillMode=mixed
TimeoutStopSec={stop_within_s}
"""


def isolation_lines(data_dir: Path, *, isolated: bool) -> str:
    """Lines that leave only `data_dir` writable; none where users have no namespaces."""
    lines = (*ISOLATION, f"ReadWritePaths={quoted_path(str(data_dir))}") if isolated else ()
    return "".join(f"{line}\n" for line in lines)


def environment_line(data_dir: Path, folders: dict[str, str]) -> str:
    """Variables that name folders within the service's own."""
    return " ".join(quoted_path(f"{name}={data_dir / part}") for name, part in folders.items())


def environment_file(variables: Mapping[str, str]) -> str:
    """Variables as `EnvironmentFile` reads them; it knows no specifiers.

    Raises UserError for a value that is not printable.
    """
    return "".join(f"{name}={_quoted(value)}\n" for name, value in variables.items())


def command_line(command: Sequence[str]) -> str:
    """A command whose first word is an absolute path, as `ExecStart` takes it.

    Raises UserError for what a unit cannot hold.
    """
    if not Path(command[0]).is_absolute():
        raise UserError(f"A service needs the absolute path of its program, got {command[0]!r}.")
    if "$" in command[0]:
        raise UserError(f"systemd cannot start a program with $ in its path: {command[0]}")
    return " ".join(quoted_path(argument).replace("$", "$$") for argument in command)


def molink_program() -> list[str]:
    """The `molink` beside this Python; its module where there is none (a checkout)."""
    molink = Path(sys.executable).parent / "molink"
    return [str(molink)] if molink.exists() else [sys.executable, "-m", "molink.cli.main"]


def quoted_path(argument: str) -> str:
    """A value in double quotes where systemd knows no variables; its own characters are doubled.

    Raises UserError for one that is not printable.
    """
    return _quoted(argument).replace("%", "%%")


def _quoted(value: str) -> str:
    if not value.isprintable():
        raise UserError(f"A service cannot hold the character codes of {value!r}.")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
