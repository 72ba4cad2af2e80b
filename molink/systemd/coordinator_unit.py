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

ENVIRONMENT_FILE = "service.env"
"""File within the coordinator's folder with variables of who installed the service: some are
secrets, and whoever has the PC may read a unit or a command."""

PASSED_ON = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "XDG_CACHE_HOME",
    "SSL_CERT_FILE",
    *(f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "ALL", "NO")),
    *(f"{kind}_proxy" for kind in ("http", "https", "all", "no")),
)
"""Variables that `molink up` and the hub's client read, beside that of the broker."""

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
EnvironmentFile={{environment_file}}
{SANDBOX}{{isolation}}
[Install]
WantedBy=default.target
"""


def coordinator_unit(
    command: Sequence[str],
    data_dir: Path,
    here: Path,
    others: Sequence[Path],
    *,
    isolated: bool = True,
) -> str:
    """The unit that runs `command` in the folder `here`, with the variables of the data folder's
    ENVIRONMENT_FILE, and lets it write to `data_dir` and to `others`: where models are kept, and
    the folder of the coordinator that it replaces; `isolated`: to nothing else, where users may
    have namespaces.

    Raises UserError for a path that a unit cannot hold.
    """
    lines = isolation_lines(data_dir, isolated=isolated)
    if isolated:
        for folder in others:
            lines += f"ReadWritePaths=-{quoted_path(str(folder))}\n"
    return _UNIT.format(
        command=command_line(command),
        here=quoted_path(str(here)).strip('"'),
        environment_file=quoted_path(str(data_dir / ENVIRONMENT_FILE)).strip('"'),
        environment=environment_line(data_dir, WRITTEN),
        isolation=lines,
    )
