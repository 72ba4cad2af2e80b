"""The text of the systemd user unit that runs one agent.

The agent supervises its stages itself, so systemd has one thing to do: start it, and start it again
when it crashes. Everything in the unit that limits is a backstop behind the owner's own limits,
which the agent obeys and which change while it runs; a unit would have to be rewritten for that.

It also shuts the agent in, as every service of ours (`molink.systemd.unit_file`). What else it
would write goes to its own folder. Left open is what tells whether somebody uses the PC (the
desktop's sockets).

Pure: paths in, text out.
"""

from collections.abc import Sequence
from pathlib import Path

from molink.systemd.unit_file import (
    SANDBOX,
    command_line,
    environment_line,
    isolation_lines,
    restart_lines,
)
from molink.systemd.unit_file import unit_name as unit_name_of

MADE_BY = "# Made by molink agent service install"
"""First line of every unit of ours: no other file is ever overwritten or removed."""

RESTART_AFTER_S = 15
"""A crash at start, over and over, then costs about one second of a core in fifteen."""

STOP_WITHIN_S = 60
"""A stage finishes its step and says goodbye in far less; systemd's own limit at logout is 90 s."""

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

_UNIT = f"""\
{MADE_BY}: changes are lost when it runs again.
[Unit]
Description=MoLink agent: lends this PC to a cluster that serves language models
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={{command}}
Environment=PYTHONUNBUFFERED=1
{restart_lines(RESTART_AFTER_S, STOP_WITHIN_S)}Nice={NICENESS}
CPUWeight={CPU_WEIGHT}
IOSchedulingClass=best-effort
IOSchedulingPriority=7
MemoryMax={MEMORY_MAX_PERCENT}%
OOMScoreAdjust={OOM_SCORE}
OOMPolicy=continue
UMask=0077
Environment={{environment}}
{SANDBOX}{{isolation}}
[Install]
WantedBy=default.target
"""
# KillMode=mixed: only the agent is told to stop, and stops its stages in order; what is left after
# that is killed. OOMPolicy=continue: a stage that the kernel took is replaced by the agent, not by
# a new start of everything.


def unit_name(data_dir: Path, usual_data_dir: Path) -> str:
    """The unit's file name: one for each data directory, so that several agents can be services."""
    return unit_name_of("agent", data_dir, usual_data_dir)


def unit_text(command: Sequence[str], data_dir: Path, *, isolated: bool = True) -> str:
    """The unit that runs `command`, whose first word is an absolute path, and lets it write to
    `data_dir`; `isolated`: to nothing else, where users may have namespaces.

    Raises UserError for a path that a unit cannot hold.
    """
    return _UNIT.format(
        command=command_line(command),
        environment=environment_line(data_dir, WRITTEN),
        isolation=isolation_lines(data_dir, isolated=isolated),
    )
