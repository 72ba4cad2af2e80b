"""The text of the systemd user unit that runs one agent.

The agent supervises its stages itself, so systemd has one thing to do: start it, and start it again
when it crashes. Everything in the unit that limits is a backstop behind the owner's own limits,
which the agent obeys and which change while it runs; a unit would have to be rewritten for that.

It also shuts the agent in: without new privileges, without system calls and kinds of sockets that
it has no use for, and, where this Linux lets a user have namespaces, with a read-only system in
which it may write to its own folder alone. What else it would write goes there too. Left open are
devices (cards), the network, and what tells whether somebody uses the PC (the desktop's sockets).

Pure: paths in, text out.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from molink.errors import UserError

UNIT_NAME = "molink-agent.service"
"""Name of the unit of the agent with the usual data directory."""

MADE_BY = "# Made by molink agent service install"
"""First line of every unit of ours: no other file is ever overwritten or removed."""

RESTART_AFTER_S = 15
"""A crash at start, over and over, then costs about one second of a core in fifteen."""

STOP_WITHIN_S = 60
"""A stage finishes its step and says goodbye in far less; systemd's own limit at logout is 90 s."""

EXIT_USER_ERROR = 2
"""The agent's exit code for what only its owner can put right: a new start changes nothing."""

NICENESS = 10
"""Half way down: what the owner does goes first, yet an idle PC is used in full."""

CPU_WEIGHT = 20
"""A fifth of an ordinary program's share when both want all of the CPU."""

MEMORY_MAX_PERCENT = 90
"""Percentage of the PC's memory: a leak ends the stage before it ends the owner's session. What the
owner lends is less, and the agent keeps to that."""

OOM_SCORE = 500
"""Score between -1000 and 1000: when memory runs out in spite of that, ours is what the kernel
takes first."""

WRITTEN = {
    "XDG_STATE_HOME": "state",
    "HF_XET_CACHE": "cache/xet",
    "CUDA_CACHE_PATH": "cache/cuda",
    "TRITON_CACHE_DIR": "cache/triton",
    "MOLINK_KERNELS_DIR": "cache/kernels",
}
"""Folders within the agent's own for what libraries and failed stages would write elsewhere."""

NAME_HASH_BYTES = 4
"""Two data directories of one account share a name once in 4 billion."""

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

_UNIT = f"""\
{MADE_BY}: changes are lost when it runs again.
[Unit]
Description=MoLink agent: lends this PC to a cluster that serves language models
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={{command}}
Environment=PYTHONUNBUFFERED=1
Restart=on-failure
RestartSec={RESTART_AFTER_S}
RestartPreventExitStatus={EXIT_USER_ERROR}
KillMode=mixed
TimeoutStopSec={STOP_WITHIN_S}
Nice={NICENESS}
CPUWeight={CPU_WEIGHT}
IOSchedulingClass=best-effort
IOSchedulingPriority=7
MemoryMax={MEMORY_MAX_PERCENT}%
OOMScoreAdjust={OOM_SCORE}
OOMPolicy=continue
UMask=0077
Environment={{environment}}
NoNewPrivileges=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_VSOCK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
{{isolation}}
[Install]
WantedBy=default.target
"""
# KillMode=mixed: only the agent is told to stop, and stops its stages in order; what is left after
# that is killed. AF_NETLINK lists the PC's addresses, AF_VSOCK is how WSL starts a Windows program,
# which is how it is asked whether somebody uses the PC. MemoryDenyWriteExecute is left out: torch
# and CUDA make code while they run. OOMPolicy=continue: a stage that the kernel took is replaced by
# the agent, not by a new start of everything.


def unit_name(data_dir: Path, usual_data_dir: Path) -> str:
    """The unit's file name: one for each data directory, so that several agents can be services."""
    if data_dir == usual_data_dir:
        return UNIT_NAME
    key = hashlib.blake2b(str(data_dir).encode(), digest_size=NAME_HASH_BYTES).hexdigest()
    return f"molink-agent-{key}.service"


def unit_text(command: Sequence[str], data_dir: Path, *, isolated: bool = True) -> str:
    """The unit that runs `command`, whose first word is an absolute path, and lets it write to
    `data_dir`; `isolated`: to nothing else, where users may have namespaces.

    Raises UserError for a path that a unit cannot hold.
    """
    if not Path(command[0]).is_absolute():
        raise UserError(f"A service needs the absolute path of its program, got {command[0]!r}.")
    if "$" in command[0]:
        raise UserError(f"systemd cannot start a program with $ in its path: {command[0]}")
    isolation = (*ISOLATION, f"ReadWritePaths={_path(str(data_dir))}") if isolated else ()
    return _UNIT.format(
        command=" ".join(map(_quoted, command)),
        environment=" ".join(_path(f"{name}={data_dir / part}") for name, part in WRITTEN.items()),
        isolation="".join(f"{line}\n" for line in isolation),
    )


def _quoted(argument: str) -> str:
    """An argument in double quotes; characters that systemd would read as its own are doubled."""
    return _path(argument).replace("$", "$$")


def _path(argument: str) -> str:
    """The same where systemd knows no variables."""
    if not argument.isprintable():
        raise UserError(f"A service's command cannot hold the character codes of {argument!r}.")
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("%", "%%") + '"'
