"""The text of the systemd user unit that runs one coordinator.

It starts with its user's session, or with the PC where the user lingers, and again when it crashes:
its rings wait 30 s for it, so it is started again at once. Pure: paths in, text out.
"""

from collections.abc import Sequence
from pathlib import Path

from molink.systemd.unit_file import (
    SANDBOX,
    command_line,
    environment_line,
    isolation_lines,
    quoted_path,
    restart_lines,
)

MADE_BY = "# Made by molink service install"
"""First line of every unit of ours: no other file is ever overwritten or removed."""

RESTART_AFTER_S = 2
"""Stages wait half a minute for their coordinator, which takes some 15 s of that to start."""

STOP_WITHIN_S = 60
"""An orderly stop writes down what is under way and says goodbye in far less."""

WRITTEN = {
    "XDG_STATE_HOME": "state",
    "MOLINK_KERNELS_DIR": "cache/kernels",
    "HF_XET_CACHE": "cache/xet",
}
"""Folders within the coordinator's own for what libraries would write elsewhere."""

_UNIT = f"""\
{MADE_BY}: changes are lost when it runs again.
[Unit]
Description=MoLink coordinator: serves a language model over the PCs that have joined
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={{command}}
WorkingDirectory={{here}}
Environment=PYTHONUNBUFFERED=1
{restart_lines(RESTART_AFTER_S, STOP_WITHIN_S)}UMask=0077
Environment={{environment}}
{SANDBOX}{{isolation}}
[Install]
WantedBy=default.target
"""


def coordinator_unit(
    command: Sequence[str],
    data_dir: Path,
    here: Path,
    hub: Path,
    *,
    replaces: Path | None = None,
    isolated: bool = True,
) -> str:
    """The unit that runs `command` in the folder `here`, and lets it write to `data_dir`, to `hub`,
    where models are kept, and to the folder of the coordinator that it replaces; `isolated`: to
    nothing else, where users may have namespaces.

    Raises UserError for a path that a unit cannot hold.
    """
    lines = isolation_lines(data_dir, isolated=isolated)
    if isolated:
        for folder in filter(None, (hub, replaces)):
            lines += f"ReadWritePaths=-{quoted_path(str(folder))}\n"
    return _UNIT.format(
        command=command_line(command),
        here=quoted_path(str(here)).strip('"'),
        environment=environment_line(data_dir, WRITTEN),
        isolation=lines,
    )
